"""JSON in the dialect of fastjson."""

from collections import defaultdict
from types import MappingProxyType

import msgspec
import pytest
from tests.support.cases import each_case

from sparrow.model.errors import ProtocolError
from sparrow.wire.bodies import QueueRef, TopicOffset, TopicStats, fastjson
from sparrow.wire.bodies.fastjson import NESTING_MAX, emit, parse


def test_quoted_and_unquoted_integer_keys_are_equal():
    assert parse(b'{"brokerAddrs":{0:"10.0.0.1:10911",1:"x"}}') == parse(
        b'{"brokerAddrs":{"0":"10.0.0.1:10911","1":"x"}}'
    )


def test_objects_may_be_keys():
    table = parse(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,{"queueId":1}:{"x":[]}}}')
    assert table == {
        "offsetTable": {
            (("brokerName", "b"), ("queueId", 0), ("topic", "T")): 5,
            (("queueId", 1),): {"x": []},
        }
    }


def test_spaces_references_and_every_kind_of_value_are_parsed():
    text = b' { "a" : [ 1 , -2.5e3 , true , false , null , "\\u6807\\"" ] , 7 : { "$ref" : "$" } } '
    assert parse(text) == {"a": [1, -2500.0, True, False, None, '标"'], "7": {"$ref": "$"}}


@each_case(
    "text",
    [
        b"",
        b"{",
        b'{"a"}',
        b'{"a":1,}',
        b"{1:2 3}",
        b"[1 2]",
        b"{{}:",
        b"{{[]:1}:1}",
        b'{{"a":[]}:1}',
        b'{1:"\\ud800"}',
        b'{1:"open}',
        b"{1:\xff}",
        b"nul",
        b"{1:2}x",
        b"[" * 100_000,
        b"{1:" * 100_000,
        b"{" * 100_000,
        b"{{1:1}:" * 100_000,
    ],
)
def test_invalid_text_is_a_protocol_error(text):
    with pytest.raises(ProtocolError):
        parse(text)


def test_nesting_is_limited():
    deep = b"{0:" + b"[" * NESTING_MAX + b"]" * NESTING_MAX + b"}"
    assert parse(deep)
    with pytest.raises(ProtocolError, match="deeper"):
        parse(b"{0:" + b"[" * (NESTING_MAX + 1) + b"]" * (NESTING_MAX + 1) + b"}")


def test_output_has_no_spaces_and_quoted_integer_keys():
    assert emit({"brokerAddrs": {0: "a:1", 1: "b:2"}}) == b'{"brokerAddrs":{"0":"a:1","1":"b:2"}}'


def test_values_round_trip():
    value = {"t": {(("q", 0), ("t", "T")): [1, {"x": None}], (("q", 1), ("t", "标")): 2.5}}
    assert parse(emit(value)) == value


def test_a_table_of_many_queues_is_not_encoded_row_by_row_in_python(monkeypatch):
    encoded = []
    emit_one = fastjson._emit
    monkeypatch.setattr(fastjson, "_emit", lambda value: encoded.append(value) or emit_one(value))
    table = TopicStats({QueueRef("T", "b", queue): TopicOffset(1, 2) for queue in range(1_000)})
    text = emit(table)
    assert text.count(b'"queueId":') == text.count(b'"maxOffset":2') == 1_000
    assert len(encoded) < 10


def test_scalars_of_a_map_become_the_texts_that_they_become_alone():
    table = {3: 4, "a": False, "b": 0.5, "c": 'q"'}
    alone = ",".join(f'"{key}":{emit(value).decode()}' for key, value in table.items())
    assert emit(table).decode() == "{" + alone + "}"


def test_every_kind_of_map_and_list_is_encoded():
    values = [{}, [], MappingProxyType({0: "x"}), defaultdict(int, {5: 6}), (1, "a"), frozenset({7}), {1: [2]}]
    assert emit(values) == b'[{},[],{"0":"x"},{"5":6},[1,"a"],[7],{"1":[2]}]'


def test_a_large_map_is_encoded_in_pieces_as_a_small_one_is():
    members = {f"group-{number}": {"name": f"g{number}", "ids": {1: "a"}, "none": None} for number in range(2_345)}
    small = {name: {"name": value["name"], "ids": {"1": "a"}, "none": None} for name, value in members.items()}
    assert msgspec.json.decode(fastjson.emit({"table": members, "last": 1})) == {"table": small, "last": 1}
    assert fastjson.parse(fastjson.emit(members)) == small

"""Typed headers: both forms of a send, Java's booleans, and errors that name the field."""

import msgspec
import pytest
from tests.support.cases import each_case

from sparrow.model.errors import BadRequest, Refused
from sparrow.model.queue import Queue
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import (
    CommitOffset,
    DeleteGroup,
    EmptyHeader,
    GetConsumeStats,
    Heartbeat,
    OffsetResponse,
    PullMessage,
    QueryMessage,
    QueryOffset,
    ResetOffset,
    SearchOffset,
    SendMessage,
    SendMessageResponse,
    SendMessageV2,
    read,
    request_header_type,
    response_header_type,
    write,
)

LONG = {
    "producerGroup": "g",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "-1",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "7",
    "properties": "TAGS\x01a\x02",
    "reconsumeTimes": "2",
    "unitMode": "false",
    "maxReconsumeTimes": "16",
    "batch": "TRUE",
    "bname": "broker-a",
}
SHORT = dict(zip("abcdefghijklmn", LONG.values(), strict=True))


def raw(fields):
    return msgspec.Raw(msgspec.json.encode(fields))


@pytest.mark.parametrize("wire", [dict, raw])
def test_both_forms_of_a_send_decode_to_the_same_header(wire):
    long, short = read(SendMessage, wire(LONG)), read(SendMessageV2, wire(SHORT))
    assert isinstance(short, SendMessage)
    assert msgspec.structs.astuple(long) == msgspec.structs.astuple(short)
    assert (long.group, long.queue_id, long.born_ms, long.flag) == ("g", -1, 1700000000000, 7)
    assert (long.unit_mode, long.batch, long.reconsume_times_max) == (False, True, 16)


@each_case("wire", [dict, raw])
@each_case(
    ("text", "meant"), [("true", True), ("True", True), ("false", False), ("1", False), ("yes", False), ("", False)]
)
def test_booleans_are_parsed_as_by_javas_parse_boolean(wire, text, meant):
    assert read(SendMessage, wire(LONG | {"unitMode": text})).unit_mode is meant


@pytest.mark.parametrize("wire", [dict, raw])
def test_a_missing_field_is_named_in_the_error(wire):
    fields = {name: value for name, value in SHORT.items() if name != "b"}
    with pytest.raises(BadRequest, match="field 'b' is missing") as caught:
        read(SendMessageV2, wire(fields))
    assert isinstance(caught.value, Refused), "the connection must stay open"
    assert caught.value.field == "b"


@pytest.mark.parametrize("wire", [dict, raw])
@pytest.mark.parametrize(("name", "value"), [("queueId", "x"), ("queueId", str(2**31)), ("bornTimestamp", str(2**63))])
def test_an_invalid_or_too_large_number_is_named_in_the_error(wire, name, value):
    with pytest.raises(BadRequest, match=f"field '{name}' is '{value}'"):
        read(SendMessage, wire(LONG | {name: value}))


def test_missing_ext_fields_are_a_missing_field():
    for nothing in (None, {}, msgspec.Raw(b"null"), msgspec.Raw(b"{}")):
        with pytest.raises(BadRequest, match="missing"):
            read(CommitOffset, nothing)


def test_ext_fields_that_are_not_an_object_are_a_bad_request():
    for nonsense in (b"[]", b'"x"', b'{"topic":[]}', b'{"topic":"\xff"}'):
        with pytest.raises(BadRequest):
            read(CommitOffset, msgspec.Raw(nonsense))


def test_unknown_fields_are_ignored():
    assert read(OffsetResponse, raw({"offset": "5", "AccessKey": "ak", "nsd": "true"})) == OffsetResponse(5)


def test_unquoted_numbers_are_accepted_even_for_text_fields():
    fields = {"consumerGroup": 7, "topic": "T", "queueId": 0, "commitOffset": 9}
    assert read(CommitOffset, raw(fields)) == CommitOffset("7", "T", 0, 9)


def test_none_is_omitted_and_all_other_values_are_text():
    assert write(SendMessageResponse("AB", 3, 99, trace_on=True)) == {
        "msgId": "AB",
        "queueId": "3",
        "queueOffset": "99",
        "TRACE_ON": "true",
    }
    assert write(read(SendMessageV2, SHORT)) == SHORT | {"m": "true"}


def test_irregular_wire_names_are_used():
    assert write(ResetOffset("T", "g", -1, True)) == {
        "topic": "T",
        "group": "g",
        "timestamp": "-1",
        "isForce": "true",
    }
    assert "_UNIQUE_KEY_QUERY" in write(QueryMessage("T", "k", 32, 0, 1, by_unique_key=True))
    assert PullMessage.__struct_encode_fields__[:9] == (
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
        "commitOffset",
        "suspendTimeoutMillis",
        "subVersion",
    )
    assert DeleteGroup.__struct_encode_fields__ == ("groupName", "cleanOffset", "removeOffset")


def test_derived_values_of_headers_are_correct():
    assert QueryOffset("g", "T", 1).queue == Queue("T", 1)
    assert SearchOffset("T", 0, 1, "UPPER").wants_upper
    assert not SearchOffset("T", 0, 1).wants_upper
    assert GetConsumeStats("g", topic_list="a;b;").topics == ["a", "b"]
    assert GetConsumeStats("g", topic="c").topics == ["c"]
    assert GetConsumeStats("g").topics == []
    held = PullMessage("g", "T", 0, 0, 32, 0x3, 5, 15000, 0)
    assert (held.commits, held.may_suspend, held.has_subscription) == (True, True, False)


def test_every_code_has_a_header_type_and_others_use_the_empty_header():
    assert request_header_type(RequestCode.SEND_MESSAGE_V2) is SendMessageV2
    assert request_header_type(RequestCode.HEART_BEAT) is Heartbeat
    assert response_header_type(RequestCode.QUERY_CONSUMER_OFFSET) is OffsetResponse
    assert request_header_type(RequestCode.GET_BROKER_CLUSTER_INFO) is EmptyHeader
    assert response_header_type(999_999) is EmptyHeader
    assert set(headers.REQUEST_HEADERS) | set(headers.RESPONSE_HEADERS) <= set(RequestCode)


def test_the_wire_names_of_a_header_are_unique():
    for kind in {*headers.REQUEST_HEADERS.values(), *headers.RESPONSE_HEADERS.values()}:
        assert len(set(kind.__struct_encode_fields__)) == len(kind.__struct_fields__), kind

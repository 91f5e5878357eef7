from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from sparrow.model.errors import Refused
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.spark.sink.message_columns import (
    KAFKA_HEADERS_TYPE,
    MESSAGE_COLUMNS,
    STRING_MAP_TYPE,
    ColumnLayout,
    resolve_columns,
)
from sparrow.spark.sink.options import parse_sink_options

MAP = pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def layout(*fields: tuple[str, str], **given: str) -> ColumnLayout:
    return resolve_columns(fields, parse_sink_options({"nameServers": "127.0.0.1:9876", "topic": "t", **given}))


def test_every_column_is_found_by_its_name():
    fields = [(part.name, part.types[0]) for part in MESSAGE_COLUMNS if part.name != "deliver_timestamp"]
    found = resolve_columns(fields, parse_sink_options({"nameServers": "127.0.0.1:9876"}))
    assert found.places == {name: place for place, (name, _) in enumerate(fields)}


def test_column_names_of_the_kafka_sink_and_upper_case_are_accepted():
    fields = (("Key", "binary"), ("VALUE", "string"), ("partition", "int"), ("headers", KAFKA_HEADERS_TYPE))
    assert layout(*fields).places == {"keys": 0, "body": 1, "queue_id": 2, "properties": 3}


def test_the_option_topic_overrides_the_column():
    found = layout(("topic", "string"), ("body", "binary"))
    assert found.topic == "t"
    assert found.places == {"body": 1}


@pytest.mark.parametrize(
    ("fields", "given", "words"),
    [
        ([("keys", "string")], {}, "column 'body' .* is missing; the columns are 'keys'"),
        ([], {}, "the columns are none"),
        ([("body", "int")], {}, "'body' has the type int; .* must be binary or string"),
        ([("body", "binary"), ("value", "binary")], {}, "'body' and 'value' both mean"),
        ([("body", "binary"), ("price", "double")], {}, "'price' is not a message column.*ignoreExtraColumns"),
        ([("body", "binary"), ("properties", "map<string,int>")], {}, "'properties' has the type map<string,int>"),
        ([("body", "binary"), ("deliver_timestamp", "timestamp")], {}, "delivery=atLeastOnce"),
        ([("body", "binary"), ("born_timestamp", "timestamp")], {"delivery": "atLeastOnce"}, "delivery=exactlyOnce"),
    ],
)
def test_invalid_columns_are_refused_with_a_reason(fields: list[tuple[str, str]], given: dict[str, str], words: str):
    with pytest.raises(Refused, match=words):
        layout(*fields, **given)


def test_without_an_option_and_a_column_there_is_no_topic():
    with pytest.raises(Refused, match="option 'topic', or add a column 'topic'"):
        resolve_columns([("body", "binary")], parse_sink_options({"nameServers": "127.0.0.1:9876"}))


def test_extra_columns_are_ignored_if_the_option_is_set():
    assert layout(("a", "int"), ("body", "binary"), ignoreExtraColumns="true").places == {"body": 1}


def test_a_string_body_is_encoded_as_utf8():
    rows = layout(("body", "string")).rows(pa.record_batch({"body": ["é", "", "x"]}).slice(0, 2))
    assert rows.body.to_pylist() == ["é".encode(), b""]


def test_a_null_body_is_refused_with_its_row():
    with pytest.raises(Refused, match="row 1002 of its partition has a null body"):
        layout(("body", "binary")).rows(pa.record_batch({"body": [b"", b"x", None]}), first=1000)


def test_a_null_topic_is_refused_with_its_row():
    some = resolve_columns(
        [("topic", "string"), ("body", "binary")], parse_sink_options({"nameServers": "127.0.0.1:9876"})
    )
    with pytest.raises(Refused, match="row 1 of its partition has a null topic"):
        some.rows(pa.record_batch({"topic": ["a", None], "body": [b"", b""]}))


def test_keys_in_bytes_must_be_valid_text():
    some = layout(("body", "binary"), ("key", "binary"))
    given = pa.array([b"k\xc3\xa9", None], pa.binary())
    assert some.rows(pa.record_batch({"body": [b"", b""], "key": given})).keys.to_pylist() == ["ké", None]
    with pytest.raises(Refused, match="not valid UTF-8"):
        some.rows(pa.record_batch({"body": [b""], "key": pa.array([b"\xff"], pa.binary())}))


def test_kafka_headers_become_properties():
    given = pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, []], HEADERS)
    batch = pa.record_batch({"body": [b"", b"", b""], "headers": given})
    some = layout(("body", "binary"), ("headers", KAFKA_HEADERS_TYPE))
    assert some.rows(batch).properties.to_pylist() == [[("a", "1"), ("b", None)], [], []]
    assert some.rows(batch.slice(1)).properties.to_pylist() == [[], []]


def test_timestamps_are_converted_to_milliseconds():
    moment = datetime(2024, 5, 1, 12, 0, 0, 123999, UTC)
    ms = int(moment.timestamp() * 1000)
    columns = {"body": [b"", b""], "born_timestamp": pa.array([moment, None], pa.timestamp("us", "UTC"))}
    rows = layout(("body", "binary"), ("born_timestamp", "timestamp")).rows(pa.record_batch(columns))
    assert rows.born_ms.to_pylist() == [ms, None]
    columns["born_timestamp"] = pa.array([ms, None], pa.int64())
    rows = layout(("body", "binary"), ("born_timestamp", "bigint")).rows(pa.record_batch(columns))
    assert rows.born_ms.to_pylist() == [ms, None]


def test_the_sharding_key_is_added_to_the_properties_of_its_row():
    columns = {
        "body": [b""] * 4,
        "properties": pa.array([[("a", "1"), ("b", "2")], None, [], [("c", "3")]], MAP),
        "sharding_key": ["k0", "k1", None, "k3"],
    }
    fields = (("body", "binary"), ("properties", STRING_MAP_TYPE), ("sharding_key", "string"))
    rows = layout(*fields).rows(pa.record_batch(columns))
    wanted = [
        [("a", "1"), ("b", "2"), (PROPERTY_SHARDING_KEY, "k0")],
        [(PROPERTY_SHARDING_KEY, "k1")],
        [(PROPERTY_SHARDING_KEY, None)],
        [("c", "3"), (PROPERTY_SHARDING_KEY, "k3")],
    ]
    assert rows.all_properties().to_pylist() == wanted
    assert rows.slice(2, 2).all_properties().to_pylist() == wanted[2:]
    assert rows.take(np.array([3, 0])).all_properties().to_pylist() == [wanted[3], wanted[0]]
    alone = layout(("body", "binary"), ("sharding_key", "string")).rows(
        pa.record_batch({"body": [b""], "sharding_key": ["k"]})
    )
    assert alone.all_properties().to_pylist() == [[(PROPERTY_SHARDING_KEY, "k")]]


def test_rows_with_a_property_are_found():
    maps = pa.array(
        [[("a", "DELAY")], [("x", "1"), ("DELAY", "3")], None, [("PRIORITY", "high")], [("DELAY", None)]], MAP
    )
    batch = pa.record_batch({"body": [b""] * 5, "properties": maps})
    rows = layout(("body", "binary"), ("properties", STRING_MAP_TYPE)).rows(batch)
    assert rows.entries("DELAY", "PRIORITY") == [(1, "DELAY", "3"), (3, "PRIORITY", "high"), (4, "DELAY", "")]
    assert rows.slice(2, 2).entries("DELAY", "PRIORITY") == [(1, "PRIORITY", "high")]
    assert rows.take(np.array([3, 1, 0])).entries("DELAY") == [(1, "DELAY", "3")]
    assert layout(("body", "binary")).rows(batch).entries("DELAY") == []


def test_rows_keep_their_number_in_the_partition():
    rows = layout(("body", "binary")).rows(pa.record_batch({"body": [b"%d" % i for i in range(10)]}), first=100)
    some = rows.slice(2, 6).take(np.array([5, 1, 3])).slice(1, 2)
    assert some.body.to_pylist() == [b"3", b"5"]
    assert [some.row_number(at) for at in range(2)] == [103, 105]

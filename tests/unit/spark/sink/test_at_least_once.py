import pyarrow as pa
import pytest

from sparrow.model.errors import Refused
from sparrow.model.message import Message
from sparrow.spark.sink.at_least_once import find_unbatchable, to_messages
from sparrow.spark.sink.message_columns import MessageRows

MAP = pa.map_(pa.string(), pa.string())


def rows(*maps: dict[str, str], **columns: pa.Array) -> MessageRows:
    entries = pa.array([list(each.items()) for each in maps], MAP)
    return MessageRows(pa.array([b"x"] * len(maps)), properties=entries, **columns)


def test_delayed_rows_and_rows_with_a_priority_in_lanes_are_not_batched():
    some = rows(
        {"DELAY": "3"}, {"DELAY": "0"}, {"PRIORITY": "high"}, {}, deliver_ms=pa.array([None, None, None, 5], pa.int64())
    )
    assert find_unbatchable(some, in_lanes=False).tolist() == [True, False, False, True]
    assert find_unbatchable(some, in_lanes=True).tolist() == [True, False, True, True]


def test_a_row_that_would_begin_a_transaction_is_refused():
    with pytest.raises(Refused, match=r"row 1 .*TRAN_MSG"):
        find_unbatchable(rows({}, {"TRAN_MSG": "true"}), in_lanes=False)


def test_a_row_becomes_a_message_with_all_its_columns():
    some = rows(
        {"a": "1"},
        {},
        keys=pa.array(["k", None]),
        tags=pa.array(["", "T"]),
        sharding_key=pa.array([None, "s"]),
        msg_id=pa.array(["id", None]),
        deliver_ms=pa.array([77, None], pa.int64()),
    )
    first = {"KEYS": "k", "UNIQ_KEY": "id", "a": "1", "TIMER_DELIVER_MS": "77"}
    assert to_messages(some, "t") == [
        Message(topic="t", body=b"x", properties=first),
        Message(topic="t", body=b"x", properties={"TAGS": "T", "__SHARDINGKEY": "s"}),
    ]

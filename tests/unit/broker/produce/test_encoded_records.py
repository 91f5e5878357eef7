"""Encoded records: which ones may be appended unchanged, and to which queue."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.queue_batches import make_queue_batch

from sparrow.broker.produce.encoded_records import IncomingRecords, check_destinations, validate_records
from sparrow.model.errors import IllegalMessage, NotPermitted, Refused, TooLarge, UnknownTopic
from sparrow.model.priority import LANES_SYS_FLAG
from sparrow.model.protocol import PERM_READ
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire import columns, record
from sparrow.wire.queue_batches import QueueBatch

NOW_MS = 1_700_000_000_000
PEER = b"\x0a\0\0\7\0\0\1\1"
TOPICS = {
    topic.name: topic
    for topic in (
        Topic(name="T", read_queues=4, write_queues=2),
        Topic(name="L", read_queues=6, write_queues=2, sys_flag=LANES_SYS_FLAG),
        Topic(name="quiet", permission=PERM_READ),
        Topic(name="%RETRY%g"),
        Topic(name="rmq_sys_wheel_timer"),
    )
}


def arrive(*parts: QueueBatch, fills: bool = False, bytes_max: int = 1000, born_host: bytes = PEER) -> list[QueueBatch]:
    return validate_records(
        IncomingRecords(
            parts,
            check_destinations(parts, TOPICS.get),
            fills_checksum=fills,
            body_bytes_max=bytes_max,
            store_host_bytes=8,
            born_host=born_host,
            now_ms=NOW_MS,
        )
    )


def bodies_in(part: QueueBatch) -> list[bytes]:
    return [message.body for message in record.decode_all(bytes(part.data))]


def test_only_the_born_host_of_valid_records_is_overwritten():
    given = make_queue_batch("T", 1, [b"a", b"", b"ccc"], keys=["k", None, "l"], properties=[{"x": "y"}, {}, {}])
    (part,) = arrive(given)
    assert part.queue == Queue("T", 1)
    assert bodies_in(part) == [b"a", b"", b"ccc"], "checksums must be correct"
    hosts = columns.decode(part.data, columns=["born_host"]).column(0).to_pylist()
    assert hosts == ["10.0.0.7:257"] * 3
    data = bytearray(part.data)
    for start in columns.starts_from_sizes(part.sizes).tolist():
        data[start + 48 : start + 56] = given.data[start + 48 : start + 56]
    assert bytes(data) == bytes(given.data)


def test_the_input_buffer_is_not_changed():
    given = make_queue_batch("T", 1, [b"a"], checksum=False)
    before = bytes(given.data)
    arrive(given, fills=True)
    assert bytes(given.data) == before


def test_checksums_are_verified_or_filled_in():
    without = make_queue_batch("T", 0, [b"a", b"b"], checksum=False)
    with pytest.raises(Refused, match="checksum"):
        arrive(without)
    (part,) = arrive(without, fills=True)
    assert bytes(part.data) == bytes(arrive(make_queue_batch("T", 0, [b"a", b"b"]))[0].data)


@pytest.mark.parametrize(
    ("queue", "error", "why"),
    [
        (("nowhere", 0), UnknownTopic, "nowhere"),
        (("quiet", 0), NotPermitted, "no write permission"),
        (("T", 4), Refused, "no queue 4: its queues are 0 to 3"),
        (("T", -1), Refused, "no queue -1"),
        (("L", 2), Refused, "no queue 2"),
        (("rmq_sys_wheel_timer", 0), NotPermitted, "only the broker"),
    ],
)
def test_a_queue_that_is_not_writable_is_refused(queue, error, why):
    with pytest.raises(error, match=why):
        arrive(make_queue_batch("T", 0, [b"a"])._replace(queue=Queue(*queue)))


def test_records_may_be_copied_into_the_retry_topic_of_a_group():
    assert arrive(make_queue_batch("%RETRY%g", 0, [b"a"]))[0].queue == Queue("%RETRY%g", 0)


def test_a_queue_that_is_only_readable_accepts_records_as_it_accepts_sends():
    assert arrive(make_queue_batch("T", 3, [b"a"]))[0].queue == Queue("T", 3)


def test_records_of_another_topic_are_refused():
    with pytest.raises(Refused, match="not of topic 'T'"):
        arrive(make_queue_batch("L", 0, [b"a"])._replace(queue=Queue("T", 0)))


def test_sizes_must_match_the_records():
    given = make_queue_batch("T", 0, [b"a", b"b"])
    for wrong in ([1, -1], [-3, 3]):
        with pytest.raises(Refused, match="T/0"):
            arrive(given._replace(sizes=given.sizes + np.array(wrong, np.int32)))


def test_an_invalid_record_is_refused():
    given = make_queue_batch("T", 0, [b"a"])
    data = bytearray(given.data)
    data[4] ^= 0xFF
    with pytest.raises(Refused, match="T/0"):
        arrive(given._replace(data=memoryview(data)))


def test_half_messages_are_refused():
    for flag in (0x4, 0xC):
        with pytest.raises(Refused, match="half messages"):
            arrive(make_queue_batch("T", 0, [b"a"], sys_flag=flag))


def test_a_body_may_have_the_maximum_message_size_and_not_more():
    assert bodies_in(arrive(make_queue_batch("T", 0, [b"a" * 1000]))[0]) == [b"a" * 1000]
    with pytest.raises(TooLarge) as refusal:
        arrive(make_queue_batch("T", 0, [b"a", b"a" * 1001]))
    assert (refusal.value.size_bytes, refusal.value.limit_bytes) == (1001, 1000)


@pytest.mark.parametrize(
    "said",
    [
        {"DELAY": "3"},
        {"TIMER_DELAY_SEC": "1"},
        {"TIMER_DELAY_MS": "1"},
        {"TIMER_DELIVER_MS": str(NOW_MS + 1)},
        {"TIMER_DELIVER_MS": "soon"},
        {"__REF": "17"},
    ],
)
def test_messages_that_need_more_than_an_append_are_refused(said):
    with pytest.raises(IllegalMessage, match=next(iter(said))):
        arrive(make_queue_batch("T", 0, [b"a", b"b"], properties=[{}, said]))


@pytest.mark.parametrize(
    "said", [{"DELAY": "0"}, {"TIMER_DELIVER_MS": str(NOW_MS)}, {"MY__REF": "1"}, {"x": "DELAY"}, {"MYDELAY": "5"}]
)
def test_similar_properties_and_bodies_are_accepted(said):
    assert bodies_in(arrive(make_queue_batch("T", 0, [b"DELAY\x015\x02"], properties=[said]))[0]) == [b"DELAY\x015\x02"]


def test_records_for_a_topic_with_lanes_go_to_the_lane_of_their_priority():
    assert [part.queue.id for part in arrive(make_queue_batch("L", 1, [b"a"]))] == [4]
    words = ["low", None, "high", "middle", "high", "low"]
    said = [{"PRIORITY": word} if word else {} for word in words]
    parts = arrive(make_queue_batch("L", 1, [b"%d" % number for number in range(6)], properties=said))
    assert [(part.queue, bodies_in(part)) for part in parts] == [
        (Queue("L", 3), [b"2", b"4"]),
        (Queue("L", 4), [b"1", b"3"]),
        (Queue("L", 5), [b"0", b"5"]),
    ]
    assert all(int(part.sizes.sum()) == len(part.data) for part in parts)
    with pytest.raises(IllegalMessage, match="'urgent'"):
        arrive(make_queue_batch("L", 1, [b"a"], properties=[{"PRIORITY": "urgent"}]))


def test_without_lanes_a_priority_is_an_ordinary_property():
    assert arrive(make_queue_batch("T", 1, [b"a"], properties=[{"PRIORITY": "low"}]))[0].queue == Queue("T", 1)


def test_a_born_host_that_does_not_fit_the_record_is_not_written():
    given = make_queue_batch("T", 1, [b"a"])
    (part,) = arrive(given, born_host=bytes(20))
    assert bytes(part.data) == bytes(given.data)

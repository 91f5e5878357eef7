"""The official Java clients, old and new, against the platform."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import pytest
from tests.interop.java import SETTLE_S, ClientError, Consumer, JavaClient, Mode, Producer, ReceivedMessage
from tests.interop.mqadmin import Mqadmin
from tests.interop.platforms import Platform
from tests.support.wait import wait_until

# A client that lost a notification catches up half a minute later, possibly several times in a test.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture
def lite_pull(client_is_newer: bool) -> None:
    if client_is_newer:
        pytest.skip("lite pull of 5.x sends request 361, which brokers of 4.9 do not know")


def numbered(count: int, *, start: int = 0) -> list[str]:
    return [f"message {number}" for number in range(start, start + count)]


def bodies(seen: Sequence[ReceivedMessage]) -> list[str]:
    return [message.body for message in seen]


def places(seen: Sequence[ReceivedMessage]) -> set[tuple[int, int]]:
    return {(message.queue_id, message.queue_offset) for message in seen}


def settle(consumers: Sequence[Consumer], counts: Sequence[int]) -> None:
    """Wait until the consumers have these numbers of queues, in any distribution."""
    wait_until(lambda: sorted(len(one.queues()) for one in consumers) == sorted(counts), within_s=SETTLE_S)
    together = [queue for one in consumers for queue in one.queues()]
    assert len(together) == len(set(together)), "a queue has two readers"


def wait_for_all(readers: Sequence[Consumer], wanted: Iterable[str]) -> None:
    """Wait until every message was received by a consumer; a queue that moves may deliver one twice."""

    def missing() -> set[str]:
        for reader in readers:
            reader.drain()
        return set(wanted) - {body for reader in readers for body in bodies(reader.seen)}

    wait_until(lambda: not missing(), within_s=SETTLE_S)


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_each_message_arrives_once_and_unchanged(mode: Mode, java: JavaClient, producer: Producer, topic: str) -> None:
    messages = [
        {
            "body": f"第 {n} 条 🚀",
            "tags": "TagA",
            "keys": f"{topic}-{n} more",
            "properties": {"城市": "北京", "n": f"{n}"},
        }
        for n in range(20)
    ]
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        sent = producer.send(topic, messages, mode=mode)
        seen = consumer.receive(20)
    assert Counter(bodies(seen)) == Counter(str(message["body"]) for message in messages)
    for message in seen:
        number = message.properties["n"]
        assert message.body == f"第 {number} 条 🚀"
        assert (message.topic, message.tags, message.keys) == (topic, "TagA", f"{topic}-{number} more")
        assert message.properties["城市"] == "北京"
    if mode != "oneway":
        assert {(one.queue_id, one.queue_offset) for one in sent} == places(seen)
        assert {one.msg_id for one in sent} == {message.msg_id for message in seen}
        assert {one.offset_msg_id for one in sent} == {message.offset_msg_id for message in seen}


def test_a_batch_is_stored_as_adjacent_single_messages(
    java: JavaClient, producer: Producer, client_is_newer: bool, topic: str
) -> None:
    messages = [{"body": body, "tags": "TagA", "keys": f"{topic}-key"} for body in numbered(10)]
    [sent] = producer.send(topic, messages, mode="batch")
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        seen = sorted(consumer.receive(10), key=lambda message: message.queue_offset)
    assert bodies(seen) == numbered(10)
    first = sent.queue_offset
    assert [(m.queue_id, m.queue_offset) for m in seen] == [(sent.queue_id, first + n) for n in range(10)]
    if not client_is_newer:
        # A 5.x client also gives an id to the whole batch, and a 4.9 broker stores that id instead of each message's
        # own.
        assert [message.msg_id for message in seen] == sent.msg_id.split(",")
    assert [message.offset_msg_id for message in seen] == sent.offset_msg_id.split(",")


def test_a_large_body_is_compressed_on_the_wire_and_restored_on_arrival(
    java: JavaClient, producer: Producer, topic: str
) -> None:
    body = "all work and no play " * 10_000
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        producer.send(topic, [body])
        assert bodies(consumer.receive(1)) == [body]


def test_a_send_to_an_unknown_topic_creates_it(java: JavaClient, producer: Producer) -> None:
    topic = java.name("unheard_of_" + java.version.replace(".", "_"))
    producer.send(topic, numbered(8))
    assert sum(bounds.max for bounds in producer.offsets(topic)) == 8
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        assert Counter(bodies(consumer.receive(8))) == Counter(numbered(8))


def test_orderly_consumers_see_each_queue_in_order(java: JavaClient, producer: Producer, topic: str) -> None:
    orders = [f"order-{n}" for n in range(6)]
    with ExitStack() as stack:
        readers = [stack.enter_context(java.push_consumer(f"{topic}_group", topic, orderly=True)) for _ in range(2)]
        settle(readers, [2, 2])
        steps = [{"body": f"{order} step {step}", "hash": order} for step in range(10) for order in orders]
        sent = producer.send(topic, steps)
        per_queue = Counter(one.queue_id for one in sent)
        for reader in readers:
            reader.receive(sum(per_queue[queue] for queue in reader.queues()))
    for order in orders:
        # All messages of an order are in one queue, and the consumer of that queue received its steps in order.
        histories = [[body for body in bodies(reader.seen) if body.startswith(f"{order} ")] for reader in readers]
        assert sorted(histories) == [[], [f"{order} step {step}" for step in range(10)]]
    for reader in readers:
        for queue in {message.queue_id for message in reader.seen}:
            offsets = [message.queue_offset for message in reader.seen if message.queue_id == queue]
            assert offsets == list(range(per_queue[queue]))


@pytest.mark.usefixtures("lite_pull")
def test_lite_pull_consumers_share_the_queues(java: JavaClient, producer: Producer, topic: str) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(java.lite_pull_consumer(f"{topic}_group", topic)) for _ in range(2)]
        settle(readers, [2, 2])
        producer.send(topic, numbered(20))
        wait_for_all(readers, numbered(20))


@pytest.mark.usefixtures("lite_pull")
def test_lite_pull_reads_a_queue_from_the_offset_of_a_seek(java: JavaClient, producer: Producer, topic: str) -> None:
    sent = producer.send(topic, [{"body": body, "hash": "one queue"} for body in numbered(10)])
    options = {"queueId": sent[0].queue_id, "offset": 7}
    with java.lite_pull_consumer(f"{topic}_group", topic, **options) as reader:
        assert bodies(reader.receive(3)) == numbered(3, start=7)


def test_a_group_shares_the_messages_without_duplicates(java: JavaClient, producer: Producer, topic: str) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(java.push_consumer(f"{topic}_group", topic)) for _ in range(2)]
        settle(readers, [2, 2])
        sent = producer.send(topic, numbered(40))
        per_queue = Counter(one.queue_id for one in sent)
        for reader in readers:
            mine = reader.queues()
            seen = reader.receive(sum(per_queue[queue] for queue in mine))
            assert {message.queue_id for message in seen} == mine
    assert Counter(body for reader in readers for body in bodies(reader.seen)) == Counter(numbered(40))


def test_broadcast_delivers_everything_to_every_consumer(java: JavaClient, producer: Producer, topic: str) -> None:
    with ExitStack() as stack:
        start = [java.push_consumer(f"{topic}_group", topic, model="BROADCASTING") for _ in range(2)]
        readers = [stack.enter_context(reader) for reader in start]
        producer.send(topic, numbered(20))
        for reader in readers:
            assert Counter(bodies(reader.receive(20))) == Counter(numbered(20))
            assert len(reader.queues()) == 4


def test_a_consumer_receives_only_its_subscribed_tags(java: JavaClient, producer: Producer, topic: str) -> None:
    # "Aa" and "BB" have the same hash, so only the client can filter them; the last message proves that all were
    # passed.
    tags = ["TagA", "TagB", "TagC", None, "Aa", "BB"]
    messages = [{"body": f"{tag} {n}", "tags": tag, "hash": "one queue"} for n in range(5) for tag in tags]
    with (
        java.push_consumer(f"{topic}_two", topic, expression="TagA || TagB") as two,
        java.push_consumer(f"{topic}_alike", topic, expression="Aa") as alike,
    ):
        producer.send(topic, [*messages, {"body": "end", "tags": "TagA", "hash": "one queue"}])
        assert Counter(bodies(two.receive(11))) == Counter([f"Tag{x} {n}" for x in "AB" for n in range(5)] + ["end"])
        assert Counter(bodies(alike.receive(5))) == Counter(f"Aa {n}" for n in range(5))


def test_no_message_is_missed_while_consumers_join_and_leave(java: JavaClient, producer: Producer, topic: str) -> None:
    with ExitStack() as stack:
        first, second, third = (java.push_consumer(f"{topic}_group", topic) for _ in range(3))
        stack.enter_context(first)
        stack.enter_context(third)
        settle([first, second, third], [2, 1, 1])
        producer.send(topic, numbered(20))
        second.receive(1)
        second.stop()
        producer.send(topic, numbered(20, start=20))
        settle([first, third], [2, 2])
        producer.send(topic, numbered(20, start=40))
        with java.push_consumer(f"{topic}_group", topic) as fourth:
            settle([first, third, fourth], [2, 1, 1])
            producer.send(topic, numbered(20, start=60))
            wait_for_all([first, third, fourth], set(numbered(80)) - set(bodies(second.seen)))


def test_a_group_continues_at_its_committed_offset(java: JavaClient, producer: Producer, topic: str) -> None:
    producer.send(topic, numbered(8))
    with java.push_consumer(f"{topic}_group", topic) as before:
        before.receive(8)
    producer.send(topic, numbered(8, start=8))
    with java.push_consumer(f"{topic}_group", topic) as after:
        assert Counter(bodies(after.receive(8))) == Counter(numbered(8, start=8))


def test_a_new_group_starts_at_the_beginning_of_a_young_topic_even_with_from_last(
    java: JavaClient, producer: Producer, topic: str
) -> None:
    producer.send(topic, numbered(8))
    with java.push_consumer(f"{topic}_group", topic, **{"from": "CONSUME_FROM_LAST_OFFSET"}) as consumer:
        assert Counter(bodies(consumer.receive(8))) == Counter(numbered(8))


def test_a_message_that_the_handler_rejects_is_delivered_again(
    java: JavaClient, producer: Producer, topic: str
) -> None:
    # The first heartbeat of a group creates its retry topic, too late for the first consumer to find it at once.
    java.push_consumer(f"{topic}_group", topic).stop()
    with java.push_consumer(f"{topic}_group", topic, refusals=1) as consumer:
        [sent] = producer.send(topic, [{"body": "not yet", "tags": "TagA", "keys": "key"}])
        first, again = consumer.receive(2)
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)
    for seen in (first, again):
        assert (seen.topic, seen.body, seen.tags, seen.keys) == (topic, "not yet", "TagA", "key")
        assert seen.msg_id == sent.msg_id
    assert again.properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id


def test_a_reset_by_time_rewinds_running_consumers(
    java: JavaClient, producer: Producer, mqadmin: Mqadmin, platform: Platform, topic: str
) -> None:
    group = f"{topic}_group"
    early = producer.send(topic, numbered(8))
    last = max(producer.view_by_id(topic, one.offset_msg_id).store_timestamp for one in early)
    wait_until(lambda: time.time() * 1000 > last + 50)
    late = producer.send(topic, numbered(8, start=8))
    between = min(producer.view_by_id(topic, one.offset_msg_id).store_timestamp for one in late)
    with java.push_consumer(group, topic) as consumer:
        consumer.receive(16)
        # The broker refuses a reset before the group has committed an offset for every queue.
        words = ["-g", group, "-t", topic, "-s", str(between)]
        wait_until(lambda: len(mqadmin.table("resetOffsetByTime", *words)) == 4, within_s=SETTLE_S)
        # A consumer of 4.9 waits ten seconds before it rewinds. Apache 5 resets a group only when its pull returns
        # without messages. Sparrow answers the pull of a 5.x consumer at once.
        is_at_once = platform.kind == "sparrow" and not java.version.startswith("4.")
        seen = consumer.receive(8, within_s=9 if is_at_once else 80)
        assert Counter(bodies(seen)) == Counter(numbered(8, start=8))


def test_messages_are_found_by_key_and_by_either_id(producer: Producer, topic: str) -> None:
    messages = [{"body": body, "keys": f"{topic}-{n} {topic}-all"} for n, body in enumerate(numbered(5))]
    sent = producer.send(topic, messages)
    wait_until(lambda: len(found_by_key(producer, topic, f"{topic}-all")) == 5)  # keys are indexed a moment later
    [found] = found_by_key(producer, topic, f"{topic}-3")
    assert (found.body, found.msg_id, found.offset_msg_id) == ("message 3", sent[3].msg_id, sent[3].offset_msg_id)
    assert Counter(bodies(found_by_key(producer, topic, f"{topic}-all"))) == Counter(numbered(5))
    assert producer.view_by_id(topic, sent[2].msg_id).body == "message 2"
    assert producer.view_by_id(topic, sent[2].offset_msg_id).body == "message 2"


def found_by_key(producer: Producer, topic: str, key: str) -> list[ReceivedMessage]:
    """Return the found messages; the client raises an error instead of returning an empty list."""
    try:
        return producer.query_by_key(topic, key)
    except ClientError as error:
        if "no message" not in str(error):
            raise
        return []


def test_a_queue_reports_its_bounds_and_the_offset_of_a_time(producer: Producer, topic: str) -> None:
    stamps: list[int] = []
    for body in numbered(3):
        # Brokers answer differently for a time between two messages; for a message's own store time they agree.
        wait_until(lambda: not stamps or time.time() * 1000 > stamps[-1] + 2)
        [sent] = producer.send(topic, [{"body": body, "hash": "one queue"}])
        stamps.append(producer.view_by_id(topic, sent.offset_msg_id).store_timestamp)
    for offset, stamp in enumerate(stamps):
        for bounds in producer.offsets(topic, timestamp=stamp):
            if bounds.queue_id == sent.queue_id:
                assert (bounds.min, bounds.max, bounds.at_time) == (0, 3, offset)
                assert bounds.earliest_store_time == stamps[0]
            else:
                assert (bounds.min, bounds.max, bounds.at_time) == (0, 0, 0)
                assert bounds.earliest_store_time == -1

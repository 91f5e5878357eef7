"""Official Java clients: transactions, delays, SQL filters, dead letters, requests, order and traces."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.interop.java import SETTLE_S, ClientError, Consumer, JavaClient, Producer, ReceivedMessage, java_client
from tests.interop.official import Kit
from tests.interop.platforms import Platform
from tests.support.wait import wait_until

from sparrow.client import Admin, trace_records
from sparrow.client.trace_records import ConsumeEndTrace, ConsumeStartTrace, PublishTrace, TraceRecord
from sparrow.model.errors import UnknownTopic
from sparrow.model.protocol import TRACE_TOPIC

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ASKED_S = 60
"""Brokers send a check-back within seconds after a producer's heartbeat, which may take half a minute."""
NOT_ASKED_S = 4
"""Longer than Sparrow's transaction timeout plus its check interval."""

TRACED_S = 20
"""5.x clients buffer traces for up to five seconds."""


def bodies(seen: Sequence[ReceivedMessage]) -> list[str]:
    return [message.body for message in seen]


def later(body: str, *answers: str) -> dict[str, object]:
    """Return a half message whose transaction ends only by a check-back."""
    return {"body": body, "tags": "TagA", "keys": body, "properties": {"answers": " ".join(answers)}}


# -- transactions -----------------------------------------------------------------------------------------------------


def test_a_committed_message_is_delivered_and_a_rolled_back_one_is_not(java: JavaClient, topic: str) -> None:
    with (
        java.push_consumer(f"{topic}_group", topic) as consumer,
        java.producer(f"{topic}_producers", transactional=True) as producer,
    ):
        consumer.queues(4)
        refused = producer.send_in_transaction(topic, {"body": "not paid"}, "ROLLBACK_MESSAGE")
        message = {"body": "paid", "tags": "TagA", "keys": "k", "properties": {"n": "1"}}
        sent = producer.send_in_transaction(topic, message, "COMMIT_MESSAGE")
        assert (sent.status, refused.status) == ("SEND_OK", "SEND_OK")
        [seen] = consumer.receive(1)
    assert (seen.topic, seen.body, seen.tags, seen.keys, seen.properties["n"]) == (topic, "paid", "TagA", "k", "1")
    assert (seen.msg_id, seen.queue_id) == (sent.msg_id, sent.queue_id)
    assert bodies(consumer.seen) == ["paid"]


def test_check_backs_repeat_until_the_producer_knows_the_state(java: JavaClient, topic: str) -> None:
    with (
        java.push_consumer(f"{topic}_group", topic) as consumer,
        java.producer(f"{topic}_producers", transactional=True) as producer,
    ):
        consumer.queues(4)
        for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"):
            producer.send_in_transaction(topic, {"body": f"known: {state}"}, state)
        states = {
            "paid": ["COMMIT_MESSAGE"],
            "not paid": ["ROLLBACK_MESSAGE"],
            "paid late": ["UNKNOW", "COMMIT_MESSAGE"],
        }
        ids = {
            body: producer.send_in_transaction(topic, later(body, *answers), "UNKNOW").msg_id
            for body, answers in states.items()
        }
        asked = producer.check_backs(4, within_s=ASKED_S)
        assert Counter(bodies(asked)) == {body: len(answers) for body, answers in states.items()}
        for message in asked:
            assert (message.topic, message.msg_id, message.tags) == (topic, ids[message.body], "TagA")
        consumer.receive(3)
        assert producer.check_backs(1, within_s=NOT_ASKED_S) == [], "every transaction must have ended"
    assert sorted(bodies(consumer.seen)) == ["known: COMMIT_MESSAGE", "paid", "paid late"]
    assert {ids[message.body] == message.msg_id for message in consumer.seen if message.body in ids} == {True}


def test_another_producer_of_the_group_answers_check_backs_of_a_dead_one(
    kit: Kit, platform: Platform, java: JavaClient, topic: str, tmp_path: Path
) -> None:
    group = f"{topic}_producers"
    with java_client(kit, platform.name_server, tmp_path) as doomed:
        with doomed.producer(group, transactional=True) as first:
            sent = first.send_in_transaction(topic, later("orphan", "COMMIT_MESSAGE"), "UNKNOW")
            doomed.kill()
    with (
        java.push_consumer(f"{topic}_group", topic) as consumer,
        java.producer(group, transactional=True) as second,
    ):
        assert consumer.drain() == []
        # A producer sends heartbeats only to brokers to which it has sent a message.
        second.send_in_transaction(topic, {"body": "own"}, "ROLLBACK_MESSAGE")
        [orphan] = second.check_backs(1, within_s=ASKED_S)
        assert (orphan.topic, orphan.body, orphan.msg_id) == (topic, "orphan", sent.msg_id)
        assert [message.msg_id for message in consumer.receive(1)] == [sent.msg_id]


# -- delays -----------------------------------------------------------------------------------------------------------


def test_a_message_with_a_delay_level_is_delivered_after_its_delay(
    java: JavaClient, producer: Producer, topic: str
) -> None:
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        consumer.queues(4)
        begun_ms = time.time() * 1000
        [sent, _] = producer.send(topic, [{"body": "late", "tags": "TagA", "delayLevel": 1}, "at once"])
        at_once, late = consumer.receive(2)
        assert (at_once.body, late.body) == ("at once", "late")
        assert (late.topic, late.tags, late.msg_id) == (topic, "TagA", sent.msg_id)
        assert late.queue_id == sent.queue_id
        assert late.store_timestamp >= begun_ms + 1_000
        assert time.time() * 1000 >= begun_ms + 1_000


def test_a_message_is_delivered_at_its_time_and_not_before(
    java: JavaClient, producer: Producer, topic: str, kit: Kit
) -> None:
    if kit.version.startswith("4."):
        pytest.skip("clients of 4.9 know only levels")
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        consumer.queues(4)
        begun_ms = int(time.time() * 1000)
        times = {"at a time": begun_ms + 2_500, "after a while": begun_ms + 1_500}
        sent = producer.send(
            topic,
            [
                {"body": "at a time", "deliverTimeMs": times["at a time"]},
                {"body": "after a while", "delayTimeMs": 1_500},
                {"body": "long ago", "deliverTimeMs": begun_ms - 60_000},
            ],
        )
        seen = consumer.receive(3)
        assert bodies(seen) == ["long ago", "after a while", "at a time"]
        assert {message.msg_id for message in seen} == {one.msg_id for one in sent}
        for message in seen[1:]:
            assert message.topic == topic
            assert message.store_timestamp >= times[message.body], "the message was in its queue before it was due"
        assert time.time() * 1000 >= times["at a time"]


# -- filters ----------------------------------------------------------------------------------------------------------


def test_an_sql_expression_filters_messages_by_their_properties(
    java: JavaClient, producer: Producer, topic: str
) -> None:
    sql = "(age BETWEEN 20 AND 29 AND color IN ('red', 'blue')) OR TAGS = 'TagB' OR special IS NOT NULL"
    with java.push_consumer(f"{topic}_group", topic, sql=sql) as consumer:
        consumer.queues(4)
        producer.send(
            topic,
            [
                {"body": "young", "properties": {"age": "19", "color": "red"}},
                {"body": "red", "properties": {"age": "20", "color": "red"}},
                {"body": "green", "properties": {"age": "20", "color": "green"}},
                {"body": "blue", "properties": {"age": "29", "color": "blue"}},
                {"body": "old", "properties": {"age": "30", "color": "blue"}},
                {"body": "no number", "properties": {"age": "x", "color": "blue"}},
                {"body": "tag", "tags": "TagB"},
                {"body": "special", "properties": {"special": "yes"}},
                "nothing",
            ],
        )
        # One message to each queue proves that all earlier ones were passed.
        producer.send(topic, [{"body": f"end {n}", "tags": "TagB"} for n in range(4)])
        consumer.receive(8)
    assert sorted(bodies(consumer.seen)) == ["blue", "end 0", "end 1", "end 2", "end 3", "red", "special", "tag"]


@pytest.mark.parametrize("sql", ["age > 5 AND", "color = red'"])
def test_a_consumer_with_an_invalid_expression_does_not_start(java: JavaClient, topic: str, sql: str) -> None:
    with pytest.raises(ClientError, match="MQClientException: CODE: 23 "):
        java.push_consumer(f"{topic}_group", topic, sql=sql)


# -- dead letters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1])
def test_a_message_rejected_too_often_becomes_a_dead_letter(
    java: JavaClient, producer: Producer, platform: Platform, topic: str, retries: int
) -> None:
    group = f"{topic}_group"
    # The first heartbeat of a group creates its retry topic, too late for the first consumer to find it at once.
    java.push_consumer(group, topic).stop()
    with java.push_consumer(group, topic, refusals=99, refusalLevel=1, retriesMax=retries) as consumer:
        consumer.queues(4)
        [sent] = producer.send(topic, [{"body": "bad", "tags": "TagA", "keys": "k", "properties": {"n": "1"}}])
        seen = consumer.receive(retries + 1)
        assert [message.reconsume_times for message in seen] == list(range(retries + 1))
        with Admin(platform.name_server) as admin:
            wait_until(lambda: len(admin.dead_letters(group)) == 1, within_s=SETTLE_S)
            [letter] = admin.dead_letters(group)
        assert (letter.topic, letter.body, letter.unique_key) == (topic, b"bad", sent.msg_id)
        assert (letter.tags, letter.keys, letter.properties["n"]) == ("TagA", ["k"], "1")
        assert letter.properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id
        assert consumer.drain() == []


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_gets_its_reply_or_times_out(java: JavaClient, producer: Producer, topic: str) -> None:
    with java.push_consumer(f"{topic}_group", topic, replies=True) as consumer:
        consumer.queues(4)
        for text in ("abc", "x" * 20_000):
            assert producer.request(topic, text) == text.upper()
        assert bodies(consumer.receive(2)) == ["abc", "x" * 20_000]
    with pytest.raises(ClientError, match="RequestTimeoutException"):
        producer.request(topic, "nobody listens", timeout_ms=500)


# -- order ------------------------------------------------------------------------------------------------------------


def test_queues_that_move_between_consumers_keep_their_order(java: JavaClient, producer: Producer, topic: str) -> None:
    group, sent = f"{topic}_group", Counter[int]()

    def put() -> None:
        for one in producer.send(topic, [f"message {number}" for number in range(8)]):
            sent[one.queue_id] += 1

    def put_until_shared(readers: Sequence[Consumer], counts: Sequence[int]) -> None:
        deadline = time.monotonic() + SETTLE_S
        while [len(reader.queues()) for reader in readers] != counts:
            assert time.monotonic() < deadline
            put()
        put()

    first = java.push_consumer(group, topic, orderly=True)
    put_until_shared([first], [4])
    with java.push_consumer(group, topic, orderly=True) as second:
        put_until_shared([first, second], [2, 2])
        first.stop()
        put_until_shared([second], [4])

        def together() -> dict[int, list[int]]:
            """Return the offsets of each queue in the order of their first arrival at any consumer."""
            seen = sorted(first.seen + second.seen, key=lambda message: message.nth)
            by_queue: dict[int, dict[int, None]] = {}
            for message in seen:
                by_queue.setdefault(message.queue_id, {})[message.queue_offset] = None
            return {queue: list(offsets) for queue, offsets in by_queue.items()}

        deadline = time.monotonic() + SETTLE_S
        while sum(map(len, together().values())) < sent.total() and time.monotonic() < deadline:
            second.drain(1, within_s=1)
        assert together() == {queue: list(range(count)) for queue, count in sent.items()}
    for reader in (first, second):
        assert reader.seen, "both consumers must have received messages"


# -- traces -----------------------------------------------------------------------------------------------------------


def test_traces_name_the_producer_of_a_message(java: JavaClient, platform: Platform, topic: str) -> None:
    senders = f"{topic}_producers"
    with java.producer(senders, trace=True) as producer:
        [sent] = producer.send(topic, [{"body": "a book", "tags": "TagA", "keys": "k"}])
        [published] = traces(platform, sent.msg_id, 1)
    assert isinstance(published, PublishTrace)
    assert (published.group, published.topic, published.tags, published.keys) == (senders, topic, "TagA", "k")
    assert (published.body_bytes, published.offset_id, published.is_success) == (6, sent.offset_msg_id, True)


def test_traces_name_the_consumer_of_a_message(
    java: JavaClient, producer: Producer, platform: Platform, topic: str
) -> None:
    group = f"{topic}_group"
    with java.push_consumer(group, topic, trace=True) as consumer:
        [sent] = producer.send(topic, [{"body": "a book", "keys": "k"}])
        consumer.receive(1)
        ended, begun = sorted(traces(platform, sent.msg_id, 2), key=lambda each: type(each).__name__)
    assert isinstance(begun, ConsumeStartTrace)
    assert isinstance(ended, ConsumeEndTrace)
    assert (begun.group, begun.keys, begun.retries) == (group, "k", 0)
    assert (ended.request_id, ended.is_success) == (begun.request_id, True)


def traces(platform: Platform, message_id: str, count: int) -> list[TraceRecord]:
    """Wait for this many traces of a message; clients buffer them for some seconds."""
    found: list[TraceRecord] = []

    def are_there() -> bool:
        try:
            messages = admin.find_by_key(TRACE_TOPIC, message_id)
        except UnknownTopic:  # the first trace creates the topic
            return False
        every = [each for message in messages for each in trace_records.decode(message.body)]
        found[:] = [each for each in every if each.message_id == message_id]
        return len(found) >= count

    with Admin(platform.name_server) as admin:
        wait_until(are_there, within_s=TRACED_S)
    return found

"""Delayed messages, transactions, requests, retries and traces: Sparrow's client against Apache's brokers."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from tests.interop.fresh_topic import TIMEOUT_S, FreshTopic, poll_exactly
from tests.support.recording_handlers import RecordingHandler, body_texts
from tests.support.wait import eventually

from sparrow.client import trace_records
from sparrow.client.aio import Admin
from sparrow.client.consume.retry import DeadLetter, RetryLater
from sparrow.client.trace_records import (
    ConsumeEndTrace,
    ConsumeStartTrace,
    PublishTrace,
    TraceRecord,
    TransactionEndTrace,
)
from sparrow.model.errors import RequestTimeout, SparrowError
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import TRACE_TOPIC
from sparrow.model.topic import Group
from sparrow.model.transaction import TransactionState
from sparrow.wire.codes import RequestCode

CHECK_S = 150
"""4.9 brokers check unfinished transactions once a minute."""


# -- delays -----------------------------------------------------------------------------------------------------------


async def test_a_message_with_a_delay_level_is_delivered_after_its_delay(fresh_topic: FreshTopic) -> None:
    async with fresh_topic.producer() as producer:
        begun = time.monotonic()
        await producer.send(fresh_topic.message("late"), delay_level=1)
        assert body_texts(await fresh_topic.read_all(1)) == ["late"]
        assert time.monotonic() - begun >= 0.9


async def test_a_message_is_delivered_at_its_time_unless_it_is_recalled(fresh_topic: FreshTopic) -> None:
    if fresh_topic.platform.is_apache_4:
        pytest.skip("RocketMQ 4 knows only levels")
    async with fresh_topic.producer() as producer:
        # Apache's brokers return recall handles, but refuse recalls until this setting is on.
        await producer.session.invoke(
            fresh_topic.platform.broker, RequestCode.UPDATE_BROKER_CONFIG, None, b"recallMessageEnable=true"
        )
        moment = datetime.now(UTC) + timedelta(seconds=3)
        recalled = await producer.send(fresh_topic.message("recalled"), deliver_at=moment)
        await producer.send(fresh_topic.message("at its time"), deliver_at=moment)
        await producer.send(fresh_topic.message("after a while"), deliver_after_ms=4_000)
        assert await producer.recall(recalled) == recalled.message_id
        with pytest.raises(SparrowError):
            await producer.recall("bm9uc2Vuc2U=")
    assert body_texts(await fresh_topic.read_all(2)) == ["at its time", "after a while"]
    assert datetime.now(UTC) >= moment


# -- transactions -----------------------------------------------------------------------------------------------------


async def test_a_transaction_is_committed_or_rolled_back(fresh_topic: FreshTopic) -> None:
    async with fresh_topic.producer(group=fresh_topic.group) as producer:
        async with producer.transaction(fresh_topic.message("paid", tags="t")) as sent:
            pass
        with pytest.raises(ValueError, match="oh"):
            async with producer.transaction(fresh_topic.message("not paid")):
                raise ValueError("oh")
        await producer.send_in_transaction(fresh_topic.message("by word"), lambda _: TransactionState.COMMIT)
        with pytest.raises(SparrowError):
            stranger = fresh_topic.producer(group="strangers")
            async with stranger:
                await stranger.send(fresh_topic.message("after them"))
                await stranger.end_transaction(
                    await producer.begin_transaction(fresh_topic.message("no")), TransactionState.COMMIT
                )
    messages = await fresh_topic.read_all(3)
    assert sorted(body_texts(messages)) == ["after them", "by word", "paid"]
    (paid,) = [message for message in messages if message.body == b"paid"]
    assert (paid.unique_key, paid.tags) == (sent.message_id, "t")


async def test_the_checker_answers_check_backs_of_an_unended_transaction(fresh_topic: FreshTopic, scale: str) -> None:
    if scale != "full":
        pytest.skip("brokers check back once a minute")
    asked: list[StoredMessage] = []

    def check(message: StoredMessage) -> TransactionState:
        asked.append(message)
        return TransactionState.COMMIT if message.body == b"paid" else TransactionState.ROLLBACK

    async with fresh_topic.producer(group=fresh_topic.group, transaction_checker=check) as producer:
        for body in ("paid", "not paid"):
            await producer.send_in_transaction(fresh_topic.message(body), lambda _: TransactionState.UNKNOWN)
        await eventually(lambda: len({message.body for message in asked}) == 2, within_s=CHECK_S)
        assert {message.topic for message in asked} == {fresh_topic.topic}
        assert body_texts(await fresh_topic.read_all(1)) == ["paid"]


# -- requests ---------------------------------------------------------------------------------------------------------


async def test_a_request_gets_its_reply(fresh_topic: FreshTopic) -> None:
    async with fresh_topic.producer(group="askers") as producer, fresh_topic.consumer() as consumer:
        async with fresh_topic.producer(group="answers") as answers:

            async def answer(message: StoredMessage) -> None:
                if message.body != b"silence":
                    await answers.reply(message, message.body.upper())

            await consumer.subscribe(fresh_topic.topic)
            await consumer.start(answer)
            replies = [
                await producer.request(fresh_topic.message(text), timeout_ms=20_000) for text in ("abc", "x" * 9_999)
            ]
            assert [reply.body.decode() for reply in replies] == ["ABC", "X" * 9_999]
            with pytest.raises(RequestTimeout):
                await producer.request(fresh_topic.message("silence"), timeout_ms=500)
            await consumer.close()


# -- retries and dead letters -----------------------------------------------------------------------------------------


async def test_a_message_is_retried_dead_lettered_and_redriven(fresh_topic: FreshTopic) -> None:
    handler = RecordingHandler()

    async def handle(message: StoredMessage) -> None:
        await handler(message)
        if len(handler.messages) == 1:
            raise RetryLater(1)
        if len(handler.messages) == 2:
            raise DeadLetter("no such customer: Ævar\n") from KeyError("7")  # Apache's brokers ignore the reason

    async with Admin(fresh_topic.name_servers) as admin, fresh_topic.consumer() as consumer:
        await consumer.subscribe(fresh_topic.topic)
        await consumer.start(handle, workers=1)
        await consumer.wait_for_assignment()
        (sent,) = await fresh_topic.send_all(["stubborn"])
        await eventually(lambda: len(handler.messages) == 2, within_s=TIMEOUT_S + 30)
        letters: list[StoredMessage] = []
        while not letters:
            letters = await admin.dead_letters(fresh_topic.group)
        (letter,) = letters
        assert (letter.topic, letter.body, letter.unique_key) == (fresh_topic.topic, b"stubborn", sent.message_id)
        assert await admin.redrive(fresh_topic.group, ids=[sent.message_id]) == 1
        await eventually(lambda: len(handler.messages) == 3, within_s=TIMEOUT_S)
        assert {(each.topic, each.unique_key) for each in handler.messages} == {(fresh_topic.topic, sent.message_id)}
        assert [each.reconsume_times for each in handler.messages] == [0, 1, 0]
        said = await admin.consume_directly(fresh_topic.group, sent.offset_id)
        assert said.consume_result == "CR_SUCCESS"


async def test_in_order_a_message_without_retries_left_is_dead_lettered(fresh_topic: FreshTopic) -> None:
    handler = RecordingHandler()

    async def handle(message: StoredMessage) -> None:
        await handler(message)
        if message.body == b"bad":
            raise RetryLater(1)

    await fresh_topic.send_all(["good", "bad", "also good"], queue_id=0)
    async with Admin(fresh_topic.name_servers) as admin, fresh_topic.consumer(retries_max=1) as consumer:
        await consumer.subscribe(fresh_topic.topic)
        await consumer.start(handle, orderly=True)
        await eventually(lambda: handler.texts == ["good", "bad", "bad", "also good"], within_s=TIMEOUT_S)
        letters: list[StoredMessage] = []
        while not letters:
            letters = await admin.dead_letters(fresh_topic.group)
        assert [(letter.topic, letter.body) for letter in letters] == [(fresh_topic.topic, b"bad")]
        assert letters[0].properties["DLQ_REASON"] == "the handler raised RetryLater"


# -- replay and traces ------------------------------------------------------------------------------------------------


async def test_one_queue_is_reset_to_an_offset(fresh_topic: FreshTopic) -> None:
    await fresh_topic.send_all([str(number) for number in range(5)], queue_id=0)
    await fresh_topic.wait_until_readable(5)
    async with Admin(fresh_topic.name_servers) as admin, fresh_topic.consumer() as consumer:
        await admin.create_group(Group(name=fresh_topic.group))
        await admin.reset_queue(fresh_topic.group, fresh_topic.queue(0), 3)
        await consumer.subscribe(fresh_topic.topic)
        assert body_texts(await poll_exactly(consumer, 2)) == ["3", "4"]


async def test_traces_are_found_by_the_ids_of_their_messages(fresh_topic: FreshTopic) -> None:
    async with (
        fresh_topic.producer(group=fresh_topic.group, trace=True) as producer,
        fresh_topic.consumer(trace=True) as consumer,
    ):
        handler = RecordingHandler()
        await consumer.subscribe(fresh_topic.topic)
        await consumer.start(handler)
        sent = await producer.send(fresh_topic.message("a book"))
        async with producer.transaction(fresh_topic.message("paid")) as half:
            pass
        await eventually(lambda: len(handler.messages) == 2, within_s=TIMEOUT_S)

    async def kinds(message_id: str, count: int) -> set[type[TraceRecord]]:
        found: list[TraceRecord] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            async with Admin(fresh_topic.name_servers) as admin:
                messages = await admin.find_by_key(TRACE_TOPIC, message_id)
            every = [each for message in messages for each in trace_records.decode(message.body)]
            found = [each for each in every if each.message_id == message_id]
        return {type(each) for each in found}

    assert await kinds(sent.message_id, 3) == {PublishTrace, ConsumeStartTrace, ConsumeEndTrace}
    assert await kinds(half.message_id, 4) == {PublishTrace, TransactionEndTrace, ConsumeStartTrace, ConsumeEndTrace}

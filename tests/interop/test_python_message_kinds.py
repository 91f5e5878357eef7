"""Delayed messages, transactions, requests, retries and traces: Sparrow's client against Apache's brokers."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from tests.interop.stage import PATIENCE_S, Stage, polled
from tests.support.consuming import Inbox, texts
from tests.support.waiting import eventually

from sparrow.client import trace_records
from sparrow.client.aio import Admin
from sparrow.client.retry import DeadLetter, RetryLater
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


async def test_a_message_with_a_delay_level_is_delivered_after_its_delay(stage: Stage) -> None:
    async with stage.producer() as producer:
        begun = time.monotonic()
        await producer.send(stage.message("late"), delay_level=1)
        assert texts(await stage.all(1)) == ["late"]
        assert time.monotonic() - begun >= 0.9


async def test_a_message_is_delivered_at_its_time_unless_it_is_recalled(stage: Stage) -> None:
    if stage.platform.is_apache_4:
        pytest.skip("RocketMQ 4 knows only levels")
    async with stage.producer() as producer:
        # Apache's brokers return recall handles, but refuse recalls until this setting is on.
        await producer.session.invoke(
            stage.platform.broker, RequestCode.UPDATE_BROKER_CONFIG, None, b"recallMessageEnable=true"
        )
        moment = datetime.now(UTC) + timedelta(seconds=3)
        recalled = await producer.send(stage.message("recalled"), deliver_at=moment)
        await producer.send(stage.message("at its time"), deliver_at=moment)
        await producer.send(stage.message("after a while"), deliver_after_ms=4_000)
        assert await producer.recall(recalled) == recalled.message_id
        with pytest.raises(SparrowError):
            await producer.recall("bm9uc2Vuc2U=")
    assert texts(await stage.all(2)) == ["at its time", "after a while"]
    assert datetime.now(UTC) >= moment


# -- transactions -----------------------------------------------------------------------------------------------------


async def test_a_transaction_is_committed_or_rolled_back(stage: Stage) -> None:
    async with stage.producer(group=stage.group) as producer:
        async with producer.transaction(stage.message("paid", tags="t")) as sent:
            pass
        with pytest.raises(ValueError, match="oh"):
            async with producer.transaction(stage.message("not paid")):
                raise ValueError("oh")
        await producer.send_in_transaction(stage.message("by word"), lambda _: TransactionState.COMMIT)
        with pytest.raises(SparrowError):
            stranger = stage.producer(group="strangers")
            async with stranger:
                await stranger.send(stage.message("after them"))
                await stranger.end_transaction(
                    await producer.begin_transaction(stage.message("no")), TransactionState.COMMIT
                )
    messages = await stage.all(3)
    assert sorted(texts(messages)) == ["after them", "by word", "paid"]
    (paid,) = [message for message in messages if message.body == b"paid"]
    assert (paid.unique_key, paid.tags) == (sent.message_id, "t")


async def test_the_checker_answers_check_backs_of_an_unended_transaction(stage: Stage, scale: str) -> None:
    if scale != "full":
        pytest.skip("brokers ask once a minute")
    asked: list[StoredMessage] = []

    def check(message: StoredMessage) -> TransactionState:
        asked.append(message)
        return TransactionState.COMMIT if message.body == b"paid" else TransactionState.ROLLBACK

    async with stage.producer(group=stage.group, transaction_checker=check) as producer:
        for body in ("paid", "not paid"):
            await producer.send_in_transaction(stage.message(body), lambda _: TransactionState.UNKNOWN)
        await eventually(lambda: len({message.body for message in asked}) == 2, within_s=CHECK_S)
        assert {message.topic for message in asked} == {stage.topic}
        assert texts(await stage.all(1)) == ["paid"]


# -- requests ---------------------------------------------------------------------------------------------------------


async def test_a_request_gets_its_reply(stage: Stage) -> None:
    async with stage.producer(group="askers") as producer, stage.consumer() as consumer:
        async with stage.producer(group="answers") as answers:

            async def answer(message: StoredMessage) -> None:
                if message.body != b"silence":
                    await answers.reply(message, message.body.upper())

            await consumer.subscribe(stage.topic)
            await consumer.start(answer)
            replies = [await producer.request(stage.message(text), timeout_ms=20_000) for text in ("abc", "x" * 9_999)]
            assert [reply.body.decode() for reply in replies] == ["ABC", "X" * 9_999]
            with pytest.raises(RequestTimeout):
                await producer.request(stage.message("silence"), timeout_ms=500)
            await consumer.close()


# -- retries and dead letters -----------------------------------------------------------------------------------------


async def test_a_message_is_retried_dead_lettered_and_redriven(stage: Stage) -> None:
    inbox = Inbox()

    async def handle(message: StoredMessage) -> None:
        await inbox(message)
        if len(inbox.messages) == 1:
            raise RetryLater(1)
        if len(inbox.messages) == 2:
            raise DeadLetter("no such customer: Ævar\n") from KeyError("7")  # Apache's brokers ignore the reason

    async with Admin(stage.name_servers) as admin, stage.consumer() as consumer:
        await consumer.subscribe(stage.topic)
        await consumer.start(handle, workers=1)
        await consumer.wait_for_assignment()
        (sent,) = await stage.put(["stubborn"])
        await eventually(lambda: len(inbox.messages) == 2, within_s=PATIENCE_S + 30)
        letters: list[StoredMessage] = []
        while not letters:
            letters = await admin.dead_letters(stage.group)
        (letter,) = letters
        assert (letter.topic, letter.body, letter.unique_key) == (stage.topic, b"stubborn", sent.message_id)
        assert await admin.redrive(stage.group, ids=[sent.message_id]) == 1
        await eventually(lambda: len(inbox.messages) == 3, within_s=PATIENCE_S)
        assert {(each.topic, each.unique_key) for each in inbox.messages} == {(stage.topic, sent.message_id)}
        assert [each.reconsume_times for each in inbox.messages] == [0, 1, 0]
        said = await admin.consume_directly(stage.group, sent.offset_id)
        assert said.consume_result == "CR_SUCCESS"


async def test_in_order_a_message_without_retries_left_is_dead_lettered(stage: Stage) -> None:
    inbox = Inbox()

    async def handle(message: StoredMessage) -> None:
        await inbox(message)
        if message.body == b"bad":
            raise RetryLater(1)

    await stage.put(["good", "bad", "also good"], queue_id=0)
    async with Admin(stage.name_servers) as admin, stage.consumer(retries_max=1) as consumer:
        await consumer.subscribe(stage.topic)
        await consumer.start(handle, orderly=True)
        await eventually(lambda: inbox.texts == ["good", "bad", "bad", "also good"], within_s=PATIENCE_S)
        letters: list[StoredMessage] = []
        while not letters:
            letters = await admin.dead_letters(stage.group)
        assert [(letter.topic, letter.body) for letter in letters] == [(stage.topic, b"bad")]
        assert letters[0].properties["DLQ_REASON"] == "the handler raised RetryLater"


# -- replay and traces ------------------------------------------------------------------------------------------------


async def test_one_queue_is_reset_to_an_offset(stage: Stage) -> None:
    await stage.put([str(number) for number in range(5)], queue_id=0)
    await stage.readable(5)
    async with Admin(stage.name_servers) as admin, stage.consumer() as consumer:
        await admin.create_group(Group(name=stage.group))
        await admin.reset_queue(stage.group, stage.queue(0), 3)
        await consumer.subscribe(stage.topic)
        assert texts(await polled(consumer, 2)) == ["3", "4"]


async def test_traces_are_found_by_the_ids_of_their_messages(stage: Stage) -> None:
    async with stage.producer(group=stage.group, trace=True) as producer, stage.consumer(trace=True) as consumer:
        inbox = Inbox()
        await consumer.subscribe(stage.topic)
        await consumer.start(inbox)
        sent = await producer.send(stage.message("a book"))
        async with producer.transaction(stage.message("paid")) as half:
            pass
        await eventually(lambda: len(inbox.messages) == 2, within_s=PATIENCE_S)

    async def kinds(message_id: str, count: int) -> set[type[TraceRecord]]:
        found: list[TraceRecord] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            async with Admin(stage.name_servers) as admin:
                messages = await admin.find_by_key(TRACE_TOPIC, message_id)
            every = [each for message in messages for each in trace_records.decode(message.body)]
            found = [each for each in every if each.message_id == message_id]
        return {type(each) for each in found}

    assert await kinds(sent.message_id, 3) == {PublishTrace, ConsumeStartTrace, ConsumeEndTrace}
    assert await kinds(half.message_id, 4) == {PublishTrace, TransactionEndTrace, ConsumeStartTrace, ConsumeEndTrace}

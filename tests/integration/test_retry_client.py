"""Messages whose handler fails: retry, dead letters, redrive, and direct consumption by an operator."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, queue_ref, running_platform_driver
from tests.support.recording_handlers import RecordingHandler, body_texts
from tests.support.wait import eventually, wait_until

from sparrow import client, clock
from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.client.aio.consume.send_back import RetrySender
from sparrow.client.consume.retry import DELAY_LEVEL_DEAD_LETTER, DeadLetter, RetryLater
from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.message import Message, StoredMessage
from sparrow.model.queue import PhysicalOffset
from sparrow.testing import RunningPlatform

QUICK_MS = 10
"""The commit interval. It is short because the tests wait for commits."""


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        await running.create_topic("T")
        yield running


@pytest.fixture
async def admin(driver: PlatformDriver) -> AsyncIterator[Admin]:
    async with Admin(driver.name_servers) as admin:
        yield admin


class Choosy(RecordingHandler):
    """A handler that stores each message and then calls a function, which may raise."""

    def __init__(self, choose: Callable[[StoredMessage], None]) -> None:
        super().__init__()
        self._choose = choose

    async def __call__(self, message: StoredMessage) -> None:
        await super().__call__(message)
        self._choose(message)


def burying(message: StoredMessage) -> None:
    raise DeadLetter


def later_once(message: StoredMessage) -> None:
    if not message.reconsume_times:
        raise RetryLater(1)


async def buried(driver: PlatformDriver, admin: Admin, *bodies: str, group: str = "readers") -> list[StoredMessage]:
    """Return the dead letters of a group whose handler rejects these messages."""
    async with Producer(driver.name_servers) as producer:
        await producer.send_batch([Message("T", body) for body in bodies])
    async with Consumer(driver.name_servers, group=group, commit_interval_ms=QUICK_MS) as consumer:
        await consumer.subscribe("T")
        await consumer.start(Choosy(burying), workers=1)
        await driver.wait_for_commit(len(bodies), group, "T")
    return await admin.dead_letters(group)


# -- handler outcomes -------------------------------------------------------------------------------------------------


async def test_retry_later_redelivers_after_the_delay_under_the_original_topic(driver: PlatformDriver) -> None:
    async with Consumer(driver.name_servers, group="readers", commit_interval_ms=QUICK_MS) as consumer:
        handler = Choosy(later_once)
        await consumer.subscribe("T")
        await consumer.start(handler)
        begun = time.monotonic()
        await driver.send("T", ["later"])
        await eventually(lambda: len(handler.messages) == 2)
        assert time.monotonic() - begun >= 1
        assert [(each.topic, each.body, each.reconsume_times) for each in handler.messages] == [
            ("T", b"later", 0),
            ("T", b"later", 1),
        ]
        assert handler.messages[0].unique_key == handler.messages[1].unique_key


async def test_dead_letter_raised_by_a_handler_takes_effect_at_once(driver: PlatformDriver, admin: Admin) -> None:
    assert await admin.dead_letters("readers") == []
    letters = await buried(driver, admin, "one", "two")
    assert body_texts(letters) == ["one", "two"]
    assert {(letter.topic, letter.reconsume_times) for letter in letters} == {("T", 1)}


async def test_message_with_used_up_retries_is_a_dead_letter(driver: PlatformDriver, admin: Admin) -> None:
    def always_later(message: StoredMessage) -> None:
        raise RetryLater(1)

    async with Consumer(driver.name_servers, group="readers", retries_max=1, commit_interval_ms=QUICK_MS) as consumer:
        handler = Choosy(always_later)
        await consumer.subscribe("T")
        await consumer.start(handler)
        await driver.send("T", ["never"])
        await eventually(lambda: len(handler.messages) == 2)
        await driver.wait_for_commit(1, "readers", "%RETRY%readers")
    letters = await admin.dead_letters("readers")
    assert [(letter.topic, letter.body, letter.reconsume_times) for letter in letters] == [("T", b"never", 2)]


async def test_first_failure_is_a_dead_letter_when_no_retries_are_allowed(driver: PlatformDriver, admin: Admin) -> None:
    def fails(message: StoredMessage) -> None:
        raise ValueError("oh")

    async with Consumer(driver.name_servers, group="readers", retries_max=0, commit_interval_ms=QUICK_MS) as consumer:
        await consumer.subscribe("T")
        await consumer.start(Choosy(fails))
        await driver.send("T", ["never"])
        await driver.wait_for_commit(1, "readers", "T")
    assert body_texts(await admin.dead_letters("readers")) == ["never"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_dead_letter_keeps_what_the_handler_raised(driver: PlatformDriver, admin: Admin, orderly: bool) -> None:
    def fails(message: StoredMessage) -> None:
        if message.body == b"unknown":
            raise DeadLetter("no such customer")
        raise ValueError("12a is no number \x02 " + "x" * 5000)

    await driver.send("T", ["unknown", "12a"])
    async with Consumer(driver.name_servers, group="readers", retries_max=0, commit_interval_ms=QUICK_MS) as consumer:
        await consumer.subscribe("T")
        await consumer.start(Choosy(fails), orderly=orderly)
        await driver.wait_for_commit(2, "readers", "T")
        client_id = consumer.session.client_id
    letters = {letter.body: letter.properties for letter in await admin.dead_letters("readers")}
    unknown, number = letters[b"unknown"], letters[b"12a"]
    assert unknown["DLQ_REASON"] == "no such customer"
    assert "DLQ_ERROR_TYPE" not in unknown
    assert number["DLQ_REASON"].startswith("12a is no number")
    assert len(number["DLQ_REASON"].encode()) == 512
    assert number["DLQ_ERROR_TYPE"] == "ValueError"
    assert "in fails\n" in number["DLQ_TRACEBACK"]
    assert len(number["DLQ_TRACEBACK"].encode()) <= 2048
    for letter in (unknown, number):
        assert (letter["DLQ_CONSUMER"], letter["DLQ_ATTEMPT"]) == (client_id, "1")


async def test_retry_knows_its_last_failure_and_a_redriven_message_does_not(
    driver: PlatformDriver, admin: Admin
) -> None:
    def fails_twice(message: StoredMessage) -> None:
        if message.reconsume_times == 0:
            raise RetryLater(1) from KeyError("first")
        if "DLQ_REASON" in message.properties:
            raise DeadLetter from KeyError("second")

    async with Consumer(driver.name_servers, group="readers", commit_interval_ms=QUICK_MS) as consumer:
        handler = Choosy(fails_twice)
        await consumer.subscribe("T")
        await consumer.start(handler)
        await driver.send("T", ["hard"])
        await eventually(lambda: len(handler.messages) == 2)
        assert handler.messages[1].properties["DLQ_REASON"] == "'first'"
        assert "DLQ_TRACEBACK" not in handler.messages[1].properties, "16 retries would store it 16 times"
        await driver.wait_for_commit(1, "readers", "%RETRY%readers")
        (letter,) = await admin.dead_letters("readers")
        assert (letter.properties["DLQ_REASON"], letter.properties["DLQ_ATTEMPT"]) == ("'second'", "2")
        assert await admin.redrive("readers", everything=True) == 1
        await eventually(lambda: len(handler.messages) == 3)
        assert [name for name in handler.messages[2].properties if name.startswith("DLQ_")] == []


async def test_broadcast_consumer_drops_dead_letters(driver: PlatformDriver, admin: Admin) -> None:
    async with Consumer(driver.name_servers, group="readers", mode="broadcast") as consumer:
        handler = Choosy(burying)
        await consumer.subscribe("T")
        await consumer.start(handler)
        await driver.send("T", ["one", "two"])
        await eventually(lambda: consumer.positions() == {queue_ref("T"): 2})
        assert sorted(handler.texts) == ["one", "two"]
    assert await admin.dead_letters("readers") == []


async def test_message_whose_record_is_deleted_is_sent_back_by_the_consumer(
    driver: PlatformDriver, admin: Admin
) -> None:
    await driver.send("T", ["old"])
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        (message,) = await consumer.poll(1, timeout_ms=10_000)
        await eventually(
            lambda: consumer.session.cached_route("%RETRY%readers") or consumer._membership.on_members_changed()
        )
        message.physical_offset = PhysicalOffset(1 << 40)
        giving_back = RetrySender(consumer.session, "readers", retries_max=3)
        assert await giving_back.send_back(queue_ref("T"), message, 1, ValueError("oh"))
        (again,) = await consumer.poll(1, timeout_ms=10_000)
        assert (again.topic, again.body, again.reconsume_times) == ("T", b"old", 1)
        assert await giving_back.send_back(queue_ref("T"), message, DELAY_LEVEL_DEAD_LETTER, ValueError("oh"))
    (letter,) = await admin.dead_letters("readers")
    assert (letter.topic, letter.body, letter.reconsume_times) == ("T", b"old", 4)
    assert (letter.properties["DLQ_REASON"], letter.properties["DLQ_ATTEMPT"]) == ("oh", "1")


# -- orderly consumers ------------------------------------------------------------------------------------------------


async def test_orderly_queue_waits_for_the_delay_of_its_handler(driver: PlatformDriver) -> None:
    await driver.send("T", ["one", "two"])
    async with Consumer(driver.name_servers, group="readers", commit_interval_ms=QUICK_MS) as consumer:
        handler = Choosy(later_once)
        await consumer.subscribe("T")
        begun = time.monotonic()
        await consumer.start(handler, orderly=True)
        await eventually(lambda: handler.texts == ["one", "one", "two", "two"])
        assert time.monotonic() - begun >= 2


async def test_orderly_message_becomes_a_dead_letter_after_its_retries_and_the_queue_continues(
    driver: PlatformDriver, admin: Admin
) -> None:
    def bad_fails(message: StoredMessage) -> None:
        if message.body == b"bad":
            raise RetryLater(1)

    await driver.send("T", ["good", "bad", "also good"])
    async with Consumer(driver.name_servers, group="readers", retries_max=1, commit_interval_ms=QUICK_MS) as consumer:
        handler = Choosy(bad_fails)
        await consumer.subscribe("T")
        await consumer.start(handler, orderly=True)
        await eventually(lambda: handler.texts == ["good", "bad", "bad", "also good"])
        await driver.wait_for_commit(3, "readers", "T")
    (letter,) = await admin.dead_letters("readers")
    assert (letter.topic, letter.body, letter.reconsume_times) == ("T", b"bad", 2)
    assert letter.properties["RETRY_TOPIC"] == "T"


async def test_orderly_handler_may_make_a_batch_dead_letters_at_once(driver: PlatformDriver, admin: Admin) -> None:
    seen: list[list[str]] = []

    async def handle(messages: list[StoredMessage]) -> None:
        seen.append(body_texts(messages))
        if messages[0].body == b"0":
            raise DeadLetter

    await driver.send("T", [str(number) for number in range(6)])
    async with Consumer(driver.name_servers, group="readers", commit_interval_ms=QUICK_MS) as consumer:
        await consumer.subscribe("T")
        await consumer.start(handle, orderly=True, batch=3)
        await eventually(lambda: seen == [["0", "1", "2"], ["3", "4", "5"]])
        await driver.wait_for_commit(6, "readers", "T")
    assert body_texts(await admin.dead_letters("readers")) == ["0", "1", "2"]


async def test_orderly_queue_in_its_retry_delay_is_released_at_once(driver: PlatformDriver) -> None:
    def much_later(message: StoredMessage) -> None:
        raise RetryLater(18)

    await driver.send("T", ["one"])
    async with Consumer(driver.name_servers, group="readers", commit_interval_ms=QUICK_MS) as consumer:
        handler = Choosy(much_later)
        await consumer.subscribe("T")
        await consumer.start(handler, orderly=True)
        await eventually(lambda: handler.texts == ["one"])
        await consumer.unsubscribe("T")
        await eventually(lambda: not [queue for queue in consumer.queues if queue.topic == "T"])
    assert handler.texts == ["one"]
    assert await driver.committed_offset("readers", "T") in (None, 0)


# -- operators --------------------------------------------------------------------------------------------------------


async def test_dead_letters_can_be_read_as_a_table(driver: PlatformDriver, admin: Admin) -> None:
    with pytest.raises(UnknownTopic):
        await admin.dead_letter_table("readers")
    await buried(driver, admin, "one", "two")
    table = await admin.dead_letter_table("readers", columns=["body", "reconsume_times"])
    assert table.to_pydict() == {"body": [b"one", b"two"], "reconsume_times": [1, 1]}


async def test_redriven_letters_reach_every_group_of_their_topic(driver: PlatformDriver, admin: Admin) -> None:
    letters = await buried(driver, admin, "one", "two")
    async with (
        Consumer(driver.name_servers, group="readers") as readers,
        Consumer(driver.name_servers, group="others", consume_from="last") as others,
    ):
        inboxes = RecordingHandler(), RecordingHandler()
        for consumer, handler in zip((readers, others), inboxes, strict=True):
            await consumer.subscribe("T")
            await consumer.start(handler)
            await consumer.wait_for_assignment()
        assert await admin.redrive("readers", everything=True) == 2
        await eventually(lambda: [sorted(handler.texts) for handler in inboxes] == [["one", "two"]] * 2)
        for handler in inboxes:
            assert {each.unique_key for each in handler.messages} == {letter.unique_key for letter in letters}
            assert {each.reconsume_times for each in handler.messages} == {0}
    assert len(await admin.dead_letters("readers")) == 2


async def test_letters_may_be_redriven_for_one_group_only(driver: PlatformDriver, admin: Admin) -> None:
    await buried(driver, admin, "one")
    end = (await admin.topic_bounds("T"))[queue_ref("T")].end
    async with Consumer(driver.name_servers, group="readers") as readers:
        handler = RecordingHandler()
        await readers.subscribe("T")
        await readers.start(handler)
        assert await admin.redrive("readers", everything=True, to_group_only=True) == 1
        await eventually(lambda: handler.texts == ["one"])
        assert (handler.messages[0].topic, handler.messages[0].reconsume_times) == ("T", 0)
    assert (await admin.topic_bounds("T"))[queue_ref("T")].end == end


async def test_letters_are_selected_by_id_or_by_time(driver: PlatformDriver, admin: Admin) -> None:
    letters = await buried(driver, admin, "one", "two", "three")
    ids = [letter.unique_key or "" for letter in letters]
    assert await admin.redrive("readers", ids=[ids[0], ids[2]]) == 2
    assert await admin.redrive("readers", ids=[letters[1].properties["ORIGIN_MESSAGE_ID"]]) == 1
    assert await admin.redrive("readers", ids=["unknown"]) == 0
    assert await admin.redrive("readers", since=letters[0].store_ms) == 3
    assert await admin.redrive("readers", since=clock.now_ms() + 1_000) == 0


async def test_redrive_needs_exactly_one_selection(admin: Admin) -> None:
    with pytest.raises(Refused, match="select the dead letters"):
        await admin.redrive("readers")
    with pytest.raises(Refused, match="select the dead letters"):
        await admin.redrive("readers", since=0, everything=True)


async def test_operator_can_have_a_message_consumed_directly(driver: PlatformDriver, admin: Admin) -> None:
    async with (
        Producer(driver.name_servers) as producer,
        Consumer(driver.name_servers, group="readers", consume_from="last") as consumer,
    ):
        sent = await producer.send(Message("T", "again"))
        with pytest.raises(Refused, match="no consumer of group 'readers'"):
            await admin.consume_directly("readers", sent.offset_id)
        refusals: list[Exception] = [RetryLater(3), ValueError("oh")]

        def refuse(message: StoredMessage) -> None:
            if refusals:
                raise refusals.pop()

        handler = Choosy(refuse)
        await consumer.subscribe("T")
        await consumer.start(handler)
        await consumer.wait_for_assignment()
        said = [
            await admin.consume_directly("readers", sent.offset_id),
            await admin.consume_directly("readers", sent.message_id, topic="T"),
            await admin.consume_directly("readers", sent.offset_id, client_id=consumer.session.client_id),
        ]
        assert [each.consume_result for each in said] == ["CR_THROW_EXCEPTION", "CR_LATER", "CR_SUCCESS"]
        assert said[0].remark == "ValueError('oh')"
        assert handler.texts == ["again"] * 3


async def test_group_is_reset_by_name_by_time_and_by_offset(driver: PlatformDriver, admin: Admin) -> None:
    await driver.send("T", [str(number) for number in range(10)])
    assert await admin.reset_offsets("readers", "T", "last") == {queue_ref("T"): 10}
    assert await admin.reset_offsets("readers", "T", "first") == {queue_ref("T"): 0}
    await admin.reset_queue("readers", queue_ref("T"), 7)
    assert await driver.committed_offset("readers", "T") == 7
    async with Consumer(driver.name_servers, group="readers", commit_interval_ms=QUICK_MS) as consumer:
        handler = RecordingHandler()
        await consumer.subscribe("T")
        await consumer.start(handler, workers=1)
        await eventually(lambda: handler.texts == ["7", "8", "9"])
        await consumer.commit()
        await admin.reset_queue("readers", queue_ref("T"), 9)
        await eventually(lambda: handler.texts == ["7", "8", "9", "9"])
    for offset in (-1, 11):
        with pytest.raises(Refused, match="0 to 10"):
            await admin.reset_queue("readers", queue_ref("T"), offset)
    with pytest.raises(Refused, match="no queue 5"):
        await admin.reset_queue("readers", queue_ref("T", 5), 0)


def test_blocking_client_has_dead_letters_and_redrive(platform: RunningPlatform) -> None:
    seen: list[bytes] = []

    def handle(message: StoredMessage) -> None:
        seen.append(message.body)
        if len(seen) == 1:
            raise client.RetryLater(1)
        if len(seen) == 2:
            raise client.DeadLetter

    with (
        client.Producer(platform.name_servers) as producer,
        client.Admin(platform.name_servers) as admin,
        client.Consumer(platform.name_servers, group="readers", retries_max=5) as consumer,
    ):
        producer.send(Message("T", "stubborn"))
        consumer.subscribe("T")
        consumer.start(handle, workers=1)
        wait_until(lambda: admin.dead_letters("readers"))
        assert admin.redrive("readers", ids=[admin.dead_letters("readers")[0].unique_key or ""]) == 1
        wait_until(lambda: seen == [b"stubborn"] * 3)
        assert admin.dead_letter_table("readers", columns=["body"]).to_pydict() == {"body": [b"stubborn"]}

"""Transactions of a producer: commit, rollback, and check-back by the broker."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually, wait_until
from typer.testing import CliRunner

from sparrow import client
from sparrow.cli.main import app
from sparrow.client.aio import ClientSession, Consumer, Producer
from sparrow.model.errors import ConnectionLost, Refused
from sparrow.model.message import Message, StoredMessage
from sparrow.model.transaction import TransactionState
from sparrow.net.dispatcher import HandlerResult, RequestContext
from sparrow.testing import run_platform
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import CheckTransaction

IMPATIENT = {"transaction_timeout_ms": 0, "transaction_scan_ms": 10, "transaction_check_interval_ms": 20}
"""Settings of a broker that sends check-backs at once and repeats them soon."""


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        await running.create_topic("T")
        yield running


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path, **IMPATIENT) as running:
        await running.create_topic("T")
        yield running


@asynccontextmanager
async def reading(driver: PlatformDriver) -> AsyncIterator[RecordingHandler]:
    async with Consumer(driver.name_servers, group="readers") as consumer:
        handler = RecordingHandler()
        await consumer.subscribe("T")
        await consumer.start(handler)
        yield handler


def unfinished(driver: PlatformDriver) -> int:
    return driver.platform.broker.broker.transactions.count  # type: ignore[attr-defined, no-any-return]


class Oops(Exception):
    pass


async def test_message_is_delivered_when_its_block_ends(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers, group="shop") as producer, reading(driver) as handler:
        async with producer.transaction(Message("T", "paid", keys="order-7")) as sent:
            assert unfinished(driver) == 1
            assert handler.messages == []
        assert unfinished(driver) == 0
        await eventually(lambda: handler.texts == ["paid"])
        (message,) = handler.messages
        assert (message.unique_key, message.keys) == (sent.message_id, ["order-7"])


async def test_message_is_dropped_when_its_block_raises(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers, group="shop") as producer, reading(driver) as handler:
        with pytest.raises(Oops):
            async with producer.transaction(Message("T", "not paid")):
                raise Oops
        assert unfinished(driver) == 0
        await producer.send(Message("T", "after it"))
        await eventually(lambda: handler.texts == ["after it"])


async def test_cancelled_block_rolls_back(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers, group="shop") as producer:
        begun = asyncio.Event()

        async def work() -> None:
            async with producer.transaction(Message("T", "not paid")):
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert unfinished(driver) == 0


async def test_result_of_the_callback_decides_the_transaction(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers, group="shop", linger_ms=1) as producer, reading(driver) as handler:

        async def nothing(message: Message) -> None:
            assert message.body == b"by nothing"

        def raising(message: Message) -> None:
            raise Oops

        await producer.send_in_transaction(Message("T", "by nothing"), nothing)
        await producer.send_in_transaction(Message("T", "by its word"), lambda _: TransactionState.COMMIT)
        await producer.send_in_transaction(Message("T", "taken back"), lambda _: TransactionState.ROLLBACK)
        with pytest.raises(Oops):
            await producer.send_in_transaction(Message("T", "failed"), raising)
        with pytest.raises(TypeError, match="TransactionState"):
            await producer.send_in_transaction(Message("T", "unclear"), lambda _: True)
        assert unfinished(driver) == 0
        await eventually(lambda: handler.texts == ["by nothing", "by its word"])


async def test_unknown_state_is_resolved_by_a_check_back(impatient: PlatformDriver) -> None:
    asked: list[StoredMessage] = []

    async def check(message: StoredMessage) -> TransactionState:
        asked.append(message)
        return TransactionState.UNKNOWN if len(asked) == 1 else TransactionState.COMMIT

    async with (
        Producer(impatient.name_servers, group="shop", transaction_checker=check) as producer,
        reading(impatient) as handler,
    ):
        await producer.send_in_transaction(Message("T", "paid", tags="t"), lambda _: TransactionState.UNKNOWN)
        await eventually(lambda: handler.texts == ["paid"])
        assert len(asked) >= 2  # more if the broker was slow to process the result
        assert {(message.topic, message.body, message.tags) for message in asked} == {("T", b"paid", "t")}
        await eventually(lambda: unfinished(impatient) == 0)


async def test_check_back_is_answered_for_a_producer_that_died(impatient: PlatformDriver) -> None:
    async with Producer(impatient.name_servers, group="shop") as first:
        await first.begin_transaction(Message("T", "paid"))
        await first.begin_transaction(Message("T", "not paid"))

    def check(message: StoredMessage) -> TransactionState:
        return TransactionState.COMMIT if message.body == b"paid" else TransactionState.ROLLBACK

    async with (
        Producer(impatient.name_servers, group="shop", transaction_checker=check) as second,
        reading(impatient) as handler,
    ):
        await second.send(Message("T", "hello"))
        await eventually(lambda: unfinished(impatient) == 0)
        await eventually(lambda: sorted(handler.texts) == ["hello", "paid"])


async def test_checker_is_not_called_while_the_block_runs(impatient: PlatformDriver) -> None:
    asked: list[StoredMessage] = []

    def check(message: StoredMessage) -> TransactionState:
        asked.append(message)
        return TransactionState.ROLLBACK

    async with Producer(impatient.name_servers, group="shop", transaction_checker=check) as producer:
        handlers = producer.session.handlers
        answer, questions = handlers[RequestCode.CHECK_TRANSACTION_STATE], []

        async def counted(request: CheckTransaction, session: ClientSession, call: RequestContext) -> HandlerResult:
            said = await answer(request, session, call)
            questions.append(request)
            return said

        handlers[RequestCode.CHECK_TRANSACTION_STATE] = counted
        async with reading(impatient) as handler:
            async with producer.transaction(Message("T", "paid")):
                await eventually(lambda: len(questions) >= 3)
                assert unfinished(impatient) == 1
                assert handler.messages == []
            await eventually(lambda: handler.texts == ["paid"])
        assert asked == []


async def test_failing_checker_is_called_again(impatient: PlatformDriver) -> None:
    calls = 0

    def check(message: StoredMessage) -> TransactionState:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Oops
        return TransactionState.COMMIT

    async with (
        Producer(impatient.name_servers, group="shop", transaction_checker=check) as producer,
        reading(impatient) as handler,
    ):
        sent = await producer.begin_transaction(Message("T", "paid"))
        await producer.end_transaction(sent, TransactionState.UNKNOWN)
        await eventually(lambda: handler.texts == ["paid"])


async def test_lost_end_of_a_transaction_is_repeated_after_a_check_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_platform_driver(tmp_path, **IMPATIENT | {"transaction_timeout_ms": 200}) as driver:
        await driver.create_topic("T")
        async with Producer(driver.name_servers, group="shop") as producer:
            request = producer.session.invoke_unchecked

            async def lose_end(address: str, code: int, *arguments: Any, **options: Any) -> RemotingCommand:
                if code == RequestCode.END_TRANSACTION:
                    raise ConnectionLost(address, "the request is lost")
                return await request(address, code, *arguments, **options)

            # The broker is still connected and sends a check-back.
            monkeypatch.setattr(producer.session, "invoke_unchecked", lose_end)
            async with producer.transaction(Message("T", "paid")):
                pass
            assert unfinished(driver) == 1
            async with reading(driver) as handler:
                await eventually(lambda: handler.texts == ["paid"])


async def test_end_that_the_broker_refuses_raises(driver: PlatformDriver) -> None:
    async with (
        Producer(driver.name_servers, group="shop") as producer,
        Producer(driver.name_servers, group="stranger") as stranger,
    ):
        sent = await producer.begin_transaction(Message("T", "paid"))
        await stranger.send(Message("T", "to know the way"))
        with pytest.raises(Refused, match="stranger"):
            await stranger.end_transaction(sent, TransactionState.COMMIT)
        assert unfinished(driver) == 1
        await producer.end_transaction(sent, TransactionState.ROLLBACK)
        assert unfinished(driver) == 0


async def test_producers_of_one_session_answer_check_backs_of_their_own_group(impatient: PlatformDriver) -> None:
    async with (
        Producer(impatient.name_servers, group="yes", transaction_checker=lambda _: TransactionState.COMMIT) as yes,
        Producer(session=yes.session, group="no", transaction_checker=lambda _: TransactionState.ROLLBACK) as no,
        reading(impatient) as handler,
    ):
        for producer, text in ((no, "no"), (yes, "yes")):
            sent = await producer.begin_transaction(Message("T", text))
            await producer.end_transaction(sent, TransactionState.UNKNOWN)
        await eventually(lambda: unfinished(impatient) == 0)
        await eventually(lambda: handler.texts == ["yes"])


def test_blocking_producer_has_transactions(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def check(message: StoredMessage) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    with (
        run_platform(tmp_path, broker=IMPATIENT) as platform,
        client.Producer(platform.name_servers, group="shop", transaction_checker=check) as producer,
    ):
        with producer.transaction(Message("T", "paid")):
            pass
        with pytest.raises(Oops), producer.transaction(Message("T", "not paid")):
            raise Oops
        producer.send_in_transaction(Message("T", "by word"), lambda _: None)
        producer.send_in_transaction(Message("T", "asked after"), lambda _: TransactionState.UNKNOWN)
        wait_until(lambda: b"asked after" in asked)  # such a broker may ask after others, too, before they end
        with client.Consumer(platform.name_servers, group="readers") as consumer:
            consumer.subscribe("T")
            assert {next(consumer).body for _ in range(3)} == {b"paid", b"by word", b"asked after"}


# -- transactions that were given up ----------------------------------------------------------------------------------


def test_transactions_that_were_given_up_are_listed() -> None:
    settings = {**IMPATIENT, "transaction_checks_max": 0}
    with run_platform(broker=settings) as platform:

        def listed(*words: str) -> str:
            env = {"COLUMNS": "250", "SPARROW_NAME_SERVERS": platform.name_servers}
            done = CliRunner(env=env).invoke(app, ["transaction", "list", *words])
            assert done.exit_code == 0, done.output
            return done.output

        assert listed() == "No transaction was given up.\n"
        with client.Producer(platform.name_servers, group="shop") as producer:
            for number in range(3):
                sent = producer.begin_transaction(Message("T", f"{number}", keys=f"order-{number}"))
                with client.Admin(platform.name_servers) as admin:
                    wait_until(lambda number=number: len(admin.given_up_transactions()) == number + 1)  # type: ignore[misc]
        newest, before = json.loads(listed("--limit", "2", "--json"))
        assert {name: text for name, text in newest.items() if name != "given_up"} == {
            "topic": "T",
            "producer_group": "shop",
            "id": sent.message_id,
            "keys": "order-2",
            "checks": "0",
        }
        assert before["keys"] == "order-1"
        for text in ("producer group", "shop", "order-0", "order-2"):
            assert text in listed()

"""Failed attempts: what is logged and stored, and no message that stays Processing for ever."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from tests.support.bus_tables import read_row, read_rows, run_statement
from tests.support.wait import eventually

from sparrow.bus import Reject, Retry, fixed
from sparrow.bus.handlers import attempt_log, attempts, executor
from sparrow.bus.transports.memory import MemoryBroker

from .conftest import MakeBus
from .test_handling import envelope

pytestmark = pytest.mark.one_database


def records(caplog: pytest.LogCaptureFixture, module: Any) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == module.__name__]


async def test_every_failed_attempt_is_logged_with_its_message_next_try_and_traceback(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus(retry=Retry(max=2, backoff=fixed(0)))

    @bus.subscribe("order.created", group="billing")
    async def charge(order: int) -> None:
        raise ValueError("no such account")

    async with bus:
        await bus.publish("order.created", 7)
        await bus.drain()
        stored = await read_row(bus, "received")
        shown = await bus.operations.get("received", stored["Id"])
    assert (stored["StatusName"], stored["LastError"]) == ("Failed", "ValueError-->no such account")
    assert shown.error == "ValueError-->no such account"
    first, last = records(caplog, attempt_log)
    begin = f"event order.created, message {stored['Id']} of group billing.v1: "
    handler = re.escape(f"{charge.__module__}.") + ".*charge"
    failed = f"of {handler} failed: ValueError-->no such account; "
    assert re.fullmatch(
        re.escape(begin) + f"attempt 1 {failed}the next attempt is due at 20..-..-.. ..:..:.. UTC", first.getMessage()
    )
    assert re.fullmatch(
        re.escape(begin) + f"attempt 2 {failed}it is Failed: a retry round or an operator starts it again",
        last.getMessage(),
    )
    for record in (first, last):
        assert record.levelno == logging.WARNING
        assert record.exc_info is not None
        assert record.exc_info[2] is not None, "the traceback names the line of the handler"


async def test_batch_logs_each_message_and_the_traceback_once(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus(retry=Retry(max=1))

    @bus.subscribe("order.created", batch=3, within="30s")
    async def charge(orders: list[int]) -> None:
        raise ValueError("no such account")

    async with bus:
        await bus.publish_many([("order.created", n) for n in range(3)])
        await eventually(lambda: len(records(caplog, attempt_log)) == 3)
    assert [each.exc_info is not None for each in records(caplog, attempt_log)] == [True, False, False]


@pytest.mark.parametrize("batch", [None, 2])
async def test_received_message_whose_content_cannot_be_read_is_failed_and_parked(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture, batch: int | None
) -> None:
    handled: list[Any] = []
    bus = make_bus()
    bus.subscriptions.add("order.created", handled.append, batch=batch, within="50ms", dead_letter="order.dead")
    async with bus:
        await bus.publish_many([("order.created", 1), ("order.created", 2), ("order.created", 3)])
        await bus.drain()
    damaged, empty, whole = [each["Id"] for each in await read_rows(bus, "received")]
    await run_statement(bus, 'UPDATE {received} SET "Content" = ? WHERE "Id" = ?', "{damaged", damaged)
    await run_statement(bus, 'UPDATE {received} SET "Content" = NULL WHERE "Id" = ?', empty)
    handled.clear()
    await bus.operations.reexecute(damaged, empty, whole)
    async with bus:
        await bus.drain()
        for number in (damaged, empty):
            found = await read_row(bus, "received", number)
            assert (found["StatusName"], found["Parked"], found["Retries"]) == ("Failed", 1, 0)
            assert found["LastError"].startswith("Undecodable-->the stored content cannot be read: ")
        assert (await read_row(bus, "received", whole))["StatusName"] == "Successed"
        assert await read_rows(bus, "queue") == []
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0
    assert len(handled) == 1
    said = [each.getMessage() for each in records(caplog, attempt_log)]
    assert len(said) == 2
    for line in said:
        assert "of no handler failed: Undecodable-->the stored content cannot be read" in line
        assert line.endswith("it is Failed and parked: correct the cause, then an operator starts it again")


@pytest.mark.parametrize("database", ["sqlite"])
async def test_row_that_is_not_utf_8_is_failed_and_delays_no_other(make_bus: MakeBus) -> None:
    """SQLite stores any bytes as text, and its driver refuses the whole result."""
    handled: list[int] = []
    bus = make_bus()
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        await bus.publish_many([("order.created", 1), ("order.created", 2)])
        await bus.drain()
    broken, whole = [each["Id"] for each in await read_rows(bus, "received")]
    handled.clear()
    await run_statement(bus, """UPDATE {received} SET "Content" = CAST(X'7B80' AS TEXT) WHERE "Id" = ?""", broken)
    await bus.operations.reexecute(broken, whole)
    async with bus:
        await bus.drain()
        shown = {each.id: each for each in await bus.operations.find("received")}
    assert (shown[broken].status, shown[broken].parked, shown[broken].content) == ("Failed", True, "{\\x80")
    assert "the stored content cannot be read" in (shown[broken].error or "")
    assert shown[whole].status == "Successed"
    assert len(handled) == 1


async def test_message_that_is_not_json_is_logged_when_it_arrives(
    make_bus: MakeBus, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus()
    bus.subscriptions.add("order.created", lambda order: None)
    async with bus:
        broker.take([envelope(body=b"{")])
        await bus.drain()
        stored = await read_row(bus, "received")
    assert stored["Parked"] == 1
    [said] = [each.getMessage() for each in caplog.records if each.name == "sparrow.bus.worker.receiver"]
    assert said.startswith(
        f"event order.created, message {stored['Id']} of group cap.queue.shop.v1 is Failed and parked"
    )
    assert said.endswith(f"correct the cause, then run `sparrow bus reexecute {stored['Id']}`")


async def test_batch_whose_result_cannot_be_stored_is_handled_again_when_its_lease_ends(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The executor must not renew the lease of a message that nobody handles any more."""
    calls: list[list[int]] = []
    real: Any = vars(attempts)["reschedule"]

    def failing(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(attempts, "reschedule", real)
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(attempts, "reschedule", failing)
    bus = make_bus(lease_s=0.6, retry=Retry(backoff=fixed(0)))

    @bus.subscribe("order.created", batch=2, within="20ms")
    async def charge(orders: list[int]) -> None:
        calls.append(orders)
        if len(calls) == 1:
            raise ValueError("try again")

    async with bus:
        await bus.publish("order.created", 1)
        await eventually(lambda: len(calls) == 2)
        await bus.drain()
        assert (await read_row(bus, "received"))["StatusName"] == "Successed"
    assert re.search(
        "the result of an attempt of .*charge was not stored: the disk is full; the message is handled", caplog.text
    )


async def test_message_whose_handler_could_not_be_started_is_released(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[int] = []
    real: Any = vars(executor)["renew_leases"]

    def failing(*args: Any) -> set[int]:
        monkeypatch.setattr(executor, "renew_leases", real)
        raise RuntimeError("the connection broke")

    monkeypatch.setattr(executor, "renew_leases", failing)
    bus = make_bus()
    bus.subscriptions.add("order.created", handled.append, max_runtime="60s")
    async with bus:
        await bus.publish_many([("order.created", 1), ("order.created", 2)])
        await eventually(lambda: sorted(handled) == [1, 2])
        await bus.drain()
        assert {each["StatusName"] for each in await read_rows(bus, "received")} == {"Successed"}


async def test_rejected_message_is_logged_as_parked(make_bus: MakeBus, caplog: pytest.LogCaptureFixture) -> None:
    bus = make_bus()

    @bus.subscribe("order.created")
    async def charge(order: int) -> None:
        raise Reject("no such account")

    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        assert bus.health().findings == ()
    [record] = records(caplog, attempt_log)
    assert record.getMessage().endswith(
        "failed: Reject-->no such account; it is Failed and parked: correct the cause, then an operator starts it again"
    )

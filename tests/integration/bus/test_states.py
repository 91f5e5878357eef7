"""The states of a message, its attempts, and recovery of messages whose worker is gone."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.support.bus_tables import count_rows, create_effects_table, read_effects, read_row, read_rows, run_statement
from tests.support.wait import eventually

from sparrow.bus import (
    EventBus,
    EventStatus,
    FailedEvent,
    IllegalTransition,
    Reject,
    Retry,
    RetryAfter,
    StateChange,
    cap_settings,
    fixed,
)
from sparrow.bus.sql.claims import claim_due, load_claimed
from sparrow.bus.sql.outbox import PUBLISHED_SIDE, RECEIVED_SIDE
from sparrow.bus.states import is_legal_transition
from sparrow.bus.transports.memory import MemoryBroker
from sparrow.bus.transports.spi import Envelope
from sparrow.model.errors import ConnectionLost, Unavailable

from .conftest import QUICK, MakeBus

pytestmark = [pytest.mark.one_database, pytest.mark.locks]

AT_ONCE = Retry(backoff=fixed(0))
HEALTHY = ["Scheduled", "Enqueued", "Processing", "Successed"]


class Lowest(random.Random):
    """A random source that yields the shortest back-off."""

    def random(self) -> float:
        return 0.0


def passed(changes: list[StateChange], side: str) -> list[str]:
    """Return the states in which one message of that side was reported."""
    mine = [each for each in changes if each.side == side]
    assert len({each.message_id for each in mine}) == 1
    return [each.status.value for each in mine]


# -- healthy messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", ["full", "compact"])
async def test_healthy_message_passes_each_state_once_in_order(make_bus: MakeBus, writes: str) -> None:
    changes: list[StateChange] = []
    bus = make_bus(on_state=changes.append, status_writes=writes)
    bus.subscriptions.add("order.created", lambda value: None)
    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        assert await count_rows(bus) == (1, 1, 0)
        published, received = await read_row(bus, "published"), await read_row(bus, "received")
    assert passed(changes, "published") == passed(changes, "received") == HEALTHY
    assert (published["StatusName"], received["StatusName"]) == ("Successed", "Successed")


async def test_failing_state_hook_changes_nothing(make_bus: MakeBus) -> None:
    def broken(change: StateChange) -> None:
        raise RuntimeError("the hook")

    bus = make_bus(on_state=broken)
    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        assert (await read_row(bus, "published"))["StatusName"] == "Successed"


async def test_published_is_successed_only_after_the_acknowledgement_of_the_broker(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    handled: list[int] = []
    failures: list[StateChange] = []
    # No pause between attempts: the relay sends again at once.
    bus = make_bus(send_timeout_s=0.05, retry=Retry(max=1_000, backoff=fixed(0)), on_state=failures.append)
    bus.subscriptions.add("order.created", handled.append)
    broker.withhold_acknowledgements = True
    async with bus:
        await bus.publish("order.created", 1)
        await eventually(lambda: bus.core.context.probe.totals['bus_retries_total{place="send"}'] >= 2)
        published = await read_row(bus, "published")
        assert published["StatusName"] in ("Scheduled", "Processing")
        assert published["ExpiresAt"] is None
        assert "acknowledge" in published["LastError"]
        broker.withhold_acknowledgements = False
        await bus.drain()
        assert (await read_row(bus, "published"))["StatusName"] == "Successed"
        assert await count_rows(bus) == (1, 1, 0)
    assert handled == [1], "an event sent twice with one id must be handled once"


async def test_received_is_successed_only_after_the_handler_returned(make_bus: MakeBus) -> None:
    bus = make_bus()
    began, may_end = asyncio.Event(), asyncio.Event()

    @bus.subscribe("order.created")
    async def slow(value: int) -> None:
        began.set()
        await may_end.wait()

    async with bus:
        await bus.publish("order.created", 1)
        await began.wait()
        received = await read_row(bus, "received")
        assert received["StatusName"] == "Processing", "Processing must be committed before the handler starts"
        assert received["ExpiresAt"] is None
        may_end.set()
        await bus.drain()
        assert (await read_row(bus, "received"))["StatusName"] == "Successed"


async def test_compact_status_writes_do_not_update_open_rows(make_bus: MakeBus) -> None:
    bus = make_bus(status_writes="compact")
    began, may_end = asyncio.Event(), asyncio.Event()

    @bus.subscribe("order.created")
    async def slow(value: int) -> None:
        began.set()
        await may_end.wait()

    async with bus:
        await bus.publish("order.created", 1)
        await began.wait()
        assert (await read_row(bus, "received"))["StatusName"] == "Scheduled"
        [queued] = [each for each in await read_rows(bus, "queue") if each["MessageType"] == RECEIVED_SIDE]
        assert queued["LockedBy"] is not None
        may_end.set()
        await bus.drain()
        assert (await read_row(bus, "received"))["StatusName"] == "Successed"


# -- failing sends ---------------------------------------------------------------------------------------------------


async def test_failed_send_is_repeated_and_succeeds_when_the_broker_returns(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    failed: list[FailedEvent] = []
    bus = make_bus(retry_round_interval_s=180.0, retry=Retry(max=2, backoff=fixed(0)), on_failed=failed.append)
    broker.down = True
    async with bus:
        await bus.publish("order.created", 1)
        await eventually(lambda: failed)
        assert (await read_row(bus, "published"))["StatusName"] == "Failed"
        broker.down = False
        bus.advance(181)
        await eventually(lambda: broker.sent)
        await bus.drain()
        published = await read_row(bus, "published")
        assert (published["StatusName"], published["Rounds"]) == ("Successed", 1)


async def test_sends_that_always_fail_become_failed_after_exactly_fifteen_retries(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    failed: list[FailedEvent] = []
    changes: list[StateChange] = []
    bus = make_bus(on_failed=failed.append, on_state=changes.append)
    broker.down = True
    async with bus:
        number = await bus.publish("order.created", 1)
        while not failed:
            published = await read_row(bus, "published")
            assert (published["StatusName"] == "Failed") == (published["Retries"] == 15)
            await advance_to_next(bus)
        published = await read_row(bus, "published")
        assert (published["StatusName"], published["Retries"], published["Rounds"]) == ("Failed", 15, 0)
        assert published["ExpiresAt"] - published["Added"] == timedelta(days=15)
        assert "broker is down" in published["LastError"]
        assert await count_rows(bus) == (1, 0, 0)
    [info] = failed
    assert (info.side, info.message_id, info.name, info.retries, info.rounds) == (
        "published", number, "order.created", 15, 0,
    )  # fmt: skip
    assert passed(changes, "published") == [*["Scheduled", "Enqueued", "Processing"] * 15, "Failed"]
    assert tried(bus, "send") == 15


async def test_handlers_that_always_fail_become_failed_after_fifteen_retries(
    make_bus: MakeBus,
) -> None:
    failed: list[FailedEvent] = []
    changes: list[StateChange] = []
    bus = make_bus(on_failed=failed.append, on_state=changes.append, retry=Retry(backoff=fixed(0)))
    calls: list[int] = []

    @bus.subscribe("order.created", group="billing")
    def failing(value: int) -> None:
        calls.append(value)
        raise ValueError("not today")

    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        received = await read_row(bus, "received")
        assert (received["StatusName"], received["Retries"]) == ("Failed", 15)
        assert received["LastError"] == "ValueError-->not today"
        assert '"cap-exception":"ValueError-->not today"' in received["Content"]
        assert await count_rows(bus) == (1, 1, 0)
    assert len(calls) == tried(bus, "handle") == 15
    assert passed(changes, "received") == [*["Scheduled", "Enqueued", "Processing"] * 15, "Failed"]
    [info] = failed
    assert (info.side, info.message_id, info.group, info.retries) == ("received", received["Id"], "billing.v1", 15)
    assert info.error == "ValueError-->not today"
    assert info.headers["cap-msg-name"] == "order.created"


async def test_retries_count_failed_attempts_one_by_one(make_bus: MakeBus) -> None:
    seen: list[int] = []
    bus = make_bus(retry=AT_ONCE)

    @bus.subscribe("order.created")
    async def third_time_lucky(value: int) -> None:
        seen.append((await read_row(bus, "received"))["Retries"])
        if len(seen) < 3:
            raise ValueError

    async with bus:
        await bus.publish("order.created", 1)
        assert (await read_row(bus, "published"))["Retries"] == 0
        await bus.drain()
        received = await read_row(bus, "received")
        assert (received["StatusName"], received["Retries"]) == ("Successed", 2)
    assert seen == [0, 1, 2]


async def test_back_off_counts_from_the_time_the_message_was_added(make_bus: MakeBus, broker: MemoryBroker) -> None:
    bus = make_bus()
    broker.down = True
    async with bus:
        await bus.publish("order.created", 1)
        # With larger steps, an attempt would be due right after the one before it.
        bus.core.context.rng = Lowest()
        for wait_s in (15, 16, 31, 96):
            await bus.drain()
            published, [queued] = await read_row(bus, "published"), await read_rows(bus, "queue")
            assert queued["NextAt"] - published["Added"] == timedelta(seconds=wait_s)
            await advance_to_next(bus)
        await bus.drain()
        assert (await read_row(bus, "published"))["Retries"] == 5


async def test_send_handle_and_round_retries_are_counted_separately(make_bus: MakeBus, broker: MemoryBroker) -> None:
    bus = make_bus(retry=Retry(max=2, backoff=fixed(0)))
    bus.subscriptions.add("order.created", failing, retry=Retry(max=3, backoff=fixed(0)))
    refusals = iter([ConnectionLost("memory", "once")])
    broker.refusal = lambda envelope: next(refusals, None)
    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        assert [tried(bus, place) for place in ("send", "handle", "round")] == [1, 3, 0]
        assert await bus.core.worker.maintenance.start_retry_rounds() == 1
        await bus.drain()
        assert [tried(bus, place) for place in ("send", "handle", "round")] == [1, 6, 1]
        received = await read_row(bus, "received")
        assert (received["Retries"], received["Rounds"]) == (3, 1)


async def test_unsendable_message_delays_no_other(make_bus: MakeBus, broker: MemoryBroker) -> None:
    bus = make_bus()
    broker.refusal = lambda envelope: Unavailable("no") if envelope.name == "bad" else None
    async with bus:
        await bus.publish_many([("bad", 1), ("good", 2), ("bad", 3), ("good", 4)])
        await bus.drain()
        states = [(each["Name"], each["StatusName"], each["Retries"]) for each in await read_rows(bus, "published")]
    assert states == [("bad", "Scheduled", 1), ("good", "Successed", 0)] * 2


async def test_retry_round_resets_the_attempts_of_every_failed_row(make_bus: MakeBus, broker: MemoryBroker) -> None:
    first = make_bus(retry=Retry(max=2, backoff=fixed(0)))
    first.subscriptions.add("order.created", failing)
    async with first:
        broker.refusal = lambda envelope: Unavailable("no") if envelope.name == "unsent" else None
        await first.publish_many([("order.created", 1), ("unsent", 2)])
        await first.drain()
        assert {each["StatusName"] for each in await read_rows(first, "received")} == {"Failed"}
    changes: list[StateChange] = []
    bus = make_bus(runs_relay=False, runs_handlers=False, retry_round_interval_s=180.0, on_state=changes.append)
    async with bus:
        await read_rows(bus, "queue")  # the loops have started
        bus.advance(181)
        await eventually(lambda: tried(bus, "round") == 2)
        [unsent] = [each for each in await read_rows(bus, "published") if each["Name"] == "unsent"]
        received = await read_row(bus, "received")
        for each in (unsent, received):
            assert (each["StatusName"], each["Retries"], each["Rounds"]) == ("Enqueued", 0, 1)
            assert each["ExpiresAt"] is None
        queued = {(each["MessageType"], each["MessageId"], each["Group"]) for each in await read_rows(bus, "queue")}
        assert queued == {(0, unsent["Id"], ""), (1, received["Id"], received["Group"])}
        assert {each.status.value for each in changes} == {"Enqueued"}
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0
        bus.advance(16 * 86_400)  # a message as old as this gets no more rounds
        await run_statement(bus, 'UPDATE {received} SET "StatusName" = ?', "Failed")
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0


# -- retry policies and errors ---------------------------------------------------------------------------------------


def failing(value: object) -> None:
    raise ValueError("not today")


async def test_handler_may_set_its_retry_time_or_refuse_retries(make_bus: MakeBus) -> None:
    failed: list[FailedEvent] = []
    bus = make_bus(on_failed=failed.append)
    rejected: list[int] = []

    @bus.subscribe("later")
    def later(value: int) -> None:
        raise RetryAfter(500, "the bank is closed")

    @bus.subscribe("never")
    async def never(value: int) -> None:
        rejected.append(value)
        raise Reject("no such order")

    async with bus:
        await bus.publish_many([("later", 1), ("never", 2)])
        await bus.drain()
        later_row, never_row = [
            next(each for each in await read_rows(bus, "received") if each["Name"] == name)
            for name in ("later", "never")
        ]
        assert (later_row["StatusName"], later_row["Retries"]) == ("Scheduled", 1)
        assert "the bank is closed" in later_row["LastError"]
        [queued] = await read_rows(bus, "queue")
        assert timedelta(seconds=499) < queued["NextAt"] - later_row["Added"] < timedelta(seconds=530)
        assert (never_row["StatusName"], never_row["Retries"]) == ("Failed", 1)
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0, "a rejected event must not be retried"
    assert rejected == [2]
    assert [info.error for info in failed] == ["Reject-->no such order"]


async def test_errors_configured_as_final_fail_at_once(make_bus: MakeBus) -> None:
    calls: list[str] = []
    bus = make_bus()

    def raising(error: type[Exception]) -> Callable[[Any], None]:
        def handle(value: object) -> None:
            calls.append(error.__name__)
            raise error

        return handle

    bus.subscriptions.add("hopeless", raising(LookupError), retry=Retry(give_up_on=(LookupError,)))
    bus.subscriptions.add("other", raising(KeyError), retry=Retry(retry_on=(OSError,)))
    bus.subscriptions.add("again", raising(OSError), retry=Retry(max=2, retry_on=(OSError,), backoff=fixed(0)))
    async with bus:
        await bus.publish_many([("hopeless", 1), ("other", 2), ("again", 3)])
        await bus.drain()
        assert {each["StatusName"] for each in await read_rows(bus, "received")} == {"Failed"}
    assert sorted(calls) == ["KeyError", "LookupError", "OSError", "OSError"]


async def test_modern_profile_retries_three_times_at_once_then_once_a_minute(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    failed: list[FailedEvent] = []
    bus = make_bus(settings=cap_settings(**QUICK), on_failed=failed.append)
    broker.down = True
    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        assert tried(bus, "send") == 3
        published, [queued] = await read_row(bus, "published"), await read_rows(bus, "queue")
        assert published["Retries"] == 3
        assert timedelta(seconds=59) < queued["NextAt"] - published["Added"] < timedelta(seconds=90)
        for attempt in range(4, 51):
            bus.advance(61)
            await eventually(lambda: tried(bus, "send") == attempt)  # noqa: B023
        await eventually(lambda: failed)
        assert (await read_row(bus, "published"))["Retries"] == 50
    assert len(failed) == 1


async def test_circuit_breaker_keeps_attempts_while_the_broker_is_unreachable(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    changes: list[StateChange] = []
    bus = make_bus(circuit_breaker=True, on_state=changes.append)
    broker.down = True
    async with bus:
        await bus.publish("order.created", 1)
        for probe in range(1, 4):
            await eventually(lambda: [each.status.value for each in changes].count("Scheduled") > probe)  # noqa: B023
            bus.advance(1.5)
        await bus.drain()
        published = await read_row(bus, "published")
        assert (published["StatusName"], published["Retries"]) == ("Scheduled", 0)
        assert tried(bus, "send") == 0
        broker.down = False
        bus.advance(1.5)
        await bus.drain()
        assert (await read_row(bus, "published"))["StatusName"] == "Successed"


async def test_failing_on_failed_hook_is_counted_and_changes_nothing(make_bus: MakeBus) -> None:
    def broken(info: FailedEvent) -> None:
        raise RuntimeError("the callback")

    bus = make_bus(on_failed=broken, retry=Retry(max=1))
    bus.subscriptions.add("order.created", failing)
    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        assert (await read_row(bus, "received"))["StatusName"] == "Failed"
    assert bus.core.context.probe.totals["bus_callback_errors_total"] == 1


class Sly(Exception):
    """An error whose text no database can store, or that has no text."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __str__(self) -> str:
        if self._text is None:
            raise RuntimeError("not even a word")
        return self._text


async def test_error_with_an_unstorable_text_is_a_normal_failed_attempt(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "sparrow.bus")  # xdist cannot send a traceback with such a text
    texts = {"nul": "a\0b", "half": "\ud800", "none": None, "long": "x" * 100_000}
    bus = make_bus(retry=Retry(max=2, backoff=fixed(0)))

    @bus.subscribe("odd")
    def raising(which: str) -> None:
        raise Sly(texts[which])

    async with bus:
        await bus.publish_many([("odd", which) for which in texts])
        await bus.drain()
        received = await read_rows(bus, "received")
        assert {(each["StatusName"], each["Retries"]) for each in received} == {("Failed", 2)}
        assert all("-->" in each["LastError"] for each in received)


# -- lost workers ----------------------------------------------------------------------------------------------------


async def abandoned(bus: EventBus, side: int, group: str = "", *, lease_s: float = 60.0) -> None:
    """Claim and start messages as a worker that dies at once."""

    def work(db: Any) -> None:
        claims = claim_due(db, bus.core.context.sql, side, group, 10, owner="somebody/1", lease_s=lease_s)
        assert len(load_claimed(db, bus.core.context.sql, side, claims)) == len(claims) > 0

    await bus.database.run(work)


async def test_messages_of_a_dead_worker_are_taken_over_when_its_lease_ends(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    bus = make_bus()
    await bus.prepare()
    number = await bus.publish("order.created", 1)
    await abandoned(bus, PUBLISHED_SIDE)
    async with bus:
        bus.advance(55)
        await asyncio.gather(bus.core.worker.relay.step(), bus.core.worker.relay.step())
        assert broker.sent == [], "its lease has not expired"
        [queued] = await read_rows(bus, "queue")
        assert (queued["LockedBy"], queued["LockToken"], queued["Crashes"]) == ("somebody/1", 1, 0)
        bus.advance(10)
        await bus.drain()
        published = await read_row(bus, "published")
    assert (published["StatusName"], published["Retries"]) == ("Successed", 0)
    assert [envelope.id for envelope in broker.sent] == [str(number)]


async def test_message_that_loses_five_workers_is_failed(make_bus: MakeBus, broker: MemoryBroker) -> None:
    failed: list[FailedEvent] = []
    handled: list[int] = []
    bus = make_bus(on_failed=failed.append)
    bus.subscriptions.add("order.created", handled.append, group="billing")
    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
    sides = ((PUBLISHED_SIDE, "", "published"), (RECEIVED_SIDE, "billing.v1", "received"))
    await bus.prepare()
    for side, group, table in sides:  # open again, with four lost workers
        await run_statement(bus, f'UPDATE {{{table}}} SET "StatusName" = ?, "ExpiresAt" = NULL', "Processing")
        await run_statement(
            bus,
            'INSERT INTO {queue} ("MessageType", "MessageId", "Group", "NextAt", "LockedBy", "Crashes")'
            f' SELECT ?, "Id", ?, {bus.core.context.sql.now}, ?, 4 FROM {{{table}}}',
            side, group, "somebody/1",
        )  # fmt: skip
    async with bus:
        await bus.drain()
        for _, _, table in sides:
            lost = await read_row(bus, table)
            assert (lost["StatusName"], lost["Retries"]) == ("Failed", 0)
            assert "worker lost" in lost["LastError"]
            assert lost["ExpiresAt"] - lost["Added"] == timedelta(days=15)
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0
        assert await read_rows(bus, "queue") == []
    assert handled == [1]
    assert len(broker.sent) == 1
    assert sorted(info.side for info in failed) == ["published", "received"]


async def test_graceful_stop_releases_messages_not_started_or_not_finished(make_bus: MakeBus) -> None:
    bus = make_bus(stop_timeout_s=0.05, concurrency=1)
    await bus.prepare()
    await create_effects_table(bus)
    began = asyncio.Event()

    @bus.subscribe("order.created")
    async def endless(value: int, session: AsyncSession) -> None:
        if bus.database.kind != "sqlite":  # an open write transaction would block all others on SQLite
            await session.execute(text("INSERT INTO effects VALUES ('half')"))
        began.set()
        await asyncio.Event().wait()

    async with bus:
        await bus.publish_many([("order.created", n) for n in range(4)])
        await began.wait()
        await eventually(lambda: len(bus.core.worker.executors["cap.queue.shop.v1"]._held) > 1)
    await bus.prepare()
    received = await read_rows(bus, "received")
    assert {(each["StatusName"], each["Retries"]) for each in received} == {("Scheduled", 0)}
    queued = [each for each in await read_rows(bus, "queue") if each["MessageType"] == RECEIVED_SIDE]
    assert len(queued) == len(received) == 4
    assert {(each["LockedBy"], each["Crashes"]) for each in queued} == {(None, 0)}
    assert await read_effects(bus) == []


async def test_stop_waits_for_a_handler_that_ends_in_time(make_bus: MakeBus) -> None:
    bus = make_bus()
    began, may_end = asyncio.Event(), asyncio.Event()

    @bus.subscribe("order.created")
    async def slow(value: int) -> None:
        began.set()
        await may_end.wait()

    await bus.start()
    await bus.publish("order.created", 1)
    await began.wait()
    stopping = asyncio.create_task(bus.stop())
    await eventually(lambda: not bus.is_running)
    may_end.set()
    await stopping
    await bus.prepare()
    assert (await read_row(bus, "received"))["StatusName"] == "Successed"


async def test_stop_at_any_moment_leaves_no_claims(make_bus: MakeBus) -> None:
    handled: list[int] = []
    for stop in range(6):
        bus = make_bus()
        bus.subscriptions.add("order.created", handled.append)
        await bus.start()
        await bus.publish_many([("order.created", 10 * stop + n) for n in range(10)])
        for _ in range(stop * 20):  # each time, stop a few event-loop iterations later
            await asyncio.sleep(0)
        await bus.stop()
        await bus.prepare()
        assert [each["LockedBy"] for each in await read_rows(bus, "queue") if each["LockedBy"]] == []
    bus = make_bus()
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        await bus.drain()
        assert await read_rows(bus, "queue") == []
        assert {each["StatusName"] for each in await read_rows(bus, "received")} == {"Successed"}
    assert sorted(set(handled)) == list(range(60))


async def test_relay_sends_nothing_after_half_its_lease(make_bus: MakeBus, broker: MemoryBroker) -> None:
    async with make_bus(runs_relay=False) as bus:
        await bus.publish("order.created", 1)
        works = await bus.core.worker.relay._claim()
        await bus.core.worker.relay._send_batch(works, claimed_at=-1e9)
        assert broker.sent == []
        published, [queued] = await read_row(bus, "published"), await read_rows(bus, "queue")
        assert (published["StatusName"], published["Retries"]) == ("Scheduled", 0)
        assert (queued["LockedBy"], queued["LockToken"]) == (None, 1)


async def test_two_relays_send_each_message_once(make_bus: MakeBus, broker: MemoryBroker) -> None:
    one, two = make_bus(relay_batch=7), make_bus(relay_batch=7)
    async with one, two:
        await one.publish_many([("order.created", n) for n in range(200)])
        await asyncio.gather(one.drain(), two.drain())
    assert sorted(int(envelope.body) for envelope in broker.sent) == list(range(200))


async def test_two_relays_without_skip_locked_send_each_message_once(make_bus: MakeBus, broker: MemoryBroker) -> None:
    one, two = make_bus(relay_batch=7), make_bus(relay_batch=7)
    async with one, two:
        for bus in (one, two):  # as on MySQL 5.7
            bus.core.context.sql = replace(bus.core.context.sql, skips_locked=False)
        await one.publish_many([("order.created", n) for n in range(100)])
        await asyncio.gather(one.drain(), two.drain())
    assert sorted(int(envelope.body) for envelope in broker.sent) == list(range(100))


async def test_only_unsent_messages_can_be_cancelled(make_bus: MakeBus, broker: MemoryBroker) -> None:
    async with make_bus() as bus:
        sent = await bus.publish("order.created", 1)
        delayed = await bus.publish("order.created", 2, delay=600)
        await bus.drain()
        with pytest.raises(IllegalTransition):
            await bus.operations.cancel(delayed, sent)
        assert (await read_row(bus, "published", delayed))["StatusName"] == "Delayed", "either all rows change or none"
        await bus.operations.cancel(delayed)
        cancelled = await read_row(bus, "published", delayed)
        assert cancelled["StatusName"] == "Cancelled"
        assert timedelta(days=1) <= cancelled["ExpiresAt"] - cancelled["Added"] < timedelta(days=1, minutes=1)
        assert await read_rows(bus, "queue") == []
        bus.advance(601)
        await bus.drain()
        bus.advance(2 * 86_400)
        await bus.core.worker.maintenance.delete_expired()
        assert await count_rows(bus) == (0, 0, 0)
    assert [envelope.id for envelope in broker.sent] == [str(sent)]


async def test_every_state_change_is_allowed_by_the_state_table(make_bus: MakeBus, broker: MemoryBroker) -> None:
    changes: list[StateChange] = []
    bus = make_bus(on_state=changes.append, retry=Retry(max=2, backoff=fixed(0)))
    bus.subscriptions.add("bad", failing)
    bus.subscriptions.add("good", lambda value: None)
    broker.refusal = lambda envelope: Unavailable("no") if envelope.name == "unsent" else None
    async with bus:
        await bus.publish_many([("bad", 1), ("good", 2), ("unsent", 3)])
        broker.take([Envelope(name="good", headers={"cap-msg-id": "x"}, body=b"{", added=bus.core.context.now())])
        await bus.publish("good", 4, delay=60)
        await bus.drain()
        await bus.core.worker.maintenance.start_retry_rounds()
        bus.advance(61)
        await bus.drain()
        stored = {
            (side, each["Id"]): each["StatusName"]
            for side in ("published", "received")
            for each in await read_rows(bus, side)
        }
    last: dict[tuple[str, int], EventStatus] = {}
    for side, number, status in changes:
        before = last.get((side, number))
        assert is_legal_transition(before, status), (side, before, status)
        last[side, number] = status
    assert {key: status.value for key, status in last.items()} == stored


async def test_queue_rows_exist_only_for_unfinished_messages(make_bus: MakeBus) -> None:
    bus = make_bus()
    odd: list[Any] = []

    @bus.subscribe("order.created")
    def look(value: int, session: Session) -> None:
        sql = bus.core.context.sql_of(session.connection())
        for side, table in ((0, sql.names.published), (1, sql.names.received)):
            odd.extend(
                sql.rows(
                    session.connection(),
                    f'SELECT m."StatusName", m."ExpiresAt" FROM {sql.names.queue} q'
                    f' JOIN {table} m ON m."Id" = q."MessageId"'
                    f' WHERE q."MessageType" = {side} AND (m."ExpiresAt" IS NOT NULL OR m."StatusName" IN (?, ?))',
                    "Successed", "Failed",
                )
            )  # fmt: skip

    async with bus:
        await bus.publish_many([("order.created", n) for n in range(40)])
        await bus.drain()
        assert await count_rows(bus) == (40, 40, 0)
    assert odd == []


# -- helpers for retries and time ------------------------------------------------------------------------------------


def tried(bus: EventBus, place: str) -> int:
    """Return the number of failed attempts (send, handle) or of rounds."""
    return bus.core.context.probe.totals[f'bus_retries_total{{place="{place}"}}']


async def advance_to_next(bus: EventBus) -> None:
    """Advance the clock until the only open message is due; not while a worker holds it."""
    for queued in await read_rows(bus, "queue"):
        if queued["LockedBy"] is None:
            bus.advance(max(0.0, (queued["NextAt"] - bus.core.context.now()).total_seconds()) + 0.01)

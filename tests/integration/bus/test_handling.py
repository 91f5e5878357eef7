"""Handlers: their arguments, effects exactly once, order per key, batches, replies, and poison messages."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from tests.support.bus_tables import count_rows, create_effects_table, read_effects, read_row, read_rows, run_statement
from tests.support.wait import eventually

from sparrow.bus import CancelToken, Event, FailedEvent, Headers, NoReply, Reject, Retry, fixed
from sparrow.bus.aio import EventBus
from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.transports.memory import MemoryBroker
from sparrow.bus.transports.spi import Envelope

from .conftest import QUICK, MakeBus

pytestmark = [pytest.mark.one_database, pytest.mark.locks]

INSERT = "INSERT INTO effects VALUES (:what)"
TWICE = Retry(max=2, backoff=fixed(0))
GROUP = "cap.queue.shop.v1"


def envelope(name: str = "order.created", body: bytes = b"1", **headers: str | None) -> Envelope:
    """An envelope as another program might send it."""
    known = {"cap-msg-id": os.urandom(6).hex(), "cap-msg-name": name}
    given = {key.replace("_", "-"): value for key, value in headers.items()}
    return Envelope(name=name, headers=known | given, body=body, added=datetime.now(UTC))


async def steal(bus: EventBus) -> None:
    """Give the claims of the handlers to another worker, which does nothing with them."""
    taking = 'UPDATE {queue} SET "LockToken" = "LockToken" + 1, "LockedBy" = ? WHERE "MessageType" = 1'
    await run_statement(bus, taking, "somebody/1")


# -- once per group --------------------------------------------------------------------------------------------------


async def test_each_group_gets_an_event_once_and_members_share_the_events(make_bus: MakeBus) -> None:
    heard: list[tuple[str, str, int]] = []
    members = [make_bus() for _ in range(2)]
    for number, bus in enumerate(members):
        for group in ("billing", "audit", "mail"):

            def handle(value: int, group: str = group, number: str = str(number)) -> None:
                heard.append((group, number, value))

            bus.subscriptions.add("order.created", handle, group=group)
    async with members[0], members[1]:
        await members[0].publish_many([("order.created", n) for n in range(30)])
        await asyncio.gather(*(bus.drain() for bus in members))
        assert await count_rows(members[0]) == (30, 90, 0)
    assert sorted((group, value) for group, _, value in heard) == sorted(
        (group, value) for group in ("billing", "audit", "mail") for value in range(30)
    )


async def test_duplicate_is_stored_once_and_handled_once(make_bus: MakeBus, broker: MemoryBroker) -> None:
    handled: list[int] = []
    bus = make_bus()
    bus.subscriptions.add("order.created", handled.append, group="billing")
    bus.subscriptions.add("order.created", handled.append, group="audit")
    async with bus:
        one = envelope()
        broker.take([one, one])
        await bus.drain()
        broker.take([one])
        await eventually(lambda: bus.core.context.probe.totals["bus_duplicates_total"] == 4)
        await bus.drain()
        assert [each["MsgId"] for each in await read_rows(bus, "received")] == [one.id] * 2
    assert handled == [1, 1]


async def test_two_events_with_one_business_key_are_handled_once(make_bus: MakeBus) -> None:
    handled: list[str] = []
    welcome: list[str] = []
    bus = make_bus()
    bus.subscriptions.add("order.paid", handled.append)
    bus.subscriptions.add("order.paid", welcome.append, group="repeats", dedupe=False)
    async with bus:
        await bus.publish("order.paid", "first", dedupe="order-7")
        await bus.drain()
        await bus.publish("order.paid", "again", dedupe="order-7")
        await bus.publish("order.paid", "other", dedupe="order-" + "8" * 300)
        await bus.drain()
    assert handled == ["first", "other"]
    assert sorted(welcome) == ["again", "first", "other"]


async def test_ids_that_differ_in_case_accents_or_blanks_are_different(make_bus: MakeBus, broker: MemoryBroker) -> None:
    handled: list[int] = []
    bus = make_bus()
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        broker.take([envelope(cap_msg_id=number) for number in ("aB", "ab", "ab ", "é", "e", " ab", "ab\u00a0")])
        await bus.drain()
    assert len(handled) == 7


async def test_event_without_subscriber_is_stored_as_failed_once_or_not_stored(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    failed: list[FailedEvent] = []
    handled: list[int] = []
    bus = make_bus(on_failed=failed.append)
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        await bus.publish("nobody.listens", 1)
        # The topic has a subscription; the name in the header is another one.
        broker.take([envelope(cap_msg_name="order.unknown"), envelope()])
        await bus.drain()
        unknown, good = sorted(await read_rows(bus, "received"), key=lambda each: str(each["StatusName"]))
        assert (unknown["Name"], unknown["StatusName"], unknown["Retries"]) == ("order.unknown", "Failed", 0)
        assert "order.unknown" in unknown["LastError"]
        assert good["StatusName"] == "Successed"
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0
        assert await read_rows(bus, "queue") == []
    assert [(info.message_id, info.group) for info in failed] == [(unknown["Id"], GROUP)]
    assert handled == [1]


# -- effects ---------------------------------------------------------------------------------------------------------


def effectful(bus: EventBus, kind: str, then: Callable[[], None] = lambda: None) -> Callable[..., Any]:
    """A handler that writes a row and publishes, in the transaction of its message."""

    def with_session(value: int, session: Session) -> None:
        session.execute(text(INSERT), {"what": f"order {value}"})
        bus.blocking.publish("next", value)
        then()

    def with_connection(value: int, connection: Connection) -> None:
        connection.execute(text(INSERT), {"what": f"order {value}"})
        bus.blocking.publish("next", value)
        then()

    async def with_async_session(value: int, session: AsyncSession) -> None:
        await session.execute(text(INSERT), {"what": f"order {value}"})
        await bus.publish("next", value)
        then()

    async def with_async_connection(value: int, connection: AsyncConnection) -> None:
        await connection.execute(text(INSERT), {"what": f"order {value}"})
        await bus.publish("next", value)
        then()

    return {
        "session": with_session,
        "connection": with_connection,
        "async_session": with_async_session,
        "async_connection": with_async_connection,
    }[kind]


KINDS = ("session", "connection", "async_session", "async_connection")


async def test_effects_and_the_end_of_the_message_are_one_commit(make_bus: MakeBus, broker: MemoryBroker) -> None:
    bus = make_bus()
    await bus.prepare()
    await create_effects_table(bus)
    for kind in KINDS:
        bus.subscriptions.add(kind, effectful(bus, kind))
    async with bus:
        await bus.publish_many([(kind, number) for number, kind in enumerate(KINDS)])
        await bus.drain()
        assert {each["StatusName"] for each in await read_rows(bus, "received")} == {"Successed"}
        assert await read_effects(bus) == [f"order {number}" for number in range(4)]
    assert sorted(one.body for one in broker.sent if one.name == "next") == [b"0", b"1", b"2", b"3"]


async def test_exception_after_writes_leaves_no_rows(make_bus: MakeBus, broker: MemoryBroker) -> None:
    bus = make_bus(retry=TWICE)
    await bus.prepare()
    await create_effects_table(bus)

    def fail() -> None:
        raise ValueError("after the writes")

    for kind in KINDS:
        bus.subscriptions.add(kind, effectful(bus, kind, fail))
    async with bus:
        await bus.publish_many([(kind, 1) for kind in KINDS])
        await bus.drain()
        assert {(each["StatusName"], each["Retries"]) for each in await read_rows(bus, "received")} == {("Failed", 2)}
        assert await read_effects(bus) == []
    assert [one for one in broker.sent if one.name == "next"] == []


async def test_handler_that_lost_its_lease_has_no_effect(make_bus: MakeBus, broker: MemoryBroker) -> None:
    bus = make_bus()
    await bus.prepare()
    await create_effects_table(bus)
    stolen: list[int] = []

    @bus.subscribe("order.created")
    async def robbed(value: int, session: AsyncSession) -> None:
        await session.execute(text("SELECT 1"))
        if not stolen:  # meanwhile another worker claims the message, and is lost too
            stolen.append(value)
            await session.rollback()  # SQLite has one writer at a time
            await steal(bus)
        await session.execute(text(INSERT), {"what": f"order {value}"})
        await bus.publish("next", value)

    async with bus:
        await bus.publish("order.created", 1)
        await eventually(lambda: bus.core.context.probe.totals["bus_lease_lost_total"] == 1)
        assert await read_effects(bus) == []
        [queued] = [each for each in await read_rows(bus, "queue") if each["MessageType"] == 1]
        assert queued["LockedBy"] == "somebody/1"
        assert (await read_row(bus, "received"))["StatusName"] == "Processing"
        bus.advance(61)
        await bus.drain()
        assert await read_effects(bus) == ["order 1"]
        assert (await read_row(bus, "received"))["Retries"] == 0
    assert len([one for one in broker.sent if one.name == "next"]) == 1


async def test_lost_heartbeat_cancels_the_handler(make_bus: MakeBus) -> None:
    bus = make_bus(lease_s=0.3)
    calls: list[str] = []

    @bus.subscribe("order.created")
    async def robbed(value: int) -> None:
        if calls:
            calls.append("again")
            return
        calls.append("first")
        await steal(bus)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            calls.append("cancelled")
            raise

    async with bus:
        await bus.publish("order.created", 1)
        await eventually(lambda: calls == ["first", "cancelled", "again"])
        await bus.drain()
        received = await read_row(bus, "received")
        assert (received["StatusName"], received["Retries"]) == ("Successed", 0)


@pytest.mark.parametrize("is_async", [True, False])
async def test_handler_slower_than_its_lease_is_not_started_twice(make_bus: MakeBus, is_async: bool) -> None:
    one, two = make_bus(lease_s=1.2), make_bus(lease_s=1.2)  # a stall of the machine would end a shorter lease
    starts: list[float] = []
    may_end, may_end_there = asyncio.Event(), threading.Event()

    async def slow_async(value: int) -> None:
        starts.append(time.monotonic())
        await may_end.wait()

    def slow(value: int) -> None:
        starts.append(time.monotonic())
        may_end_there.wait(10)

    for bus in (one, two):
        bus.subscriptions.add("order.created", slow_async if is_async else slow)
    async with one, two:
        await one.publish("order.created", 1)
        await eventually(lambda: starts)
        await eventually(lambda: time.monotonic() > starts[0] + 2.5)
        [queued] = await read_rows(one, "queue")
        assert (queued["LockToken"], queued["Crashes"]) == (1, 0)
        may_end.set()
        may_end_there.set()
        await asyncio.gather(one.drain(), two.drain())
        assert (await read_row(one, "received"))["StatusName"] == "Successed"
    assert len(starts) == 1


async def test_cancelled_or_late_handler_never_counts_as_success(make_bus: MakeBus) -> None:
    bus = make_bus(retry=TWICE)
    await bus.prepare()
    await create_effects_table(bus)
    ended: list[str] = []

    @bus.subscribe("cancelled")
    async def cancelled(value: int, session: AsyncSession) -> None:
        await session.execute(text(INSERT), {"what": "cancelled"})
        raise asyncio.CancelledError

    @bus.subscribe("cancelled.in.thread")
    def cancelled_in_thread(value: int) -> None:
        raise asyncio.CancelledError

    @bus.subscribe("late", timeout=0.05)
    async def late(value: int) -> None:
        await asyncio.Event().wait()

    @bus.subscribe("late.in.thread", timeout="500ms")  # long enough for a thread to start on a busy machine
    def late_in_thread(value: int, session: Session, cancel: CancelToken) -> None:
        session.execute(text(INSERT), {"what": "late"})
        ended.append("asked to stop" if cancel.wait(10) else "forgotten")

    @bus.subscribe("timed.out.inside")
    async def timed_out(value: int) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    @bus.subscribe("exits")
    def exits(value: int) -> None:
        raise SystemExit(0)

    @bus.subscribe("interrupted")
    async def interrupted(value: int) -> None:
        raise KeyboardInterrupt

    @bus.subscribe("stops")
    def stops(value: int) -> None:
        next(iter([]))

    @bus.subscribe("stops.with.session")
    def stops_with_session(value: int, session: Session) -> None:
        raise StopIteration

    @bus.subscribe("forgets.to.await")
    def forgets(value: int) -> Any:
        return late(value)

    names = [each.topic for each in bus.subscriptions.subscriptions]
    async with bus:
        await bus.publish_many([(name, 1) for name in names])
        await bus.drain()
        states = {each["Name"]: (each["StatusName"], each["Retries"]) for each in await read_rows(bus, "received")}
        assert states == dict.fromkeys(names, ("Failed", 2))
        assert await read_effects(bus) == []
    assert ended == ["asked to stop"] * 2


# -- order -----------------------------------------------------------------------------------------------------------


async def test_events_of_one_key_are_handled_one_by_one_in_order(make_bus: MakeBus) -> None:
    heard: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    busy: set[str] = set()
    at_once: list[str] = []
    # Two relays, but one member of the group, because this broker has no partitions.
    members = [make_bus(relay_batch=3), make_bus(relay_batch=3, runs_handlers=False)]

    async def handle(value: int, event: Event) -> None:
        assert event.key is not None
        if event.key in busy:
            at_once.append(event.key)
        busy.add(event.key)
        await asyncio.sleep(0)
        busy.remove(event.key)
        if value % 7 == 0 and event.retries == 0:
            raise ValueError("once")
        heard[event.key].append(value)

    members[0].subscriptions.add("order.changed", handle, retry=Retry(backoff=fixed(0)))
    async with members[0], members[1]:
        await members[0].publish_many([("order.changed", n, "abc"[n % 3]) for n in range(45)])
        for n in range(45, 51):
            await members[n % 2].publish("order.changed", n, key="abc"[n % 3])
        await asyncio.gather(*(bus.drain() for bus in members))
    assert heard == {key: list(range(start, 51, 3)) for start, key in enumerate("abc")}
    assert at_once == []


@pytest.mark.parametrize("on_failure", ["block", "skip", "park"])
async def test_failing_message_blocks_skips_or_parks_its_key_as_configured(make_bus: MakeBus, on_failure: Any) -> None:
    heard: list[str] = []
    bus = make_bus()

    @bus.subscribe("order.changed", on_failure=on_failure, retry=Retry(max=3, backoff=fixed(60)))
    async def handle(value: str) -> None:
        heard.append(value)
        if value == "bad" and heard.count("bad") < 2:
            raise ValueError("not today")

    async with bus:
        await bus.publish_many(
            [("order.changed", "bad", "k"), ("order.changed", "later", "k"), ("order.changed", "other", "x")]
        )
        await eventually(lambda: "other" in heard and (on_failure == "block" or "later" in heard))
        await bus.drain()
        states = {
            decode_content(each["Content"])[1].decode(): each["StatusName"] for each in await read_rows(bus, "received")
        }
        assert states['"other"'] == "Successed"
        if on_failure == "block":
            assert (states['"bad"'], states['"later"']) == ("Scheduled", "Scheduled")
            assert "later" not in heard
        elif on_failure == "skip":
            assert (states['"bad"'], states['"later"']) == ("Scheduled", "Successed")
        else:
            assert (states['"bad"'], states['"later"']) == ("Failed", "Successed")
        bus.advance(61)
        await bus.drain()
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0, "a parked event must wait for an operator"
    mine = [value for value in heard if value != "other"]
    assert (
        mine
        == {
            "block": ["bad", "bad", "later"],
            "skip": ["bad", "later", "bad"],
            "park": ["bad", "later"],
        }[on_failure]
    )


# -- batches, filters, processes -------------------------------------------------------------------------------------


async def test_batch_is_one_call_and_one_transaction(make_bus: MakeBus, broker: MemoryBroker) -> None:
    sizes: list[int] = []
    names: set[str] = set()
    bus = make_bus(retry=TWICE)
    await bus.prepare()
    await create_effects_table(bus)

    @bus.subscribe("order.created", batch=10, within="200ms")
    async def handle(values: list[int], headers: list[Headers], events: list[Event], session: AsyncSession) -> None:
        assert len(values) == len(headers) == len(events)
        sizes.append(len(values))
        names.update(event.name for event in events)
        for value in values:
            await session.execute(text(INSERT), {"what": f"{value:02}"})
        if len(sizes) == 1:
            raise ValueError("the first")

    async with bus:
        await bus.publish_many([("order.created", n) for n in range(25)])
        broker.take([envelope(body=b'"not a number"')])
        await bus.drain()
        assert await read_effects(bus) == [f"{n:02}" for n in range(25)]
        states = sorted(each["StatusName"] for each in await read_rows(bus, "received"))
        assert states == ["Failed"] + ["Successed"] * 25
        assert await read_rows(bus, "queue") == []
    assert max(sizes) <= 10
    assert sum(sizes[1:]) == 25
    assert names == {"order.created"}


async def test_batch_with_one_lost_claim_has_no_effect(make_bus: MakeBus) -> None:
    bus = make_bus()
    await bus.prepare()
    await create_effects_table(bus)
    calls: list[int] = []

    @bus.subscribe("order.created", batch=5, within=0.2)
    async def handle(values: list[int], session: AsyncSession) -> None:
        calls.append(len(values))
        if len(calls) == 1:
            await run_statement(
                bus, 'UPDATE {queue} SET "LockToken" = "LockToken" + 1, "LockedBy" = ? WHERE "MessageType" = 1'
                ' AND "MessageId" IN (SELECT MIN("Id") FROM {received})', "somebody/1",
            )  # fmt: skip
        for value in values:
            await session.execute(text(INSERT), {"what": str(value)})

    async with bus:
        await bus.publish_many([("order.created", n) for n in range(5)])
        await eventually(lambda: len(calls) >= 2)
        await eventually(lambda: bus.core.context.probe.totals['bus_handled_total{result="ok"}'] == sum(calls[1:]))
        assert len(await read_effects(bus)) == sum(calls[1:]) == 4
        bus.advance(61)
        await bus.drain()
        assert await read_effects(bus) == ["0", "1", "2", "3", "4"]
        assert {each["Retries"] for each in await read_rows(bus, "received")} == {0}


async def test_filters_run_around_the_handler_in_its_transaction(make_bus: MakeBus) -> None:
    order: list[str] = []
    bus = make_bus(retry=TWICE)
    await bus.prepare()
    await create_effects_table(bus)

    async def outer(ctx: Any, call_next: Any) -> None:
        order.append("outer in")
        ctx.payload += 1
        await call_next(ctx)
        order.append(f"outer out {ctx.result}")
        if ctx.result == "refused":
            raise ValueError("by the filter")

    class Mild:
        def exception(self, ctx: Any) -> None:
            ctx.handled = isinstance(ctx.error, LookupError)
            ctx.result = "mild"

    @bus.subscribe("order.created", filters=[outer, Mild])
    async def handle(value: int, session: AsyncSession) -> str:
        order.append(f"handler {value}")
        await session.execute(text(INSERT), {"what": str(value)})
        if value == 3:
            raise LookupError
        return "refused" if value == 11 else "done"

    async with bus:
        for value in (1, 2):
            await bus.publish("order.created", value)
            await bus.drain()
        assert order == ["outer in", "handler 2", "outer out done", "outer in", "handler 3", "outer out mild"]
        await bus.publish("order.created", 10)
        await bus.drain()
        assert [each["StatusName"] for each in await read_rows(bus, "received")] == ["Successed", "Successed", "Failed"]
        assert await read_effects(bus) == ["2", "3"]


def double(value: dict[str, int]) -> dict[str, int]:
    if value["n"] < 0:
        os._exit(1)
    return {"n": value["n"] * 2, "pid": os.getpid()}


async def test_handler_may_run_and_crash_in_its_own_process(tmp_path: Path) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/bus.db", "memory://", concurrency=1, **QUICK)
    bus.subscriptions.add("double", double, executor="process", retry=Retry(max=1))
    async with bus:
        answer = await bus.request("double", {"n": 21})
        assert answer["n"] == 42
        assert answer["pid"] != os.getpid()
        await bus.publish("double", {"n": -1})
        await bus.drain()
        assert [each["StatusName"] for each in await read_rows(bus, "received") if each["Name"] == "double"][
            -1
        ] == "Failed"
        assert (await bus.request("double", {"n": 4}))["n"] == 8, "other requests must still work"


async def test_slow_group_delays_no_other_group(make_bus: MakeBus) -> None:
    may_end = asyncio.Event()
    quick: list[int] = []
    bus = make_bus(concurrency=1)

    @bus.subscribe("order.created", group="slow")
    async def slow(value: int) -> None:
        await may_end.wait()

    @bus.subscribe("order.created", group="quick")
    async def handle(value: int) -> None:
        quick.append(value)

    async with bus:
        await bus.publish_many([("order.created", n) for n in range(10)])
        await eventually(lambda: len(quick) == 10)
        may_end.set()
        await bus.drain()


# -- replies ---------------------------------------------------------------------------------------------------------


class Receipt(msgspec.Struct):
    number: int
    by: str = ""


async def test_result_of_a_handler_goes_to_the_reply_topic_in_the_same_transaction(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    answers: list[tuple[Any, Headers]] = []
    bus = make_bus(retry=TWICE)

    @bus.subscribe("order.created")
    async def handle(value: int, headers: Headers, session: AsyncSession) -> Any:
        headers.add_response_header("region", "north")
        if value == 2:
            headers.rewrite_callback("elsewhere")
        if value == 3:
            headers.remove_callback()
        if value == 4:
            return object()
        return Receipt(value)

    @bus.subscribe("order.receipts")
    @bus.subscribe("elsewhere")
    async def answered(value: Any, headers: Headers) -> None:
        answers.append((value, headers))

    async with bus:
        numbers = [await bus.publish("order.created", n, callback="order.receipts") for n in (1, 2, 3, 4)]
        await bus.drain()
        states = [each["StatusName"] for each in await read_rows(bus, "received") if each["Name"] == "order.created"]
        assert states == [*["Successed"] * 3, "Failed"], "a reply that cannot be stored must fail the event"
    assert {headers.name: value["number"] for value, headers in answers} == {"order.receipts": 1, "elsewhere": 2}
    [headers] = [headers for value, headers in answers if value["number"] == 1]
    assert (headers.correlation_id, headers.correlation_sequence) == (str(numbers[0]), 1)
    assert headers["region"] == "north"


async def test_request_waits_for_its_reply(make_bus: MakeBus) -> None:
    bus = make_bus()

    @bus.subscribe("order.price")
    async def price(value: int) -> Receipt:
        return Receipt(value * 2, "the shop")

    async with bus:
        answers = await asyncio.gather(*(bus.request("order.price", n, reply_type=Receipt) for n in range(5)))
        assert answers == [Receipt(n * 2, "the shop") for n in range(5)]
        with pytest.raises(NoReply):
            await bus.request("nobody.knows", 1, timeout=0.1)
        await bus.drain()
        assert await read_rows(bus, "queue") == []


# -- messages that cannot be handled ---------------------------------------------------------------------------------


async def test_poison_message_fails_once_with_its_cause_and_delays_no_other(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    failed: list[FailedEvent] = []
    handled: list[int] = []
    bus = make_bus(on_failed=failed.append)

    @bus.subscribe("order.#")
    async def handle(value: int) -> None:
        handled.append(value)

    poison = [
        envelope(body=b"{"),
        envelope(body=b"\xff\xfe"),
        envelope(body=b"[" * 100_000),
        envelope(body=b'"a text"'),
        envelope(body=b""),
        envelope(name="order." + "x" * 500),
        envelope(cap_msg_name="order.nul\0inside"),
        envelope(cap_msg_id="nul\0inside"),
        envelope(cap_msg_name="order.\ud800"),
        envelope(cap_msg_id="\ud800"),
        envelope(x="\ud800"),
        envelope(sp_key="nul\0inside"),
        envelope(sp_key="\ud800"),
        envelope(sp_dedupe="nul\0inside"),
    ]
    async with bus:
        for one in poison:
            broker.take([one, envelope()])
        broker.take(poison)
        await bus.drain()
        received = await read_rows(bus, "received")
        lost = [each for each in received if each["StatusName"] == "Failed"]
        good = [each for each in received if each["StatusName"] == "Successed"]
        assert len(lost) + len(good) == len(received)
        assert len(handled) == len(good) >= len(poison)
        assert all(each["LastError"] and each["Retries"] == 0 for each in lost)
        assert sorted(each["Id"] for each in lost) == sorted(info.message_id for info in failed)
        assert len(failed) >= 6
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0
        assert await read_rows(bus, "queue") == []
        assert bus.problems() == {}
        # A body that is not JSON is kept for inspection.
        contents = [decode_content(each["Content"])[1] for each in lost]
        assert b'"data:application/octet-stream;base64,//4="' in contents


async def test_message_with_damaged_stored_content_fails_and_delays_no_other(
    make_bus: MakeBus, broker: MemoryBroker
) -> None:
    failed: list[FailedEvent] = []
    handled: list[int] = []
    bus = make_bus(on_failed=failed.append)
    bus.subscriptions.add("order.created", handled.append)
    await bus.prepare()
    bad = await bus.publish("order.created", 1)
    await bus.publish("order.created", 2)
    await run_statement(bus, 'UPDATE {published} SET "Content" = ? WHERE "Id" = ?', "{damaged", bad)
    async with bus:
        await bus.drain()
        damaged = await read_row(bus, "published", bad)
        assert (damaged["StatusName"], damaged["Retries"]) == ("Failed", 0)
        assert "cannot be read" in damaged["LastError"]
    assert handled == [2]
    assert [info.message_id for info in failed] == [bad]


async def test_finally_failed_message_is_published_to_the_dead_letter_topic(make_bus: MakeBus) -> None:
    dead: list[tuple[Any, Headers]] = []
    bus = make_bus(retry=TWICE)

    @bus.subscribe("order.created", dead_letter="order.dead")
    def handle(value: dict) -> None:
        raise Reject("no") if value["n"] == 2 else ValueError("not today")

    @bus.subscribe("order.dead")
    def bury(value: dict, headers: Headers) -> None:
        dead.append((value, headers))

    async with bus:
        number = await bus.publish("order.created", {"n": 1, "text": "ü"}, key="k", headers={"x": "1"})
        await bus.publish("order.created", {"n": 2})
        await bus.drain()
    assert sorted(value["n"] for value, _ in dead) == [1, 2]
    [(value, headers)] = [each for each in dead if each[0]["n"] == 1]
    assert value == {"n": 1, "text": "ü"}
    assert sorted(str(each[1]["sp-error"]) for each in dead) == ["Reject-->no", "ValueError-->not today"]
    assert (headers.correlation_id, headers["x"], headers.name) == (str(number), "1", "order.dead")


async def test_handlers_can_be_added_and_removed_at_run_time(make_bus: MakeBus) -> None:
    heard: list[tuple[str, int]] = []
    bus = make_bus()

    async def first(value: int) -> None:
        heard.append(("first", value))

    async def second(value: int) -> None:
        heard.append(("second", value))

    async with bus:
        bus.subscriptions.add("order.created", first, group="first")
        await bus.core.worker.listening("first.v1")
        await bus.publish("order.created", 1)
        await bus.drain()
        bus.subscriptions.add("order.created", second, group="second")
        bus.subscriptions.remove("order.created", first)
        await bus.core.worker.listening("second.v1")
        await bus.publish("order.created", 2)
        await bus.drain()
    assert [each for each in heard if each[0] == "first"] == [("first", 1)]
    assert ("second", 2) in heard


async def test_most_specific_pattern_gets_the_event(make_bus: MakeBus) -> None:
    heard: list[tuple[str, str]] = []
    bus = make_bus()

    def taking(pattern: str) -> Callable[[Event], None]:
        def handle(event: Event) -> None:
            heard.append((pattern, event.name))

        return handle

    for pattern in ("#", "order.*", "order.#", "order.created"):
        bus.subscriptions.add(pattern, taking(pattern))
    names = ["order.created", "order.paid", "order.eu.paid", "order", "Order.created", "stock_x-1.low"]
    async with bus:
        await bus.publish_many([(name, 1) for name in names])
        await bus.drain()
    assert sorted(heard) == sorted(
        [
            ("order.created", "order.created"),
            ("order.*", "order.paid"),
            ("order.#", "order.eu.paid"),
            ("order.#", "order"),
            ("#", "Order.created"),
            ("#", "stock_x-1.low"),
        ]
    )


async def test_executors_claim_only_the_groups_they_serve(make_bus: MakeBus, tmp_path: Path) -> None:
    heard: list[str] = []
    shop, mail = make_bus(), make_bus(app="mail")
    shop.subscriptions.add("order.created", lambda value: heard.append("shop"))
    mail.subscriptions.add("order.created", lambda value: heard.append("mail"))
    async with mail:
        pass  # join the group once, so that the broker keeps events for it
    async with shop:
        await shop.publish("order.created", 1)
        await shop.drain()
        assert heard == ["shop"]
    async with mail:
        await mail.drain()
        assert sorted(each["Group"] for each in await read_rows(mail, "received")) == ["cap.queue.mail.v1", GROUP]
    assert heard == ["shop", "mail"]


async def test_handlers_get_payloads_of_their_declared_type(make_bus: MakeBus) -> None:
    got: list[Any] = []
    bus = make_bus()

    @bus.subscribe("receipt", group="struct")
    async def struct(receipt: Receipt) -> None:
        got.append(receipt)

    @bus.subscribe("receipt", group="raw")
    def raw(body: bytes) -> None:
        got.append(body)

    async with bus:
        await bus.publish("receipt", Receipt(7, "me"))
        await bus.drain()
    assert Receipt(7, "me") in got
    assert b'{"number":7,"by":"me"}' in got

"""Operations on stored messages, on every database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection
from tests.support.wait import eventually

from sparrow.bus import EventStatus, Reject, Retry, StateChange
from sparrow.bus.aio import EventBus
from sparrow.bus.errors import IllegalTransition, UnknownMessage
from sparrow.bus.operations.actions import BATCH_SIZE
from sparrow.bus.operations.stored_event import OperationResult, StoredEvent, Where
from sparrow.bus.sql.claims import claim_due, load_claimed
from sparrow.bus.sql.completion import mark_all_succeeded
from sparrow.bus.sql.statistics import EXACT_COUNT_MAX
from sparrow.bus.sql.stored_events import select_events
from sparrow.bus.telemetry.metrics import metrics
from sparrow.model.errors import Refused

pytestmark = pytest.mark.one_database

NEVER_AGAIN = {"retry": Retry(max=1), "retry_round_interval_s": None}
PUBLISH, SUBSCRIBE = 0, 1


def quiet(url: str, **options: Any) -> EventBus:
    """A bus without relay and handlers: published messages stay in the outbox."""
    return EventBus(url, "memory://", **options)


@asynccontextmanager
async def prepared(url: str, **options: Any) -> AsyncIterator[EventBus]:
    bus = quiet(url, **options)
    await bus.prepare()
    try:
        yield bus
    finally:
        await bus.stop()


async def on(bus: EventBus, work: Any) -> Any:
    return await bus.database.run(lambda db: work(db, bus.core.context.sql))


async def hold(bus: EventBus, count: int = 10, side: int = PUBLISH, group: str = "", lease_s: float = 60) -> list[int]:
    """Claim messages as a worker does."""

    def work(db: Connection, sql: Any) -> list[int]:
        claims = claim_due(db, sql, side, group, count, owner="somebody", lease_s=lease_s)
        return [one.claim.message_id for one in load_claimed(db, sql, side, claims)]

    return await on(bus, work)


async def send_all(bus: EventBus, count: int = 1_000) -> None:
    """Set published messages to Successed, without a relay."""

    def work(db: Connection, sql: Any) -> None:
        claims = claim_due(db, sql, PUBLISH, "", count, owner="relay", lease_s=60)
        mark_all_succeeded(db, sql, PUBLISH, [one.claim for one in load_claimed(db, sql, PUBLISH, claims)], 86_400)

    await on(bus, work)


async def queued(bus: EventBus) -> set[tuple[int, int]]:
    rows = await on(bus, lambda db, sql: sql.rows(db, f'SELECT "MessageType", "MessageId" FROM {sql.names.queue}'))
    return {(row[0], row[1]) for row in rows}


def ids(events: list[StoredEvent]) -> list[int]:
    return [event.id for event in events]


# -- find ------------------------------------------------------------------------------------------------------------


async def test_stored_event_shows_all_fields_and_its_id_is_text_in_json(database_url: str) -> None:
    async with prepared(database_url) as bus:
        number = await bus.publish("order.created", {"n": 1, "t": "ü"}, key="k1", tenant="north")
        found = await bus.operations.get("published", number)
        assert (found.id, found.name, found.group, found.key) == (number, "order.created", None, "k1")
        assert (found.value, found.status, found.retries, found.rounds) == (
            {"n": 1, "t": "ü"},
            EventStatus.SCHEDULED,
            0,
            0,
        )
        assert (found.error, found.parked, found.expires_at, found.version) == (None, False, None, "v1")
        assert found.message_id == found.headers["cap-msg-id"] == str(number)
        assert abs(datetime.now(UTC) - found.added) < timedelta(minutes=1)
        assert found.due_at is not None
        assert found.locked_by is None
        assert f'"id":"{number}"' in found.to_json()
        with pytest.raises(UnknownMessage):
            await bus.operations.get("received", number)
        with pytest.raises(UnknownMessage):
            await bus.operations.get("published", 2**80)


async def test_pages_are_ordered_by_number_newest_first_and_skip_nothing(database_url: str) -> None:
    async with prepared(database_url) as bus:
        made = await bus.publish_many([("order.created", {"n": n}) for n in range(25)])
        seen: list[int] = []
        page = await bus.operations.find("published", limit=10)
        while page:
            seen += ids(page)
            await bus.publish("late", None)  # a newer message does not shift the pages
            page = await bus.operations.find("published", limit=10, before_id=page[-1].id)
        assert seen == sorted(made, reverse=True)
        assert len(await bus.operations.find("published", limit=1, before_id=2**70)) == 1
        with pytest.raises(Refused):
            await bus.operations.find("published", limit=0)


@pytest.mark.parametrize("status_writes", ["full", "compact"])
async def test_messages_are_found_by_their_current_state(database_url: str, status_writes: Any) -> None:
    async with prepared(database_url, status_writes=status_writes) as bus:
        operations = bus.operations
        sent = await bus.publish("a", None)
        await send_all(bus)
        held = await bus.publish("a", None)
        assert await hold(bus) == [held]
        waiting = await bus.publish("a", None)
        later = await bus.publish("a", None, delay=3600)
        gone = await bus.publish("a", None, delay=3600)
        await operations.cancel(gone)
        again = await bus.publish("a", None, delay=3600)
        await operations.cancel(again)
        await operations.requeue(again)
        expected = {
            EventStatus.SUCCESSED: sent,
            EventStatus.PROCESSING: held,
            EventStatus.SCHEDULED: waiting,
            EventStatus.DELAYED: later,
            EventStatus.CANCELLED: gone,
            EventStatus.ENQUEUED: again,
        }
        for status, number in expected.items():
            found = await operations.find("published", Where(status=status))
            assert [(event.id, event.status) for event in found] == [(number, status)], status
            assert (await operations.get("published", number)).status is status
        assert {event.id: event.status for event in await operations.find("published")} == {
            number: status for status, number in expected.items()
        }
        assert ids(await operations.find("published", Where(status="Open"))) == [again, later, waiting, held]
        stats = (await operations.stats()).published
        assert stats.by_status == {status.value: 1 for status in expected if status is not EventStatus.SUCCESSED} | {
            "Failed": 0
        }
        assert (stats.open, stats.rows.count, stats.succeeded.count) == (4, 6, 1)


async def test_each_filter_selects_the_messages_it_describes(database_url: str) -> None:
    async with prepared(database_url) as bus:
        first = await bus.publish("order.created", {"text": "50% of _all_ \\ 'x'"}, key="k", tenant="north")
        second = await bus.publish("order.created.late", {"text": "Ünder"}, headers={"cap-corr-id": "c-7"})

        async def found(**conditions: Any) -> list[int]:
            return ids(await bus.operations.find("published", Where(**conditions)))

        assert await found(name="order.created") == [first], "a name must match exactly"
        assert await found(name="Order.Created") == []
        assert await found(content="50% of _all_") == [first]
        assert await found(content="50_ of") == [], "% and _ must not be wildcards"
        assert await found(content="5%") == []
        assert await found(content="Ünder") == [second]
        assert await found(content="ünder") == []
        assert await found(content="' OR 1=1 --") == []
        assert await found(correlation_id="c-7") == [second]
        assert await found(correlation_id="c-") == [], "a correlation id must match completely"
        assert await found(correlation_id=str(first)) == [first], "the first event of a conversation is part of it"
        assert await found(tenant="north") == [first]
        assert await found(key="k") == [first]
        assert await found(message_id=str(second)) == [second]
        assert await found(message_id="no number") == []
        assert await found(group="billing.v1") == [], "published events have no group"
        added = (await bus.operations.get("published", second)).added
        assert await found(added_since=added) == [second] or await found(added_since=added) == [second, first]
        assert await found(added_until=added + timedelta(seconds=1)) == [second, first]
        assert await found(added_since=added + timedelta(seconds=1)) == []
        assert await found(added_since=(added - timedelta(hours=1)).replace(tzinfo=None)) == [second, first]
        assert await found(parked=True) == []
        assert await found(name="order.created", tenant="south") == []


async def test_received_messages_are_found_by_group_error_and_parked(database_url: str) -> None:
    bus = EventBus(database_url, "memory://", **NEVER_AGAIN)

    @bus.subscribe("order.created", group="billing")
    def bill(order: dict[str, Any]) -> None:
        raise Reject("no such customer 17")

    @bus.subscribe("order.created", group="audit")
    def audit(order: dict[str, Any]) -> None:
        raise ValueError("audit is closed")

    async with bus:
        number = await bus.publish("order.created", {"n": 1})
        await bus.drain()
        operations = bus.operations
        [billing] = await operations.find("received", Where(group="billing.v1"))
        assert (billing.status, billing.parked, billing.message_id) == (EventStatus.FAILED, True, str(number))
        assert "no such customer" in (billing.error or "")
        assert ids(await operations.find("received", Where(error="no such customer"))) == [billing.id]
        assert ids(await operations.find("received", Where(parked=True))) == [billing.id]
        [auditing] = await operations.find("received", Where(parked=False))
        assert auditing.group == "audit.v1"
        both = await operations.find("received", Where(message_id=str(number)))
        assert {event.id for event in both} == {billing.id, auditing.id}

        timeline = await operations.timeline(str(number))
        assert timeline[0].id == number
        assert {event.id for event in timeline[1:]} == {billing.id, auditing.id}

        failures = await operations.failures()
        assert {(each.error, each.count, each.parked, each.groups) for each in failures} == {
            ("Reject-->no such customer …", 1, 1, ("billing.v1",)),
            ("ValueError-->audit is closed", 1, 0, ("audit.v1",)),
        }
        assert all(each.names == ("order.created",) and each.first_added == each.last_added for each in failures)


# -- by number -------------------------------------------------------------------------------------------------------


async def test_requeued_message_is_sent_again_with_its_id(database_url: str) -> None:
    bus = EventBus(database_url, "memory://")
    handled: list[str] = []

    @bus.subscribe("order.created", dedupe=False)
    def on_order(order: dict[str, Any], headers: Any = None) -> None:
        handled.append(order["n"])

    async with bus:
        number = await bus.publish("order.created", {"n": 1})
        await bus.drain()
        assert (await bus.operations.requeue(number)).count == 1
        await bus.drain()
        assert handled == [1, 1]
        found = await bus.operations.get("published", number)
        assert (found.status, found.rounds) == (EventStatus.SUCCESSED, 1)
        assert await queued(bus) == set()


async def test_reexecute_calls_the_handler_again(database_url: str) -> None:
    is_open = False
    bus = EventBus(database_url, "memory://", **NEVER_AGAIN)
    handled: list[dict[str, Any]] = []

    @bus.subscribe("order.created")
    def on_order(order: dict[str, Any]) -> None:
        if not is_open:
            raise ValueError("closed")
        handled.append(order)

    async with bus:
        await bus.publish("order.created", {"n": 1})
        await bus.drain()
        [failed] = await bus.operations.find("received", Where(status=EventStatus.FAILED))
        assert failed.expires_at is not None
        assert failed.retries == 1
        is_open = True
        outcome = await bus.operations.reexecute(failed.id)
        assert (outcome.count, outcome.ids, outcome.is_dry) == (1, (failed.id,), False)
        await bus.drain()
        assert handled == [{"n": 1}]
        again = await bus.operations.get("received", failed.id)
        assert (again.status, again.retries, again.rounds, again.added) == (EventStatus.SUCCESSED, 0, 1, failed.added)
        assert bus.core.context.probe.totals['bus_operations_total{action="requeue",side="received"}'] == 1


async def test_cancelled_message_is_never_sent_and_expires_in_a_day(database_url: str) -> None:
    states: list[StateChange] = []
    bus = EventBus(database_url, "memory://", on_state=states.append)
    handled: list[object] = []
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        number = await bus.publish("order.created", {"n": 1}, delay=60)
        await bus.operations.cancel(number)
        found = await bus.operations.get("published", number)
        assert found.status is EventStatus.CANCELLED
        assert found.expires_at is not None
        assert timedelta(hours=23, minutes=59) < found.expires_at - datetime.now(UTC) <= timedelta(hours=24, seconds=5)
        assert [change.status for change in states] == [EventStatus.DELAYED, EventStatus.CANCELLED]
        bus.advance(120)
        await bus.drain()
        assert handled == []
        with pytest.raises(IllegalTransition, match="is Cancelled: it cannot become Cancelled"):
            await bus.operations.cancel(number)


async def test_claimed_or_finished_message_cannot_be_cancelled_or_requeued(database_url: str) -> None:
    async with prepared(database_url, status_writes="compact") as bus:
        held = await bus.publish("a", None)
        await hold(bus)
        waiting = await bus.publish("a", None)
        with pytest.raises(IllegalTransition, match="is Processing: it cannot become Cancelled"):
            await bus.operations.cancel(waiting, held)
        assert (await bus.operations.get("published", waiting)).status is EventStatus.SCHEDULED, (
            "either all rows change or none"
        )
        with pytest.raises(IllegalTransition, match="is Scheduled: it cannot become Enqueued"):
            await bus.operations.requeue(waiting)
        with pytest.raises(IllegalTransition):
            await bus.operations.publish_now(waiting)
        with pytest.raises(IllegalTransition):
            await bus.operations.park(waiting, side="published")
        with pytest.raises(UnknownMessage):
            await bus.operations.cancel(4711)
        with pytest.raises(Refused):
            await bus.operations.cancel()
        assert await queued(bus) == {(PUBLISH, held), (PUBLISH, waiting)}


async def test_delayed_message_can_be_published_now(database_url: str) -> None:
    bus = EventBus(database_url, "memory://")
    handled: list[object] = []
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        number = await bus.publish("order.created", {"n": 1}, delay=timedelta(days=30))
        await bus.drain()
        assert handled == []
        await bus.operations.publish_now(number)
        await bus.drain()
        assert handled == [{"n": 1}]


async def test_open_message_is_deleted_only_with_force_and_never_while_claimed(database_url: str) -> None:
    async with prepared(database_url) as bus:
        sent = await bus.publish("a", None)
        await send_all(bus)
        held = await bus.publish("a", None)
        await hold(bus)
        waiting = await bus.publish("a", None)
        assert (await bus.operations.delete(sent)).count == 1
        with pytest.raises(IllegalTransition, match="is Scheduled: it cannot become deleted"):
            await bus.operations.delete(waiting)
        assert (await bus.operations.delete(waiting, force=True)).count == 1
        with pytest.raises(IllegalTransition, match="is Processing"):
            await bus.operations.delete(held, force=True)
        assert ids(await bus.operations.find("published")) == [held]
        assert await queued(bus) == {(PUBLISH, held)}
        bus.advance(120)  # the worker is gone and its lease expired
        await bus.operations.delete(held, force=True)
        assert await queued(bus) == set()


async def test_parked_message_gets_no_retry_round_until_it_is_unparked(database_url: str) -> None:
    bus = EventBus(database_url, "memory://", retry=Retry(max=1), retry_round_interval_s=1e6)
    runs: list[int] = []

    @bus.subscribe("order.created")
    def on_order(order: dict[str, Any]) -> None:
        runs.append(1)
        raise ValueError("closed")

    async with bus:
        await bus.publish("order.created", {})
        await bus.drain()
        [failed] = await bus.operations.find("received", Where(status=EventStatus.FAILED))
        await bus.operations.park(failed.id)
        assert (await bus.operations.get("received", failed.id)).parked
        assert await bus.core.worker.maintenance.start_retry_rounds() == 0
        assert (await bus.operations.stats()).received.parked == 1
        await bus.operations.unpark(failed.id)
        assert await bus.core.worker.maintenance.start_retry_rounds() == 1
        await bus.drain()
        assert len(runs) == 2


async def test_two_concurrent_requeues_of_a_message_requeue_it_once(database_url: str) -> None:
    async with prepared(database_url) as bus:
        number = await bus.publish("a", None)
        await send_all(bus)
        results = await asyncio.gather(*(bus.operations.requeue(number) for _ in range(5)), return_exceptions=True)
        assert [result.count for result in results if isinstance(result, OperationResult)] == [1]
        assert sum(isinstance(result, IllegalTransition) for result in results) == 4, results
        assert await queued(bus) == {(PUBLISH, number)}
        assert (await bus.operations.get("published", number)).rounds == 1


async def test_of_a_cancel_and_a_concurrent_claim_exactly_one_wins(database_url: str) -> None:
    async with prepared(database_url) as bus:
        numbers = await bus.publish_many([("a", None)] * 40)

        async def cancel(number: int) -> bool:
            try:
                await bus.operations.cancel(number)
            except IllegalTransition:
                return False
            return True

        held: list[int] = []

        async def work() -> None:
            while got := await hold(bus, 3):
                held.extend(got)

        results = await asyncio.gather(work(), *(cancel(number) for number in numbers[::-1]))
        cancelled = {number for number, done in zip(numbers[::-1], results[1:], strict=True) if done}
        assert cancelled.isdisjoint(held)
        assert cancelled | set(held) == set(numbers)


# -- by filter -------------------------------------------------------------------------------------------------------


async def test_filter_changes_messages_in_batches_and_a_dry_run_changes_none(database_url: str) -> None:
    async with prepared(database_url) as bus:
        wanted = await bus.publish_many([("order.created", {"n": n}) for n in range(BATCH_SIZE + 20)])
        others = await bus.publish_many([("other", {"n": n}) for n in range(5)])
        await send_all(bus, 2 * BATCH_SIZE)
        where = Where(name="order.created", status=EventStatus.SUCCESSED)
        dry = await bus.operations.requeue(where=where, dry_run=True)
        assert (dry.count, dry.is_dry) == (len(wanted), True)
        assert dry.ids == tuple(sorted(wanted))[: len(dry.ids)]
        assert len(dry.ids) > 1
        assert await queued(bus) == set()
        assert (await bus.operations.requeue(where=where, limit=7)).count == 7
        assert await queued(bus) == {(PUBLISH, number) for number in sorted(wanted)[:7]}, "the oldest must come first"
        assert (await bus.operations.requeue(where=where)).count == len(wanted) - 7
        assert await queued(bus) == {(PUBLISH, number) for number in wanted}
        assert (await bus.operations.requeue(where=where)).count == 0
        assert {event.status for event in await bus.operations.find("published", Where(name="other"))} == {
            EventStatus.SUCCESSED
        }
        assert (await bus.operations.delete(where=Where(status=EventStatus.SUCCESSED))).count == len(others)


async def test_filter_without_a_state_selects_the_safe_default_state(database_url: str) -> None:
    async with prepared(database_url) as bus:
        await bus.publish("a", None)
        await send_all(bus)
        await bus.publish("a", None)
        later = await bus.publish("a", None, delay=60)
        assert (await bus.operations.requeue(where=Where(name="a"))).count == 0, "nothing has failed"
        assert (await bus.operations.delete(where=Where(name="a"))).count == 0
        assert (await bus.operations.cancel(where=Where(name="a"))).ids == (later,), (
            "Scheduled events must be selected by their status"
        )
        assert (await bus.operations.cancel(where=Where(name="a", status=EventStatus.SCHEDULED))).count == 1


def test_state_of_a_filter_may_be_text_and_must_be_known() -> None:
    assert Where(status="failed").status is EventStatus.FAILED  # type: ignore[arg-type]
    assert Where(status="Succeeded").status is EventStatus.SUCCESSED  # type: ignore[arg-type]
    assert Where(status="open").status == "Open"  # type: ignore[arg-type]
    with pytest.raises(Refused, match="is not a state"):
        Where(status="gone")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="do not store"):
        Where(content="a\0b")


async def test_filter_with_a_state_as_text_changes_no_other_messages(database_url: str) -> None:
    async with prepared(database_url, succeeded_spelling="Succeeded") as bus:
        sent = await bus.publish("a", None)
        await send_all(bus)
        gone = await bus.publish("a", None)
        await bus.operations.cancel(gone)
        where = Where(status="cancelled")  # type: ignore[arg-type]
        assert (await bus.operations.delete(where=where)).ids == (gone,)
        [left] = await bus.operations.find("published", Where(status=EventStatus.SUCCESSED))
        assert (left.id, left.status) == (sent, EventStatus.SUCCESSED)
        stats = (await bus.operations.stats()).published
        assert (stats.succeeded.count, sum(stats.by_status.values())) == (1, 0)
        assert (await bus.operations.requeue(sent)).count == 1


async def test_cancelling_the_first_message_of_a_key_releases_the_next(database_url: str) -> None:
    bus = EventBus(database_url, "memory://")
    handled: list[object] = []
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        first = await bus.publish("order.created", {"n": 1}, key="k", delay=3600)
        await bus.publish("order.created", {"n": 2}, key="k")
        await bus.operations.cancel(first)
        await eventually(lambda: handled == [{"n": 2}])


async def test_invalid_filters_are_refused(database_url: str) -> None:
    async with prepared(database_url) as bus:
        operations = bus.operations
        with pytest.raises(Refused, match="the filter is empty"):
            await operations.delete(where=Where())
        with pytest.raises(Refused, match="in state Processing cannot become Cancelled"):
            await operations.cancel(where=Where(status=EventStatus.PROCESSING))
        with pytest.raises(Refused, match="or `where`"):
            await operations.requeue(1, where=Where(name="a"))
        with pytest.raises(Refused, match="limit"):
            await operations.requeue(where=Where(name="a"), limit=0)
        with pytest.raises(Refused, match="rate"):
            await operations.requeue(where=Where(name="a"), rate=0)


async def test_rate_limit_is_not_exceeded(database_url: str) -> None:
    async with prepared(database_url) as bus:
        await bus.publish_many([("a", None)] * 30)
        await send_all(bus)
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = await bus.operations.requeue(where=Where(status=EventStatus.SUCCESSED), rate=100)
        assert outcome.count == 30
        assert loop.time() - began >= 0.29


async def test_messages_of_one_key_are_requeued_in_order(database_url: str) -> None:
    async with prepared(database_url) as bus:
        numbers = await bus.publish_many([("a", {"n": n}, "k") for n in range(5)])
        for _ in numbers:
            await send_all(bus)
        await bus.operations.requeue(where=Where(key="k", status=EventStatus.SUCCESSED))
        order = []
        while held := await hold(bus):
            order += held
            await on(
                bus,
                lambda db, sql: sql.change(db, f'DELETE FROM {sql.names.queue} WHERE "LockedBy" IS NOT NULL'),
            )
        assert order == sorted(numbers)


def test_blocking_operations_equal_the_asyncio_ones(database_url: str) -> None:
    bus = quiet(database_url)
    bus.blocking.prepare()
    try:
        number = bus.blocking.publish("a", {"n": 1}, delay=60)
        operations = bus.blocking.operations
        assert operations.get("published", number).status is EventStatus.DELAYED
        assert operations.find("published", Where(content='"n":1'))[0].id == number
        operations.cancel(number)
        with pytest.raises(IllegalTransition):
            operations.cancel(number)
        assert operations.requeue(number).count == 1
        assert operations.backlog()[0].open == 1
        assert operations.backlog(by_name=True)[0].name == "a"
        assert operations.failures() == []
        assert operations.stats().published.by_status["Enqueued"] == 1
        assert operations.timeline(str(number))[0].id == number
        assert operations.delete(number, force=True).count == 1

        async def inside_a_loop() -> None:
            with pytest.raises(Refused, match="block the event loop"):
                operations.find("published")

        asyncio.run(inside_a_loop())
    finally:
        asyncio.run(bus.stop())


# -- statistics ------------------------------------------------------------------------------------------------------


async def test_stats_report_backlog_lag_and_age_by_group_and_topic(database_url: str) -> None:
    async with prepared(database_url) as bus:
        await bus.publish("b", None)
        held = await hold(bus)
        await bus.publish_many([("a", None), ("a", None), ("b", None)])
        await bus.publish("late", None, delay=86_400)
        bus.advance(30)
        [group] = await bus.operations.backlog()
        assert (group.side, group.group, group.name, group.open, group.held, group.due) == (
            "published",
            "",
            None,
            5,
            len(held),
            3,
        )
        assert 30 <= group.lag_s < 60
        topics = {each.name: (each.open, each.due) for each in await bus.operations.backlog(by_name=True)}
        assert topics == {"a": (2, 2), "b": (2, 1), "late": (1, 0)}
        stats = await bus.operations.stats()
        assert 30 <= stats.published.oldest_open_s < 60
        assert stats.received.oldest_open_s == 0
        await bus.operations.delete(where=Where(status="Open"), force=True)
        bus.advance(60)
        await bus.operations.delete(*held, force=True)
        assert (await bus.operations.stats()).published.oldest_open_s == 0


async def test_large_tables_are_estimated_instead_of_counted(database_url: str) -> None:
    async with prepared(database_url) as bus:
        await bus.publish("a", None)
        await send_all(bus)

        def fill(db: Connection, sql: Any) -> None:
            table, columns = sql.names.published, '"Version", "Name", "Content", "Added", "StatusName", "ExpiresAt"'
            doubling = f'INSERT INTO {table} ("Id", {columns}) SELECT "Id" + ?, {columns} FROM {table}'
            for power in range(14):
                sql.change(db, doubling, 2**power)
            if sql.kind == "sqlite":
                sql.run(db, "ANALYZE")
            elif sql.kind == "mysql":
                sql.rows(db, f"ANALYZE TABLE {table}")

        await on(bus, fill)
        if bus.database.kind == "postgresql":
            await on(bus, lambda db, sql: sql.run(db, f"ANALYZE {sql.names.published}"))
        stats = (await bus.operations.stats()).published
        assert stats.by_status["Failed"] == 0
        assert not stats.rows.is_exact
        assert EXACT_COUNT_MAX <= stats.succeeded.count < 2 * 2**14


async def test_lists_of_failed_and_cancelled_messages_use_an_index(database_url: str) -> None:
    """Without an index, each list would read the whole table."""
    async with prepared(database_url) as bus:
        await bus.publish_many([("a", None)] * 1_000)
        await send_all(bus, 1_000)

        def plan(db: Connection, sql: Any) -> str:
            chosen = select_events(sql, PUBLISH, Where(status=EventStatus.FAILED))
            explain = "EXPLAIN QUERY PLAN" if sql.kind == "sqlite" else "EXPLAIN"
            rows = sql.rows(db, f'{explain} SELECT m."Name" {chosen.text} ORDER BY {chosen.number} DESC LIMIT 50')
            return " ".join(str(row) for row in rows)

        if bus.database.kind == "postgresql":
            await on(bus, lambda db, sql: sql.run(db, f"ANALYZE {sql.names.published}"))
        assert "published_open" in await on(bus, plan)


# -- metrics ---------------------------------------------------------------------------------------------------------


async def test_metrics_cover_the_tables_and_the_process(database_url: str) -> None:
    bus = EventBus(database_url, "memory://")
    bus.subscriptions.add("order.created", lambda order: None, group="billing")
    async with bus:
        await bus.publish("order.created", {})
        await bus.publish("order.created", {}, delay=3600)
        await bus.drain()
        text = await metrics(bus)
    lines = text.splitlines()
    assert "bus_published_total 2" in lines
    assert "bus_sent_total 1" in lines
    assert 'bus_handled_total{result="ok"} 1' in lines
    assert 'bus_queue_depth{side="published",group=""} 1' in lines
    assert 'bus_oldest_open_seconds{side="published"} 0.0' in lines
    assert "bus_handle_seconds_count 1" in lines
    assert "bus_database_reachable 1" in lines

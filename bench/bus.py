"""The event bus against its database: MariaDB, PostgreSQL (started here) and SQLite.

The compared operations alternate in one run; ratios are medians over the rounds, of adjacent measurements.

1. A transaction that writes one business row and publishes one event, against the same transaction with a bare INSERT
   of the Published row instead. Blocking drivers, and asyncio drivers beside them.
2. `publish_many(1000)` against a bare bulk insert of the same Published rows.
3. The relay: committed events to a Sparrow broker, one worker.
4. The executor: a handler that writes one row in its own session, one worker; against the same transactions without a
   bus (as many tasks, each with an AsyncSession of its own), and its CPU time.
5. Relay and executor with 10^4 to 10^6 finished rows in the wide tables, 10^7 with SPARROW_SCALE=huge.

SPARROW_BENCH_ONLY names databases (MariaDB, PostgreSQL, SQLite), SPARROW_BENCH_PARTS parts (publish, executor, tables).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from statistics import median
from typing import Any

import uvloop
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from _databases import KINDS, database
from _harness import Row, folder_on_disk, is_smoke, report
from broker import broker
from sparrow.bus import Headers, OutgoingEvent
from sparrow.bus.aio import EventBus
from sparrow.bus.codec.headers import ID, NAME
from sparrow.bus.sql.outbox import PublishedRow
from sparrow.bus.transports.spi import BrokerDelivery, Envelope

SMOKE = is_smoke()
ROUNDS = 3 if SMOKE else 15
SINGLES = 20 if SMOKE else 200
BULK = 100 if SMOKE else 1_000
RELAYED = 400 if SMOKE else 30_000
HANDLED = 200 if SMOKE else 12_000
HANDLERS = 16
EXECUTOR_ROUNDS = 1 if SMOKE else 3
PARTS = os.environ.get("SPARROW_BENCH_PARTS", "publish,executor,tables").split(",")
TABLE_ROWS = (
    (0, 1_000)
    if SMOKE
    else tuple(int(float(n)) for n in os.environ.get("SPARROW_BENCH_ROWS", "1e4,1e5,1e6").split(","))
)
if os.environ.get("SPARROW_SCALE") == "huge":
    TABLE_ROWS += (10_000_000,)
ORDER = {"order": 4711, "customer": "Ada Lovelace", "lines": [{"sku": "A-1", "count": 2}, {"sku": "B-2", "count": 1}]}
CREATE = "CREATE TABLE business (id BIGINT NOT NULL, what VARCHAR(100) NOT NULL)"
WRITE = text("INSERT INTO business (id, what) VALUES (:id, :what)")


def bus_on(url: str, broker: Any = "memory://", **options: Any) -> EventBus:
    return EventBus(url, broker, app="bench", concurrency=HANDLERS, cleanup_interval_s=1e6, **options)


# -- publishing ------------------------------------------------------------------------------------------------------


def bare_statement(bus: EventBus, paramstyle: str) -> str:
    sql = bus.core.context.sql_for(bus.database.kind, paramstyle)
    return sql.text(
        f'INSERT INTO {sql.names.published} ("Id", "Version", "Name", "Content", "Added", "StatusName", "OrderKey")'
        f" VALUES (?, ?, ?, ?, {sql.now}, ?, ?)"
    )


def row_of(event: PublishedRow) -> tuple[Any, ...]:
    return (event.id, "v1", event.name, event.content, "Scheduled", None)


def measure_publish(bus: EventBus) -> tuple[float, float]:
    """Return the seconds of one transaction, with a bare INSERT and with `publish`."""
    event_encoder, engine = bus.core.context.event_encoder, bus.database.engine
    statement = bare_statement(bus, engine.dialect.paramstyle)

    def bare() -> None:
        event = event_encoder.encode(OutgoingEvent("bench.published", ORDER))
        with Session(engine) as session, session.begin():
            session.execute(WRITE, {"id": event.id, "what": "bare"})
            session.connection().exec_driver_sql(statement, row_of(event))

    def published() -> None:
        with Session(engine) as session, session.begin():
            session.execute(WRITE, {"id": 1, "what": "published"})
            bus.blocking.publish("bench.published", ORDER, session=session)

    return side_by_side(bare, published, SINGLES)


def side_by_side(first: Callable[[], None], second: Callable[[], None], count: int) -> tuple[float, float]:
    """Alternate the two, so that load on the machine affects both; return the median seconds of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        for work, taken in zip((first, second), times, strict=True):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    return median(times[0]), median(times[1])


async def measure_publish_async(bus: EventBus) -> tuple[float, float]:
    event_encoder, engine = bus.core.context.event_encoder, bus.database.async_engine
    statement = bare_statement(bus, engine.dialect.paramstyle)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(SINGLES):
        began = time.perf_counter()
        event = event_encoder.encode(OutgoingEvent("bench.published", ORDER))
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(WRITE, {"id": event.id, "what": "bare"})
            await (await session.connection()).exec_driver_sql(statement, row_of(event))
        between = time.perf_counter()
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(WRITE, {"id": 1, "what": "published"})
            await bus.publish("bench.published", ORDER, session=session)
        times[0].append(between - began)
        times[1].append(time.perf_counter() - between)
    return median(times[0]), median(times[1])


def measure_publish_many(bus: EventBus) -> tuple[float, float]:
    """Return the seconds of a transaction of many rows, by SQLAlchemy's bulk insert and by `publish_many`."""
    event_encoder, engine = bus.core.context.event_encoder, bus.database.engine
    table = bus.metadata().tables[f"{bus.settings.space(bus.database.kind)}.published"]
    events = [OutgoingEvent("bench.published", ORDER)] * BULK
    sql = bus.core.context.sql_for(bus.database.kind, engine.dialect.paramstyle)

    def bare() -> None:
        from datetime import UTC, datetime

        now = sql.to_time(datetime.now(UTC))
        drafts = [event_encoder.encode(event) for event in events]
        rows = [
            {"Id": d.id, "Version": "v1", "Name": d.name, "Content": d.content, "Added": now, "StatusName": "Scheduled"}
            for d in drafts
        ]
        with Session(engine) as session, session.begin():
            session.execute(table.insert(), rows)

    def published() -> None:
        with Session(engine) as session, session.begin():
            bus.blocking.publish_many(events, session=session)

    return side_by_side(bare, published, ROUNDS)


# -- the relay and the executor --------------------------------------------------------------------------------------


def empty_queue(bus: EventBus) -> None:
    """Delete the unfinished rows of earlier measurements."""

    def work(db: Connection) -> None:
        names, sql = bus.core.context.sql.names, bus.core.context.sql_of(db)
        sql.change(db, f"DELETE FROM {names.queue}")
        sql.change(db, f'DELETE FROM {names.published} WHERE "StatusName" <> ?', "Successed")

    bus.database.run_blocking(work)


async def measure_relay(bus: EventBus) -> float:
    """Return events per second, from the start of a worker until the last row is marked as sent."""
    for first in range(0, RELAYED, 1000):
        size = min(1000, RELAYED - first)
        await bus.publish_many([OutgoingEvent("bench.relayed", ORDER)] * size)
    async with time_until(bus, "bus_sent_total", RELAYED) as took:
        pass
    return RELAYED / took()


class ReadyTransport:
    """A transport without a broker that has a number of deliveries ready for its group."""

    def __init__(self, group_of: str, count: int) -> None:
        self._left, self._name = count, group_of
        self._numbers = iter(range(time.time_ns(), time.time_ns() + count + 1))

    def check_name(self, name: str) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def send(self, envelopes: list[Envelope]) -> list[Exception | None]:
        return [None] * len(envelopes)

    async def listen(self, group: str, names: object, *, prefetch: int) -> ReadyTransport:
        return self

    async def receive(self, count_max: int) -> list[BrokerDelivery]:
        if not self._left:
            await asyncio.Event().wait()
        count = min(self._left, count_max)
        self._left -= count
        return [
            BrokerDelivery(
                name=self._name, headers={ID: str(next(self._numbers)), NAME: self._name}, body=b'{"order":4711}'
            )
            for _ in range(count)
        ]

    async def acknowledge(self, deliveries: object) -> None: ...

    async def release(self, deliveries: object) -> None: ...


async def measure_executor(url: str, **options: Any) -> float:
    """Return messages per second, from Received to Successed, with a handler that writes a row."""
    store = bus_on(url, ReadyTransport("bench.handled", HANDLED), runs_handlers=True, **options)
    store.subscriptions.add("bench.handled", _write_row, group="bench")
    # First store all messages; an executor of another process would find them in this state.
    await store.prepare()
    store.core.check()
    from sparrow.bus.worker.receiver import EventReceiver

    receiver = asyncio.create_task(EventReceiver(store.core.context, "bench.v1", ("bench.handled",)).run())
    while store.core.context.probe.totals["bus_received_total"] < HANDLED:
        await asyncio.sleep(0.01)
    receiver.cancel()
    await asyncio.gather(receiver, return_exceptions=True)
    async with time_until(store, 'bus_handled_total{result="ok"}', HANDLED) as took:
        pass
    return HANDLED / took()


async def measure_bare_handlers(bus: EventBus) -> float:
    """Return transactions per second, if as many tasks as there are handlers write the same rows without a bus."""

    async def write_rows(count: int) -> None:
        async with AsyncSession(bus.database.async_engine, expire_on_commit=False) as session:
            for number in range(count):
                await session.execute(WRITE, {"id": number, "what": "bare"})
                await session.commit()

    began = time.perf_counter()
    await asyncio.gather(*(write_rows(HANDLED // HANDLERS) for _ in range(HANDLERS)))
    return HANDLED // HANDLERS * HANDLERS / (time.perf_counter() - began)


async def compare_executor(kind: str, url: str) -> list[Row]:
    bus = bus_on(url)
    ratios, rates, costs_s = [], [], []
    for _ in range(EXECUTOR_ROUNDS):
        bare = await measure_bare_handlers(bus)
        before_s = time.process_time()
        rates.append(await measure_executor(url))
        costs_s.append((time.process_time() - before_s) / HANDLED)
        ratios.append(rates[-1] / bare)
    await bus.database.close()
    goal = 1_500 if kind == "SQLite" else 2_000
    return [
        Row(f"{kind}: executor", median(rates), "events/s", goal),
        Row(f"{kind}: executor / the handlers' transactions without a bus", median(ratios), "ratio"),
        Row(f"{kind}: CPU of Python to receive and handle an event", median(costs_s) * 1e6, "µs"),
    ]


async def _write_row(order: dict[str, Any], headers: Headers, session: AsyncSession) -> None:
    await session.execute(WRITE, {"id": order["order"], "what": headers.id})


@contextlib.asynccontextmanager
async def time_until(bus: EventBus, name: str, count: int) -> AsyncIterator[Callable[[], float]]:
    before = bus.core.context.probe.totals[name]
    began = time.perf_counter()
    ended = 0.0
    async with bus:
        while bus.core.context.probe.totals[name] - before < count:
            await asyncio.sleep(0.02)
        ended = time.perf_counter()
    yield lambda: ended - began


def fill(bus: EventBus, count: int) -> None:
    """Fill the tables with finished rows: insert a thousand and copy them until there are enough."""
    content = '{"Headers":{"cap-msg-id":"1"},"Value":' + str(ORDER).replace("'", '"') + "}"
    first_s = (("published", "", ""), ("received", ', "Group", "MsgId"', ", 'g', 'm'"))

    def begin(db: Connection) -> None:
        sql = bus.core.context.sql_of(db)
        for table, columns, values in first_s:
            row = f"(?, 'bench.old', ?, {sql.now}, {sql.plus(sql.now)}, 'Successed'{values})"
            for number in range(1, 1001):
                statement = f"INSERT INTO {getattr(sql.names, table)} ({_COLUMNS}{columns}) VALUES {row}"
                sql.change(db, statement, number, content, sql.span(86_400))

    def more(db: Connection, have: int, step: int) -> None:
        sql = bus.core.context.sql_of(db)
        for table, columns, _ in first_s:
            name = getattr(sql.names, table)
            sql.change(
                db,
                f"INSERT INTO {name} ({_COLUMNS}{columns}) SELECT {have} + {_COLUMNS}{columns} FROM {name}"
                f' WHERE "Id" <= {step}',
            )

    have = int(
        bus.database.run_blocking(lambda db: bus.core.context.sql_of(db).rows(db, _HAVE.format(bus=bus))[0][0]) or 0
    )
    if count and not have:
        bus.database.run_blocking(begin)
        have = 1000
    while have < count:
        step = min(have, count - have, 250_000)
        bus.database.run_blocking(lambda db, have=have, step=step: more(db, have, step))
        have += step
    if bus.database.kind == "postgresql":  # now, not in the background of a measurement
        with bus.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
            connection.exec_driver_sql("CHECKPOINT")


_COLUMNS = '"Id", "Name", "Content", "Added", "ExpiresAt", "StatusName"'
_HAVE = 'SELECT MAX("Id") FROM {bus.core.context.sql.names.received} WHERE "Name" = \'bench.old\''


# -- main ------------------------------------------------------------------------------------------------------------


async def measure(kind: str, url: str, name_server: str) -> list[Row]:
    rows: list[Row] = []
    bus = bus_on(url, runs_relay=False)
    await bus.aio.prepare()
    bus.database.run_blocking(lambda db: db.exec_driver_sql(CREATE))
    if "publish" in PARTS:
        rows += await compare_publishing(kind, bus)
    await bus.database.close()
    if "executor" in PARTS:
        rows += await compare_executor(kind, url)
    if "tables" in PARTS:
        rows += await compare_tables(kind, url, name_server)
    return rows


async def compare_publishing(kind: str, bus: EventBus) -> list[Row]:
    rows: list[Row] = []
    bare_s, ours_s = await asyncio.to_thread(measure_publish, bus)
    rows.append(Row(f"{kind}: publish in a transaction / bare INSERT", bare_s / ours_s, "ratio", 0.6))
    rows.append(Row(f"{kind}: a transaction that publishes", ours_s * 1e6, "µs"))
    bare_s, ours_s = await measure_publish_async(bus)
    rows.append(Row(f"{kind}: publish of the asyncio bus / bare INSERT", bare_s / ours_s, "ratio", 0.6))
    bare_s, ours_s = await asyncio.to_thread(measure_publish_many, bus)
    rows.append(Row(f"{kind}: publish_many({BULK}) / bare bulk insert", bare_s / ours_s, "ratio", 0.7))
    rows.append(Row(f"{kind}: publish_many({BULK})", BULK / ours_s, "events/s"))
    return rows


async def compare_tables(kind: str, url: str, name_server: str) -> list[Row]:
    """Measure relay and executor with a growing number of finished rows in the tables."""
    rows: list[Row] = []
    costs: list[tuple[float, float]] = []
    for count in TABLE_ROWS:
        bus = bus_on(url, f"sparrow://{name_server}")
        await asyncio.to_thread(fill, bus, count)
        await asyncio.to_thread(empty_queue, bus)
        relay = await measure_relay(bus)
        executor = await measure_executor(url)
        costs.append((relay, executor))
        goal = 5_000 if count == TABLE_ROWS[0] and kind != "SQLite" else None
        rows.append(Row(f"{kind}: relay, {count:,} old rows", relay, "events/s", goal))
        rows.append(Row(f"{kind}: executor, {count:,} old rows", executor, "events/s"))
    rows.append(Row(f"{kind}: relay, most / fewest old rows", costs[-1][0] / costs[0][0], "ratio", 0.8))
    rows.append(Row(f"{kind}: executor, most / fewest old rows", costs[-1][1] / costs[0][1], "ratio", 0.8))
    return rows


def main() -> None:
    rows: list[Row] = []
    only = os.environ.get("SPARROW_BENCH_ONLY", "").split(",")
    with folder_on_disk() as folder, broker(folder / "broker") as (_, _, name_servers):
        for kind in KINDS:
            if only != [""] and kind not in only:
                continue
            with database(kind) as url:
                rows += uvloop.run(measure(kind, url, name_servers))
    report("bus", rows)


if __name__ == "__main__":
    main()

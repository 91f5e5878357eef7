"""The SQL store against its databases and drivers: MariaDB, PostgreSQL (started here) and SQLite.

The compared operations alternate in one run; ratios are medians over the rounds, of adjacent measurements.

1. Appends of batches by one sender, against a bare INSERT of the same rows into a table with the same definition.
2. Senders of single messages on one lane, 32 against one.
3. Reads of 100 messages from the database, against a bare SELECT, and from the tail in the store's memory.
4. From an append's return to the notification of a waiting reader at another store on the same database.
5. Offsets of many groups saved together, against one by one.
6. The cost of an append and of a read in tables of 10^4 to 10^6 messages, 10^7 with SPARROW_SCALE=huge.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from statistics import median

import numpy as np
import uvloop

from _databases import KINDS, BareDriver, database, open_bare_driver
from _harness import Row, is_smoke, report
from sparrow.model.message import Draft
from sparrow.model.priority import Priority
from sparrow.model.queue import Queue, QueueOffset
from sparrow.model.topic import Topic
from sparrow.store.spi import Slice
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.row_codec import MESSAGE_COLUMNS, NewRow, row_of_draft
from sparrow.store.sql.schema.partitions import add_partitions

SMOKE = is_smoke()
BODY_BYTES = 1024
SMALL_BODY_BYTES = 100
"""Of the large tables: all of them are to fit into the server's memory."""
READ_COUNT = 100
READ_BYTES = 1 << 22
SENDERS = 32
GROUPS = 30
ROUNDS = 2 if SMOKE else 15
TABLE_ROWS = (500, 1_000) if SMOKE else (10_000, 100_000, 1_000_000)
if os.environ.get("SPARROW_SCALE") == "huge":
    TABLE_ROWS += (10_000_000,)

_numbers = iter(range(1 << 40))


def drafts(count: int, body_bytes: int = BODY_BYTES) -> list[Draft]:
    """Return drafts with new bodies, and with unique keys that grow like those of a real client."""
    now_ms = time.time_ns() // 1_000_000
    return [
        Draft(
            body=random.randbytes(body_bytes),
            properties=b"UNIQ_KEY\x017F0000010A2B18B4AAC2%012X\x02" % next(_numbers),
            born_ms=now_ms,
        )
        for _ in range(count)
    ]


async def alternate(rounds: int, *works: Callable[[], Awaitable[float]]) -> list[list[float]]:
    """Alternate the measurements, in changing order; return the results of each round without the warm-up round."""
    found: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for at in range(len(works)):
            which = (at + number) % len(works)
            value = await works[which]()
            if number:
                found[which].append(value)
    return found


def ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median ratio of adjacent measurements."""
    return median(value / of for value, of in zip(values, base, strict=True))


async def rate(count: int, work: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await work
    return count / (time.perf_counter() - begun)


class Bench:
    """The measurements on one database."""

    def __init__(self, kind: str, url: str, store: SqlStore, driver: BareDriver) -> None:
        self.kind, self.url, self.store, self.driver = kind, url, store, driver
        self.rows: list[Row] = []

    def row(self, name: str, value: float, unit: str, goal: float | None = None, *, at_most: bool = False) -> None:
        row = Row(f"{self.kind}: {name}", value, unit, None if SMOKE else goal, at_most)
        self.rows.append(row)

    async def queue(self, topic: str, priority: Priority = Priority.MIDDLE) -> Queue:
        """Return the queue of a priority, which has its own table; create the topic if it is missing."""
        if topic not in self.store.catalog.topics:
            await self.store.catalog.put_topic(Topic(name=topic, write_queues=1, read_queues=1))
        return Queue(topic, priority)

    def table(self, queue: Queue) -> str:
        return self.store.catalog.lanes[queue].table

    def entries(self, some: Sequence[Draft]) -> list[NewRow]:
        return [row_of_draft(draft, self.store.catalog.anonymous_token) for draft in some]

    # -- appends ------------------------------------------------------------------------------------------------------

    async def appends(self) -> None:
        ours = await self.queue("ours")
        table = self.table(await self.queue("bare"))
        placed = 0

        async def by_store(batches: list[list[Draft]]) -> None:
            for batch in batches:
                await self.store.append(ours, batch)

        async def by_driver(batches: list[list[NewRow]]) -> None:
            nonlocal placed
            for batch in batches:
                await self.driver.insert(table, placed + 1, time.time_ns() // 1_000_000, batch)
                placed += len(batch)

        for size, turns, goal in ((1, 100, 0.5), (10, 50, None), (100, 20, 0.8), (1000, 5, 0.8)):
            turns = min(turns, 2) if SMOKE else turns

            async def store_rate(size: int = size, turns: int = turns) -> float:
                return await rate(size * turns, by_store([drafts(size) for _ in range(turns)]))

            async def bare_rate(size: int = size, turns: int = turns) -> float:
                return await rate(size * turns, by_driver([self.entries(drafts(size)) for _ in range(turns)]))

            found, base = await alternate(ROUNDS, store_rate, bare_rate)
            self.row(f"appends in batches of {size}", median(found), "rows/s")
            self.row(f"bare INSERTs of {size} rows", median(base), "rows/s")
            self.row(f"appends in batches of {size} / bare INSERTs", ratio(found, base), "times", goal)
        assert (await self.store.bounds(ours)).end == placed, "the store must hold every appended row"

    async def senders(self) -> None:
        queue = await self.queue("ours", Priority.HIGH)
        each = 4 if SMOKE else 100

        async def send(batch: list[Draft]) -> None:
            for draft in batch:
                await self.store.append(queue, [draft])

        async def together(count: int) -> float:
            loads = [drafts(each) for _ in range(count)]

            async def work() -> None:
                await asyncio.gather(*map(send, loads))

            return await rate(count * each, work())

        one, many = await alternate(ROUNDS, lambda: together(1), lambda: together(SENDERS))
        self.row("1 sender of single messages", median(one), "rows/s")
        self.row(f"{SENDERS} senders of single messages", median(many), "rows/s")
        goal = None if self.kind == "SQLite" else 6
        self.row(f"{SENDERS} senders / 1 sender", ratio(many, one), "times", goal)

    # -- reads --------------------------------------------------------------------------------------------------------

    async def reads(self, other: SqlStore) -> None:
        """`other` has appended nothing, so it reads everything from the database."""
        queue = await self.queue("bare", Priority.HIGH)
        table = self.table(queue)
        count = 2 * READ_COUNT if SMOKE else 4000
        start = 0

        async def by_store(store: SqlStore) -> float:
            async def work() -> None:
                for at in range(start, start + count, READ_COUNT):
                    found = await store.read(queue, at, count_max=READ_COUNT, bytes_max=READ_BYTES)
                    assert isinstance(found, Slice)
                    assert len(found.sizes) == READ_COUNT, "every read must return a full batch"

            return await rate(count, work())

        async def by_driver() -> float:
            async def work() -> None:
                for at in range(start, start + count, READ_COUNT):
                    assert len(await self.driver.select(table, at, READ_COUNT)) == READ_COUNT

            return await rate(count, work())

        await other.catalog.list_topics()
        found: list[list[float]] = []
        for number in range(ROUNDS + 1):
            start = (await self.store.bounds(queue)).end
            await self.store.append(queue, drafts(count // 2))
            await self.store.append(queue, drafts(count // 2))
            await other.bounds(queue)
            first = [await by_store(self.store)] if number % 2 else []
            bare_first = [await by_driver()] if number % 2 else []
            stored = await by_store(other)
            base = bare_first or [await by_driver()]
            first = first or [await by_store(self.store)]
            if number:
                found.append([stored, *base, *first, await by_store(self.store)])
        stored, base, first, again = (list(column) for column in zip(*found, strict=True))
        name = f"reads of {READ_COUNT}"
        self.row(f"{name} from the database", median(stored), "rows/s", 100_000)
        self.row(f"bare SELECTs of {READ_COUNT}", median(base), "rows/s")
        self.row(f"{name} from the database / bare SELECTs", ratio(stored, base), "times", 0.7)
        self.row(f"{name} from the tail, the first time", median(first), "rows/s")
        self.row(f"{name} from the tail, again", median(again), "rows/s")
        self.row(f"{name} from the tail, the first time / from the database", ratio(first, stored), "times", 3)
        self.row(f"{name} from the tail, again / from the database", ratio(again, stored), "times")

    # -- notifications ------------------------------------------------------------------------------------------------

    async def wake_ups(self) -> None:
        queue = await self.queue("ours", Priority.LOW)
        seen: dict[int, float] = {}
        news = asyncio.Event()

        def grown(which: Queue, end: QueueOffset) -> None:
            if which == queue:
                seen[end] = time.perf_counter()
                news.set()

        async def waits(pause_s: Callable[[], float], count: int) -> list[float]:
            found = []
            for _ in range(count):
                await asyncio.sleep(pause_s())
                news.clear()
                appended = await self.store.append(queue, drafts(1))
                returned = time.perf_counter()
                while appended.offset + 1 not in seen:
                    await asyncio.wait_for(news.wait(), 10)
                    news.clear()
                found.append(max(0.0, seen[appended.offset + 1] - returned) * 1000)
            return found

        async with await SqlStore.open(self.url, on_growth=grown, awaited_queues=lambda: {queue}) as other:
            await other.bounds(queue)
            often = await waits(lambda: random.uniform(0, 0.06), 5 if SMOKE else 300)
            seldom = await waits(
                lambda: random.uniform(0.1, 0.2) if SMOKE else random.uniform(1.2, 1.6), 1 if SMOKE else 20
            )
        self.row("wake-up at another broker, p99", float(np.percentile(often, 99)), "ms", 60, at_most=True)
        self.row("wake-up at another broker, median", median(often), "ms")
        self.row("wake-up after a second of silence, p99", float(np.percentile(seldom, 99)), "ms", 60, at_most=True)

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def commits(self) -> None:
        queue = await self.queue("ours")
        offsets = iter(range(1, 1 << 40))
        groups = [f"group-{number}" for number in range(GROUPS)]

        async def together() -> None:
            offset = next(offsets)
            for group in groups:
                self.store.offsets.commit_nowait(group, queue, offset)
            await self.store.offsets.flush()

        async def one_by_one() -> None:
            offset = next(offsets)
            for group in groups:
                self.store.offsets.commit_nowait(group, queue, offset)
                await self.store.offsets.flush()

        many, single = await alternate(ROUNDS, lambda: rate(GROUPS, together()), lambda: rate(GROUPS, one_by_one()))
        self.row(f"offsets of {GROUPS} groups saved together", median(many), "commits/s")
        self.row("offsets saved one by one", median(single), "commits/s")
        self.row("offsets saved together / one by one", ratio(many, single), "times", 4)

    # -- large tables -------------------------------------------------------------------------------------------------

    async def fill(self, queue: Queue, rows: int) -> None:
        """Insert rows by statements on the server, then set the next id of the lane."""
        lane, database = self.store.catalog.lanes[queue], self.store.database
        table = lane.table
        for start in range(0, rows, self.store.settings.partition_rows):
            await add_partitions(database, table, start + 1, self.store.settings.partition_rows)
        await self.driver.insert(table, 1, 1, self.entries(drafts(500, SMALL_BODY_BYTES)))
        made = 500
        hex_of_id = {
            "MariaDB": "LPAD(HEX(id + {0}), 32, '0')",
            "PostgreSQL": "convert_to(lpad(to_hex(id + {0}), 32, '0'), 'UTF8')",
            "SQLite": "CAST(printf('%032X', id + {0}) AS BLOB)",
        }[self.kind]
        columns = MESSAGE_COLUMNS.replace("id,", "id + {0},").replace("ref_key", hex_of_id)
        while made < rows:
            more = min(made, rows - made, 50_000)
            await self.driver.run(
                f'INSERT INTO "{table}" SELECT {columns.format(made)} FROM "{table}" WHERE id <= {more}'
            )
            made += more
        await database.execute(
            "UPDATE hermes_lane SET next_id = :next_id, last_ts = 1 WHERE lane = :lane",
            next_id=rows + 1,
            lane=lane.number,
        )
        if self.kind == "PostgreSQL":
            await self.driver.run(f'VACUUM ANALYZE "{table}"')
        assert (await self.store.bounds(queue)).end == rows

    async def sizes(self, other: SqlStore) -> None:
        queues = []
        for rows in TABLE_ROWS:
            queue = await self.queue(f"rows{rows}")
            await self.fill(queue, rows)
            queues.append(queue)
        await other.catalog.list_topics()
        turns = 2 if SMOKE else 20

        def appends(queue: Queue) -> Callable[[], Awaitable[float]]:
            async def work(batches: list[list[Draft]]) -> None:
                for batch in batches:
                    await self.store.append(queue, batch)

            return lambda: rate(turns * 100, work([drafts(100, SMALL_BODY_BYTES) for _ in range(turns)]))

        def reads(queue: Queue, rows: int) -> Callable[[], Awaitable[float]]:
            async def work() -> None:
                for _ in range(turns):
                    start = random.randrange(rows - READ_COUNT + 1)
                    found = await other.read(queue, start, count_max=READ_COUNT, bytes_max=READ_BYTES)
                    assert isinstance(found, Slice)
                    assert len(found.sizes) == READ_COUNT

            return lambda: rate(turns * READ_COUNT, work())

        for queue in queues:
            await other.bounds(queue)
        for name, works in (
            ("reads", [reads(queue, rows) for queue, rows in zip(queues, TABLE_ROWS, strict=True)]),
            ("appends", [appends(queue) for queue in queues]),
        ):
            found = await alternate(ROUNDS, *works)
            for rows, rates in zip(TABLE_ROWS, found, strict=True):
                self.row(f"{name} of 100 in a table of {rows:,}", median(rates), "rows/s")
            self.row(
                f"{name} in a table of {TABLE_ROWS[-1]:,} / in one of {TABLE_ROWS[0]:,}",
                ratio(found[-1], found[0]),
                "times",
                0.7,
            )


async def measure(kind: str, url: str) -> list[Row]:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(await SqlStore.open(url))
        other = await stack.enter_async_context(await SqlStore.open(url))
        bench = Bench(kind, url, store, await stack.enter_async_context(open_bare_driver(url)))
        await bench.appends()
        await bench.senders()
        await bench.reads(other)
        await bench.wake_ups()
        await bench.commits()
        await bench.sizes(other)
        return bench.rows


def main() -> None:
    chosen = [kind for kind in KINDS if kind in os.environ.get("SPARROW_BENCH_DATABASES", ",".join(KINDS)).split(",")]
    rows: list[Row] = []
    for kind in chosen:
        with database(kind) as url:
            rows += uvloop.run(measure(kind, url))
    report("sql_store", rows)


if __name__ == "__main__":
    main()

"""The SQL store against its databases and drivers: MariaDB, PostgreSQL (started here) and SQLite.

The compared operations alternate in one run. Those of 1 and 3 alternate one by one, and their ratio is that of the
fastest 1 % of each: what they take when nothing else runs in between, so that it holds on a busy machine. The ratio of
their medians stands beside it. Other ratios are medians over the rounds, of adjacent measurements.

1. Appends of batches by one sender, against a bare INSERT of the same rows into a table with the same definition.
2. Senders of single messages on one lane, 32 against one.
3. Reads of 100 messages from the database, against a bare SELECT, and from the tail in the store's memory.
4. From an append's return to the notification of a waiting reader at another store on the same database.
5. Offsets of many groups saved together, against one by one.
6. The cost of an append and of a read in tables of 10^4 to 10^6 messages, 10^7 with SPARROW_SCALE=huge.

SPARROW_BENCH_DATABASES and SPARROW_BENCH_PARTS (`appends,reads`) choose what is measured.
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

from _databases import KINDS, BareDriver, BareMySql, database, open_bare_driver
from _harness import Row, is_smoke, report
from sparrow.clock import now_ms
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

PARTS = os.environ.get("SPARROW_BENCH_PARTS", "appends,senders,reads,wake_ups,commits,sizes").split(",")

_numbers = iter(range(1 << 40))


def drafts(count: int, body_bytes: int = BODY_BYTES) -> list[Draft]:
    """Return drafts with new bodies, and with unique keys that grow like those of a real client."""
    born_ms = now_ms()
    return [
        Draft(
            body=random.randbytes(body_bytes),
            properties=b"UNIQ_KEY\x017F0000010A2B18B4AAC2%012X\x02" % next(_numbers),
            born_ms=born_ms,
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


def fastest(rates: Sequence[float]) -> float:
    """Return the rate that the fastest 1 % of the operations reach."""
    return float(np.quantile(rates, 0.99))


async def rate(count: int, work: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await work
    return count / (time.perf_counter() - begun)


class Bench:
    """The measurements on one database."""

    def __init__(self, kind: str, url: str, store: SqlStore, other: SqlStore, driver: BareDriver) -> None:
        """`other` appends nothing, so it reads everything from the database."""
        self.kind, self.url, self.store, self.other, self.driver = kind, url, store, other, driver
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

    def compare(
        self, name: str, base_name: str, rates: Sequence[float], base: Sequence[float], goal: float | None
    ) -> None:
        """Report single operations against bare statements."""
        self.row(name, median(rates), "rows/s")
        self.row(base_name, median(base), "rows/s")
        self.row(f"{name} / {base_name}", fastest(rates) / fastest(base), "times", goal)
        self.row(f"{name} / {base_name}, medians", median(rates) / median(base), "times")

    async def appends(self) -> None:
        ours = await self.queue("ours")
        table = self.table(await self.queue("bare"))
        text_table = self.table(await self.queue("bare", Priority.LOW))
        placed = placed_by_text = 0
        for size, turns, goal in ((1, 500, 0.5), (10, 300, None), (100, 500, 0.85), (1000, 100, 0.85)):

            async def by_store(size: int = size) -> float:
                return await rate(size, self.store.append(ours, drafts(size)))

            async def by_driver(size: int = size) -> float:
                nonlocal placed
                insert = self.driver.insert(table, placed + 1, now_ms(), self.entries(drafts(size)))
                placed += size
                return await rate(size, insert)

            async def by_text(size: int = size) -> float:
                nonlocal placed_by_text
                assert isinstance(self.driver, BareMySql)
                insert = self.driver.insert_text(text_table, placed_by_text + 1, now_ms(), self.entries(drafts(size)))
                placed_by_text += size
                return await rate(size, insert)

            works = [by_store, by_driver, *([by_text] if isinstance(self.driver, BareMySql) else [])]
            found, base, *texts = await alternate(2 if SMOKE else turns, *works)
            name = f"appends in batches of {size}"
            self.compare(name, f"bare INSERTs of {size} rows", found, base, goal)
            if texts:
                self.row(f"{name} / bare INSERTs as text", fastest(found) / fastest(texts[0]), "times")
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

    async def reads(self) -> None:
        queue = await self.queue("bare", Priority.HIGH)
        count = 2 * READ_COUNT if SMOKE else 4000
        for _ in range(2):
            await self.store.append(queue, drafts(count // 2))
        await self.other.catalog.list_topics()
        await self.other.bounds(queue)

        async def read(store: SqlStore, at: int) -> None:
            found = await store.read(queue, at, count_max=READ_COUNT, bytes_max=READ_BYTES)
            assert isinstance(found, Slice)
            assert len(found.sizes) == READ_COUNT, "every read must return a full batch"

        async def select(at: int) -> None:
            assert len(await self.driver.select(self.table(queue), at, READ_COUNT)) == READ_COUNT

        def anywhere() -> int:
            return random.randrange(count - READ_COUNT + 1)

        found, base = await alternate(
            2 if SMOKE else 1000,
            lambda: rate(READ_COUNT, read(self.other, anywhere())),
            lambda: rate(READ_COUNT, select(anywhere())),
        )
        name = f"reads of {READ_COUNT} from the database"
        self.compare(name, f"bare SELECTs of {READ_COUNT}", found, base, 0.6)
        self.row(f"{name}, fastest 1 %", fastest(found), "rows/s", 150_000)
        await self.tail_reads(queue, count, read)

    async def tail_reads(self, queue: Queue, count: int, read: Callable[[SqlStore, int], Awaitable[None]]) -> None:
        """Compare reads of the newest messages, which are in the memory of `store` and not in that of `other`."""

        async def read_all(store: SqlStore, start: int) -> None:
            for at in range(start, start + count, READ_COUNT):
                await read(store, at)

        rounds: list[tuple[float, float, float]] = []
        for number in range(ROUNDS + 1):
            start = (await self.store.bounds(queue)).end
            for _ in range(2):
                await self.store.append(queue, drafts(count // 2))
            await self.other.bounds(queue)
            stored = await rate(count, read_all(self.other, start))
            first = await rate(count, read_all(self.store, start))
            again = await rate(count, read_all(self.store, start))
            if number:
                rounds.append((stored, first, again))
        stored_all, first_all, again_all = (list(column) for column in zip(*rounds, strict=True))
        name = f"reads of {READ_COUNT} from the tail"
        self.row(f"{name}, the first time", median(first_all), "rows/s")
        self.row(f"{name}, again", median(again_all), "rows/s")
        self.row(f"{name}, the first time / from the database", ratio(first_all, stored_all), "times", 3)
        self.row(f"{name}, again / from the database", ratio(again_all, stored_all), "times")

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

        async with await SqlStore.open(
            self.url, on_growth=grown, is_awaited=lambda awaited: awaited == queue
        ) as waiting:
            await waiting.bounds(queue)
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

    async def sizes(self) -> None:
        queues = []
        for rows in TABLE_ROWS:
            queue = await self.queue(f"rows{rows}")
            await self.fill(queue, rows)
            queues.append(queue)
        await self.other.catalog.list_topics()
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
                    found = await self.other.read(queue, start, count_max=READ_COUNT, bytes_max=READ_BYTES)
                    assert isinstance(found, Slice)
                    assert len(found.sizes) == READ_COUNT

            return lambda: rate(turns * READ_COUNT, work())

        for queue in queues:
            await self.other.bounds(queue)
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
        bench = Bench(kind, url, store, other, await stack.enter_async_context(open_bare_driver(url)))
        for part in (bench.appends, bench.senders, bench.reads, bench.wake_ups, bench.commits, bench.sizes):
            if part.__name__ in PARTS:
                await part()
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

"""The log store against the limits of its disk and memory.

1. Bulk appends of encoded batches, including queues and key index, against a plain sequential `os.write` of the same
   bytes to a file beside it. Both end in the page cache; the two alternate, and the best of each counts.
2. A single append: CPU time of the appending thread, and of all threads including the key index.
3. Synchronous flush with 64 appenders, against as many bare `pwrite` + `fdatasync` of the same bytes.
4. Reads: hot reads as the broker does them; cold reads with verification, from a store just opened. (The page cache
   stays warm: an ordinary user cannot drop it. A really cold read costs this plus the disk.)
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import uvloop

from _harness import Row, folder_on_disk, is_smoke, report
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import MIB, LogSettings
from sparrow.store.log import LogStore
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.spi import BatchFields, Slice
from sparrow.wire import batch, columns

QUEUE = Queue("bench", 0)
BATCH_RECORDS = 8192
"""As the Spark source and sink make them."""
APPENDERS = 64
NO_DISK = {"flush_interval_ms": 3_600_000, "checkpoint_interval_ms": 3_600_000, "checkpoint_bytes": 1 << 40}
"""Nothing is synced while it runs, as nothing is after a plain write."""


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float


def measure_cost(work: Callable[[], object]) -> Cost:
    """Return wall time, and CPU time of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def new_store(path: Path, **settings: object) -> LogStore:
    store = LogStore(path, LogSettings(**settings), disk_ratio=lambda _: 0.1)  # type: ignore[arg-type]
    asyncio.run(store.catalog.put_topic(Topic(name=QUEUE.topic)))
    return store


def catch_up(store: LogStore) -> None:
    """Wait until keys are indexed and queue entries are written to their files."""
    with store._threads.maintenance.paused():
        store._maintenance.catch_up_key_index()
        store._maintenance.flush_queues()


# -- bulk -------------------------------------------------------------------------------------------------------------


def encoded_batches(body_bytes: int, count: int = 4) -> list[columns.EncodedRecords]:
    rows = 512 if is_smoke() else BATCH_RECORDS
    rng = np.random.default_rng(1)
    found = []
    for n in range(count):
        body = pa.array([rng.bytes(body_bytes) for _ in range(rows)], pa.binary())
        ids = [f"C0A8000100002A9F{n:04d}{row:012d}" for row in range(rows)]
        keys = [f"order-{n}-{row}" for row in range(rows)]
        found.append(columns.encode(body, topic=QUEUE.topic, keys=keys, tags=["TagA"] * rows, msg_ids=ids))
    return found


def bulk(body_bytes: int, total_bytes: int, rounds: int, goal: float | None) -> list[Row]:
    batches = encoded_batches(body_bytes)
    turns = max(1, total_bytes // sum(len(memoryview(each.data)) for each in batches))
    total = turns * sum(len(memoryview(each.data)) for each in batches)

    def plain(path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        try:
            for _ in range(turns):
                for each in batches:
                    assert os.write(fd, each.data) == each.data.size
        finally:
            os.close(fd)

    def ours(store: LogStore, verify_crc: bool) -> None:
        for _ in range(turns):
            for each in batches:
                store.append_encoded_nowait(QUEUE, each.data, each.sizes, verify_crc=verify_crc)
        catch_up(store)

    def plain_cost() -> Cost:
        with folder_on_disk() as folder:
            return measure_cost(partial(plain, folder / "plain"))

    def our_cost(verify_crc: bool) -> Cost:
        with folder_on_disk() as folder, new_store(folder, **NO_DISK) as store:
            cost = measure_cost(partial(ours, store, verify_crc))
            assert store.bounds_nowait(QUEUE).end == turns * sum(len(each.sizes) for each in batches)
            return cost

    def second_run(cost: Callable[[], Cost]) -> Cost:
        """Return the cost of a second run. In the first one a virtual machine may get new memory from its host, which
        is ten times slower than memory that was just freed."""
        cost()
        return cost()

    walls, cpus, checked, ours_s, plain_s = [], [], [], [], []
    for _ in range(rounds):
        bare = second_run(plain_cost)
        cost = second_run(partial(our_cost, False))
        walls.append(bare.wall_s / cost.wall_s)
        cpus.append(bare.cpu_s / cost.cpu_s)
        checked.append(bare.wall_s / second_run(partial(our_cost, True)).wall_s)
        ours_s.append(cost.wall_s)
        plain_s.append(bare.wall_s)
    name = f"bulk append, {body_bytes} B bodies"
    return [
        Row(f"{name}, against os.write, quickest of each", min(plain_s) / min(ours_s), "x", goal),
        Row(f"{name}, against os.write, middle of the rounds", statistics.median(walls), "x"),
        Row(f"{name}, against os.write, CPU", statistics.median(cpus), "x"),
        Row(f"{name}, against os.write, bodies checked", statistics.median(checked), "x"),
        Row(f"{name}", total / min(ours_s) / 1e6, "MB/s"),
        Row(f"{name}, os.write", total / min(plain_s) / 1e6, "MB/s"),
    ]


# -- single appends ---------------------------------------------------------------------------------------------------


def draft() -> Draft:
    properties = "UNIQ_KEY\x01C0A8000100002A9F000000000001E240\x02TAGS\x01TagA\x02KEYS\x01order-4711\x02"
    return Draft(body=bytes(100), properties=properties.encode(), born_ms=1_700_000_000_000)


def single(count: int, rounds: int, goal: float | None) -> list[Row]:
    alone, together = [], []
    one = [draft()]
    for _ in range(rounds):
        with folder_on_disk() as folder, new_store(folder) as store:
            append = store.append_nowait
            cpu, own = time.process_time(), time.thread_time()
            for _ in range(count):
                append(QUEUE, one)
            alone.append((time.thread_time() - own) / count * 1e6)
            catch_up(store)
            together.append((time.process_time() - cpu) / count * 1e6)
    return [
        Row("append of one message, CPU", min(alone), "µs", goal, at_most=True),
        Row("append of one message, CPU of all threads, keys filed", min(together), "µs"),
    ]


def batch_sends(size: int, rounds: int) -> list[Row]:
    """Measure batches of 100 B bodies as they were sent, against a draft for each message."""
    one = draft()
    sent = batch.encode([(0, bytes(one.body), one.properties)] * size)
    common = BatchFields(0, one.born_ms, bytes(8), 0, b"CLUSTER\x01DefaultCluster\x02")

    def drafts() -> list[Draft]:
        extra, born_ms, host = common.extra_properties, common.born_ms, common.born_host
        return [
            Draft(body=body, properties=own + extra, flag=flag, born_ms=born_ms, born_host=host)
            for flag, body, own in batch.decode(sent)
        ]

    def cost_us(append: Callable[[], object]) -> float:
        began_s = time.thread_time()
        append()
        return (time.thread_time() - began_s) / size * 1e6

    with folder_on_disk() as folder, new_store(folder) as store:
        whole, single_drafts = [], []
        for _ in range(rounds):
            whole.append(cost_us(lambda: store.append_batch_nowait(QUEUE, sent, common)))
            single_drafts.append(cost_us(lambda: store.append_nowait(QUEUE, drafts())))
    name = f"append of a batch of {size}, CPU a message"
    return [
        Row(name, min(whole), "µs"),
        Row(f"{name}, against a draft for each", min(whole) / min(single_drafts), "x"),
    ]


# -- synchronous flush ------------------------------------------------------------------------------------------------


SLOW_DISK_S = 0.004
"""What a sync takes on a solid-state disk without a protected cache; ours is many times quicker."""


def slow_disk(count: int) -> list[Row]:
    """Simulate a slow disk: every sync takes longer on both sides."""
    with folder_on_disk() as folder, new_store(folder / "store", flush="sync") as store:
        groups, wall_s = synced_groups(store, count, SLOW_DISK_S)
        bare_s = bare_groups(folder / "bare", store.settings.segment_bytes, groups, SLOW_DISK_S)
    name = f"sync flush, {APPENDERS} appenders, against bare fdatasync, each {SLOW_DISK_S * 1000:g} ms slower"
    return [Row(name, bare_s / wall_s, "x")]


def sync_flush(count: int, rounds: int, goal: float | None) -> list[Row]:
    ratios, group_sizes, rates, bare_ms = [], [], [], []
    for _ in range(rounds):
        with folder_on_disk() as folder, new_store(folder / "store", flush="sync") as store:
            groups, wall_s = synced_groups(store, count)
            bare_s = bare_groups(folder / "bare", store.settings.segment_bytes, groups)
        ratios.append(bare_s / wall_s)
        group_sizes.append(count / len(groups))
        bare_ms.append(bare_s / len(groups) * 1000)
        rates.append(count / wall_s)
    with folder_on_disk() as folder, new_store(folder / "store", flush="async") as store:
        _, unsynced_s = synced_groups(store, count)
    return [
        Row(f"sync flush, {APPENDERS} appenders, against bare fdatasync", statistics.median(ratios), "x", goal),
        Row("sync flush, messages a group", statistics.median(group_sizes), ""),
        Row("sync flush, messages acknowledged", statistics.median(rates), "1/s"),
        Row("sync flush, against the same appends with asynchronous flush", max(rates) * unsynced_s / count, "x"),
        Row("bare fdatasync of such a group", statistics.median(bare_ms), "ms"),
    ]


def synced_groups(store: LogStore, count: int, delay_s: float = 0.0) -> tuple[list[int], float]:
    """Append with synchronous flush; return the bytes of every synced group, and the time."""
    ends: list[int] = []
    sync = Segment.sync

    def counted(segment: Segment) -> None:
        ends.append(store.written)
        sync(segment)
        if delay_s:
            time.sleep(delay_s)

    async def appender(times: int) -> None:
        for _ in range(times):
            await store.append(QUEUE, [draft()])

    async def together() -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(appender(count // APPENDERS) for _ in range(APPENDERS)))
        return time.perf_counter() - begun

    start = store.written
    Segment.sync = counted  # type: ignore[method-assign]
    try:
        wall_s = uvloop.run(together())
    finally:
        Segment.sync = sync  # type: ignore[method-assign]
    return [int(size) for size in np.diff([start, *ends])], wall_s


def bare_groups(path: Path, size: int, groups: list[int], delay_s: float = 0.0) -> float:
    """Write the same bytes in the same groups with bare system calls."""
    data = bytes(max(groups))
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
        begun, at = time.perf_counter(), 0
        for length in groups:
            at += os.pwrite(fd, data[:length], at)
            os.fdatasync(fd)
            if delay_s:
                time.sleep(delay_s)
        return time.perf_counter() - begun
    finally:
        os.close(fd)


# -- reads ------------------------------------------------------------------------------------------------------------


def reads(total_bytes: int, times: int) -> list[Row]:
    batches = encoded_batches(1024)
    with folder_on_disk() as folder:
        with new_store(folder) as store:
            while store.written < total_bytes:
                for each in batches:
                    store.append_encoded_nowait(QUEUE, each.data, each.sizes, verify_crc=False)
            end = store.bounds_nowait(QUEUE).end
            offset = max(0, end - 1000)
            own = time.thread_time()
            for _ in range(times):
                result = store.read_nowait(QUEUE, offset)
            hot_us = (time.thread_time() - own) / times * 1e6
            assert isinstance(result, Slice)
            assert len(result.sizes) == 32
            written = store.written
        with LogStore(folder) as store:
            wall = time.perf_counter()
            assert uvloop.run(read_all(store)) > written * 0.99
            cold_s = time.perf_counter() - wall
    return [
        Row("hot read of 32 messages, CPU", hot_us, "µs"),
        Row("cold read, records checked, page cache warm", written / cold_s / 1e6, "MB/s"),
    ]


async def read_all(store: LogStore) -> int:
    offset = taken = 0
    while isinstance(result := await store.read(QUEUE, offset, count_max=4096, bytes_max=4 * MIB), Slice):
        offset = result.next_offset
        taken += sum(len(run) for run in result.buffers)
    return taken


def main() -> None:
    pa.set_cpu_count(1)
    if is_smoke():
        rows = [*bulk(1024, 16 * MIB, 1, None), *bulk(100, 8 * MIB, 1, None)]
        rows += [
            *single(2_000, 1, None),
            *batch_sends(100, 5),
            *sync_flush(640, 1, None),
            *slow_disk(640),
            *reads(16 * MIB, 50),
        ]
    else:
        rows = [*bulk(1024, 640 * MIB, 5, 0.5), *bulk(100, 256 * MIB, 3, None)]
        rows += [
            *single(100_000, 3, 12.0),
            *batch_sends(100, 200),
            *batch_sends(1_000, 50),
            *sync_flush(25_600, 5, 0.8),
            *slow_disk(25_600),
            *reads(512 * MIB, 5_000),
        ]
    report("store", rows)


if __name__ == "__main__":
    main()

"""The cost of 10,000 queues: memory for a few messages in each, and the time to open them again."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

from _harness import Row, folder_on_disk, is_smoke, report, rss_anon_mb
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore

QUEUES_A_TOPIC = 100
MESSAGES = 3


def fill(store: LogStore, queues: list[Queue]) -> float:
    """Append a few messages to each queue and run maintenance; return the seconds that maintenance took."""
    draft = [Draft(body=bytes(100), properties=b"KEYS\x01order-4711\x02TAGS\x01TagA\x02")]
    for _ in range(MESSAGES):
        for queue in queues:
            store.append_nowait(queue, draft)
    begun = time.perf_counter()
    with store._threads.maintenance.paused():
        store._maintenance.checkpoint()
        # Two more rounds: a queue that did not grow between two rounds is idle and keeps nothing in memory.
        store._maintenance.flush_queues()
        store._maintenance.flush_queues()
    return time.perf_counter() - begun


def memory_mb() -> float:
    gc.collect()
    return rss_anon_mb()


def measure(path: Path, count: int, *, has_goals: bool) -> list[Row]:
    topics = [f"topic-{n}" for n in range(max(1, count // QUEUES_A_TOPIC))]
    queues = [Queue(topic, n) for topic in topics for n in range(QUEUES_A_TOPIC)][:count]
    with LogStore(path, disk_ratio=lambda _: 0.1) as store:
        for topic in topics:
            asyncio.run(
                store.catalog.put_topic(Topic(name=topic, read_queues=QUEUES_A_TOPIC, write_queues=QUEUES_A_TOPIC))
            )
        fill(store, queues[:1])  # excludes the cost of the first append, checkpoint and index
        before = memory_mb()
        checkpoint_s = fill(store, queues)
        after = memory_mb()
        for _ in range(5):
            fill(store, queues)
        later = memory_mb()
        begun = time.process_time()
        store._maintenance.flush_queues()
        idle_ms = (time.process_time() - begun) * 1000
    begun = time.perf_counter()
    with LogStore(path, disk_ratio=lambda _: 0.1) as store:
        open_s = time.perf_counter() - begun
        assert all(store.bounds_nowait(queue).end >= 6 * MESSAGES for queue in queues), (
            "every queue must have its messages after the store is opened again"
        )
    name = f"{count:,} queues"
    memory_max, growth_max = (100.0, 10.0) if has_goals else (None, None)
    return [
        Row(f"{name}, {MESSAGES} messages each, memory", after - before, "MB", memory_max, at_most=True),
        Row(f"{name}, memory after 5 times as many more", later - after, "MB", growth_max, at_most=True),
        Row(f"{name}, a checkpoint of all", checkpoint_s, "s"),
        Row(f"{name}, a maintenance round with nothing to do, CPU", idle_ms, "ms"),
        Row(f"{name}, open", open_s, "s"),
    ]


def main() -> None:
    with folder_on_disk() as path:
        count = 200 if is_smoke() else 10_000
        report("queues", measure(path, count, has_goals=not is_smoke()))


if __name__ == "__main__":
    main()

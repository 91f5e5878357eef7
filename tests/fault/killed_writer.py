"""The child process of `test_sigkill`: appends at full speed and reports acknowledged appends until it is killed.

It writes lines to standard output, each one atomically: "open" when the store is open, then `topic queue offset count
seed` for each acknowledged append, and `topic` for each created topic. Both processes derive a seed's messages with
`drafts_of`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Awaitable
from hashlib import blake2b
from pathlib import Path

from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import KIB, LogSettings
from sparrow.store.log import LogStore

TOPICS = ("a", "bb")
QUEUES = 4


def settings(visible_after: str) -> LogSettings:
    return LogSettings(
        segment_bytes=128 * KIB,
        queue_file_entries=500,
        index_slots=997,
        index_entries=20_000,
        flush="sync",
        visible_after=visible_after,  # type: ignore[arg-type]
        # Short intervals, so that kills interrupt every background task.
        checkpoint_interval_ms=30,
        offset_flush_interval_ms=10,
        flush_timeout_ms=60_000,
        warm_bytes=64 * KIB,
    )


def drafts_of(seed: int, count: int) -> list[Draft]:
    rng = random.Random(seed)
    return [
        Draft(
            body=blake2b(f"{seed}.{n}".encode()).digest() * rng.randrange(1, 20),
            properties=f"KEYS\x01{seed}\x02TAGS\x01t{n}\x02".encode(),
            born_ms=seed,
        )
        for n in range(count)
    ]


def write_line(line: str) -> None:
    data = line.encode() + b"\n"
    assert os.write(1, data) == len(data), "a short write to a pipe must be atomic"


async def append_for_ever(store: LogStore, rng: random.Random) -> None:
    while True:
        queue = Queue(rng.choice(TOPICS), rng.randrange(QUEUES))
        seed, count = rng.getrandbits(48), rng.choice((1, 1, 1, 1, 5))
        appended = await store.append(queue, drafts_of(seed, count))
        write_line(f"{queue.topic} {queue.id} {appended.offset} {count} {seed}")
        if rng.random() < 0.05:
            await store.offsets.commit("group", queue, appended.offset)


async def create_topics(store: LogStore, rng: random.Random) -> None:
    while True:
        name = f"made-{rng.getrandbits(32):08x}"
        await store.catalog.put_topic(Topic(name=name))
        write_line(name)


async def main(path: Path, seed: int, appenders: int, visible_after: str) -> None:
    rng = random.Random(seed)
    store = LogStore(path, settings(visible_after))
    write_line("open")
    for topic in TOPICS:
        if topic not in await store.catalog.list_topics():
            await store.catalog.put_topic(Topic(name=topic))
    work: list[Awaitable[None]] = [create_topics(store, rng)]
    work += [append_for_ever(store, random.Random(rng.random())) for _ in range(appenders)]
    await asyncio.gather(*work)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))

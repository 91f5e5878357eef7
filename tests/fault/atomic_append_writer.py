"""The child process of `test_atomic_append`: makes atomic appends and single appends until it is killed.

It prints "open" when the store is open, then the number of each acknowledged atomic append.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import pyarrow as pa

from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import KIB, LogSettings
from sparrow.store.log import LogStore
from sparrow.wire import columns
from sparrow.wire.queue_batches import QueueBatch

QUEUES = [Queue("a", 0), Queue("a", 1), Queue("bb", 0)]


def settings() -> LogSettings:
    return LogSettings(
        segment_bytes=64 * KIB,
        queue_file_entries=500,
        index_slots=997,
        index_entries=20_000,
        flush="sync",
        # Short intervals, so that kills interrupt every background task.
        checkpoint_interval_ms=30,
        offset_flush_interval_ms=10,
        flush_timeout_ms=60_000,
        warm_bytes=64 * KIB,
    )


def bodies_of(number: int) -> list[tuple[Queue, list[bytes]]]:
    """Return the bodies of atomic append `number`, by queue batch."""
    rng = random.Random(number)
    return [
        (rng.choice(QUEUES), [b"%d.%d.%d" % (number, part, n) + bytes(rng.randrange(60)) for n in range(size)])
        for part, size in enumerate(rng.choices((1, 20, 300, 900), k=rng.randrange(1, 6)))
    ]


def queue_records_of(number: int) -> list[QueueBatch]:
    records = []
    for queue, bodies in bodies_of(number):
        encoded = columns.encode(pa.array(bodies, pa.binary()), topic=queue.topic, queue_id=queue.id)
        records.append(QueueBatch(queue, memoryview(encoded.data), encoded.sizes))
    return records


def write_line(line: str) -> None:
    data = line.encode() + b"\n"
    assert os.write(1, data) == len(data), "a short write to a pipe must be atomic"


async def append_singles(store: LogStore, rng: random.Random) -> None:
    while True:
        await store.append(rng.choice(QUEUES), [Draft(body=b"single" + bytes(rng.randrange(300)))])


async def append_atomically(store: LogStore) -> None:
    noted = await store.ledger("query")
    number = 0 if noted is None else noted + 1
    while True:
        assert await store.append_atomically("query", number, queue_records_of(number))
        write_line(str(number))
        assert not await store.append_atomically("query", number, queue_records_of(number))
        number += 1


async def main(path: Path, seed: int) -> None:
    store = LogStore(path, settings())
    for topic in ("a", "bb"):
        if topic not in await store.catalog.list_topics():
            await store.catalog.put_topic(Topic(name=topic))
    write_line("open")
    await asyncio.gather(append_atomically(store), append_singles(store, random.Random(seed)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))

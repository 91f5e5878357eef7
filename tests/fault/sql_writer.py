"""The child process of `test_sql_dense`: writers that append to one lane of a database at full speed and are killed.

It forks a number of writers; at an interval, it kills one and forks a replacement, until its standard input ends.
It forks because an interpreter needs more time to start than a writer has to live.

All of them write lines to standard output, each one atomically:

    stored OFFSET COUNT SEED    a batch was acknowledged; `drafts_of` derives the messages from the seed
    again OFFSET COUNT SEED     a message was sent again; the offset is that of the first copy
    rolled                      a transaction that had assigned ids was rolled back on purpose
    unsure                      the database was unreachable for too long: the result is unknown
    killed                      a writer was killed
    died STATUS                 a writer ended by itself
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import sys
import time
import traceback
from hashlib import blake2b

from sparrow.model.errors import SparrowError
from sparrow.model.message import Draft
from sparrow.model.priority import Priority
from sparrow.model.protocol import PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE
from sparrow.model.queue import Queue
from sparrow.store.sql.append.insert import insert_with_ids
from sparrow.store.sql.drivers import mysql, postgres, sqlite  # noqa: F401  before the forks, not after each
from sparrow.store.sql.drivers.errors import DuplicateKey, LockConflict
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.row_codec import row_of_draft

LANE = Queue("dense", Priority.HIGH)
BATCH_MAX = 50
REPEATS, ROLLBACKS = 0.05, 0.05
"""One transaction in ten is rolled back, half of them because they contain a stored message."""


class _IntendedRollback(Exception):
    """Rolls a transaction back."""


def drafts_of(seed: int, count: int) -> list[Draft]:
    rng = random.Random(seed)
    return [
        Draft(
            body=blake2b(f"{seed}.{n}".encode()).digest() * rng.randrange(1, 6),
            properties=f"KEYS\x01{seed}\x02{PROPERTY_PRODUCER_ID}\x01{seed}\x02{PROPERTY_SEQUENCE}\x01{n}\x02".encode(),
        )
        for n in range(count)
    ]


def write_line(line: str) -> None:
    data = line.encode() + b"\n"
    assert os.write(1, data) == len(data), "a short write to a pipe must be atomic"


# -- one writer -------------------------------------------------------------------------------------------------------


async def write_for_ever(url: str, rng: random.Random) -> None:
    store = await open_store(url)
    while True:
        choice = rng.random()
        try:
            if choice < ROLLBACKS:
                await roll_back(store, rng)
            elif choice < ROLLBACKS + REPEATS:
                await repeat(store, rng)
            else:
                await append(store, rng.getrandbits(48), rng.randint(1, BATCH_MAX))
        except (SparrowError, LockConflict, DuplicateKey):  # a node of Galera may report a conflict as a duplicate
            write_line("unsure")


async def open_store(url: str) -> SqlStore:
    while True:
        try:
            return await SqlStore.open(url)
        except (SparrowError, LockConflict, DuplicateKey):  # the server is starting
            await asyncio.sleep(0.05)


async def append(store: SqlStore, seed: int, count: int, word: str = "stored") -> None:
    appended = await store.append(LANE, drafts_of(seed, count))
    write_line(f"{word} {appended.offset} {count} {seed}")


async def repeat(store: SqlStore, rng: random.Random) -> None:
    """Append a stored message again, together with new ones: the first attempt for all of them is rolled back."""
    seed = rng.getrandbits(48)
    await append(store, seed, 1)
    await asyncio.gather(
        append(store, rng.getrandbits(48), rng.randint(2, BATCH_MAX)),
        append(store, seed, 1, "again"),
    )
    write_line("rolled")


async def roll_back(store: SqlStore, rng: random.Random) -> None:
    entries = [row_of_draft(draft, store.catalog.anonymous_token) for draft in drafts_of(rng.getrandbits(48), 5)]
    try:
        async with store.database.transaction() as session:
            await insert_with_ids(session, store.database, store.catalog.lane(LANE), entries, 1)
            raise _IntendedRollback
    except _IntendedRollback:
        write_line("rolled")


# -- the parent of all writers ----------------------------------------------------------------------------------------


def fork_writer(url: str, seed: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        asyncio.run(write_for_ever(url, random.Random(seed)))
    except BrokenPipeError:  # the parent reads no more
        pass
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def main(url: str, writers: int, seed: int, kill_s: float) -> None:
    rng = random.Random(seed)
    alive = [fork_writer(url, rng.getrandbits(48)) for _ in range(writers)]
    due = time.monotonic() + kill_s
    while not select.select([0], [], [], max(0.0, due - time.monotonic()))[0]:
        due = max(due + kill_s, time.monotonic())
        which = rng.randrange(writers)
        kill(alive[which])
        alive[which] = fork_writer(url, rng.getrandbits(48))
    for child in alive:
        kill(child)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)  # the kernel reuses no process id before the parent waits for it
    _, status = os.waitpid(child, 0)
    write_line("killed" if os.WIFSIGNALED(status) else f"died {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))

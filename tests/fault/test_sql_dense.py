"""Ids in a database have no gaps and become visible in order, under kills of writers and of the server."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Thread
from typing import IO

import pytest
from tests.fault import sql_writer
from tests.fault.sql_writer import LANE, drafts_of
from tests.support.databases import Server
from tests.support.drafts import decode_messages
from tests.support.server_processes import ROOT
from tests.support.tested_databases import database_server

from sparrow.model.errors import Unavailable
from sparrow.model.topic import Topic
from sparrow.store.spi import AtEnd, Slice
from sparrow.store.sql.engine import SqlStore

# Duration, number of writers, number of server kills.
SIZES = {"smoke": (2.0, 3, 1), "full": (60.0, 8, 5)}

ENOUGH_S = 60


def digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).digest()


@dataclass
class Acknowledged:
    """The output of the writers."""

    stored: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Offset to count and seed."""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def has_enough(self) -> bool:
        """Return whether every expected kind of event has happened."""
        return self.counts["stored"] > 100 and all(self.counts[word] for word in ("rolled", "again", "killed"))

    def listen(self, lines: IO[bytes]) -> None:
        for line in lines:
            word, *numbers = line.decode().split()
            self.counts[word] += 1
            if word in ("stored", "again"):
                offset, count, seed = map(int, numbers)
                if self.stored.setdefault(offset, (count, seed)) != (count, seed):
                    self.counts["given out twice"] += 1


@contextmanager
def writing(
    url: str, writers: int, seed: int, told: Acknowledged, complaints: Path, *, kill_s: float = 0.1
) -> Iterator[None]:
    """Run writers that are killed one after the other. On exit, all are dead and all output has been read."""
    command = [sys.executable, str(Path(sql_writer.__file__)), url, str(writers), str(seed), str(kill_s)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with complaints.open("wb") as errors:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment)
    assert child.stdin is not None
    assert child.stdout is not None
    listening = Thread(target=told.listen, args=(child.stdout,))
    listening.start()
    try:
        yield
    finally:
        child.stdin.close()
        child.wait(30)
        listening.join(30)
        child.stdout.close()
    assert child.returncode == 0, complaints.read_text()


async def follow(store: SqlStore, seen: list[bytes], is_over: asyncio.Event) -> None:
    """Read the growing lane: each id once, in order, without a gap."""
    while True:
        was_over = is_over.is_set()
        try:
            found = await store.read(LANE, len(seen), count_max=1000)
        except Unavailable:  # the server is starting
            await asyncio.sleep(0.02)
            continue
        if isinstance(found, AtEnd):
            if was_over:
                return
            await asyncio.sleep(0)  # no pause: read rows before they are on disk
            continue
        assert isinstance(found, Slice), f"the reader was moved after {len(seen)} messages: {found}"
        for message in decode_messages(found):
            assert message.queue_offset == len(seen), "offsets must be consecutive"
            seen.append(digest(message.body))
        assert found.next_offset == len(seen)


async def whole(store: SqlStore) -> list[bytes]:
    found: list[bytes] = []
    over = asyncio.Event()
    over.set()
    await follow(store, found, over)
    return found


async def check(url: str, told: Acknowledged, seen: list[bytes]) -> None:
    async with await SqlStore.open(url) as store:
        lane = store.catalog.lane(LANE)
        ((count, last),) = await store.database.fetch(f'SELECT COUNT(*), MAX(id) FROM "{lane.table}"')
        ((next_id,),) = await store.database.fetch(f"SELECT next_id FROM hermes_lane WHERE lane = {lane.number}")
        assert count == last == next_id - 1, "offsets must have no gap"
        there = await whole(store)
    assert len(there) == count
    assert seen == there, "the followed messages must be the stored ones"
    assert len(set(there)) == len(there), "no message may be stored twice"
    for offset, (size, seed) in told.stored.items():
        wanted = [digest(bytes(draft.body)) for draft in drafts_of(seed, size)]
        assert there[offset : offset + size] == wanted, f"the batch acknowledged at offset {offset} is missing"
    assert not told.counts["given out twice"]


@pytest.fixture
def server(database: str) -> Iterator[Server | None]:
    """Start a new server: the recovery time of a killed server grows with all data that it ever held."""
    if database == "sqlite":
        yield None
    else:
        with database_server(database) as started:
            yield started


@pytest.mark.timeout(600)
async def test_ids_have_no_gap_and_no_acknowledged_message_is_lost_under_kills(
    database: str, server: Server | None, scale: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    seconds, writers, kills = SIZES[scale]
    database_url = f"sqlite:///{tmp_path}/sparrow.db" if server is None else server.new_database()
    told, seen, is_over = Acknowledged(), [], asyncio.Event()
    try:
        async with await SqlStore.open(database_url) as store:
            await store.catalog.put_topic(Topic(name=LANE.topic, write_queues=1))
            reading = asyncio.create_task(follow(store, seen, is_over))
            with writing(database_url, writers, seed, told, tmp_path / "complaints"):
                started = time.monotonic()
                for number in range(1, kills + 1):
                    await until(started + number * seconds / (kills + 1), reading)
                    if server is not None:
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start)
                await until(started + seconds, reading)
                while not told.has_enough and time.monotonic() < started + seconds + ENOUGH_S:  # for a busy machine
                    await until(time.monotonic() + 0.1, reading)
            took_s = time.monotonic() - started
            is_over.set()
            await asyncio.wait_for(reading, 60)
        await check(database_url, told, seen)
        assert not told.counts["died"], (tmp_path / "complaints").read_text()
        assert told.has_enough, "the writers must have appended something before they were killed"
    except BaseException as cause:
        cause.add_note(f"to do it again: SPARROW_SEED={seed}; {dict(told.counts)}, {len(seen)} messages read")
        raise
    figures = ", ".join(f"{told.counts[word]} {word}" for word in ("stored", "again", "rolled", "unsure", "killed"))
    print(
        f"{database}: {len(seen)} messages in {took_s:.0f} s; batches and writers: {figures};"
        f" server killed {kills if server else 0} times (SPARROW_SEED={seed})"
    )


async def until(moment: float, reading: asyncio.Task[None]) -> None:
    """Let the writers run; a failure of the reader ends the test at once."""
    done, _ = await asyncio.wait({reading}, timeout=max(0.0, moment - time.monotonic()))
    for task in done:
        task.result()

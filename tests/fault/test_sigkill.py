"""A writer killed at random moments: every acknowledged message is stored, with its offset and its bytes."""

from __future__ import annotations

import asyncio
import os
import random
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.fault import killed_writer
from tests.fault.store_contents import Place, assert_records_match_places, read_served

from sparrow.model.queue import Queue
from sparrow.store.log import LogStore
from sparrow.wire import record

ROOT = Path(__file__).resolve().parents[2]
QUEUES = [Queue(topic, n) for topic in killed_writer.TOPICS for n in range(killed_writer.QUEUES)]


@dataclass
class Acknowledged:
    """All appends that any child reported as acknowledged."""

    bodies: dict[Place, bytes] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)

    def hear(self, line: str) -> None:
        words = line.split()
        if len(words) == 1:
            self.topics.add(line)
            return
        topic, (queue_id, offset, count, seed) = words[0], map(int, words[1:])
        for n, draft in enumerate(killed_writer.drafts_of(seed, count)):
            place = Place(Queue(topic, queue_id), offset + n)
            assert place not in self.bodies, f"{place} was assigned twice"
            self.bodies[place] = bytes(draft.body)


def run_and_kill(path: Path, rng: random.Random, *, in_opening: bool, told: Acknowledged) -> int:
    """Start a writer, kill it at a random moment, and read its output; return the number of acknowledged appends."""
    visible_after = rng.choice(("written", "durable"))
    command = [sys.executable, str(Path(killed_writer.__file__)), str(path)]
    command += [str(rng.getrandbits(32)), str(rng.randrange(16, 65)), visible_after]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0)
    assert child.stdout is not None
    try:
        said = b""
        deadline = time.monotonic() + 60
        if in_opening:
            # A store takes its lock first when it opens, so the lock shows when the opening begins.
            wait_for_lock(child, path)
            deadline = time.monotonic() + rng.uniform(0.0, 0.02)
        while time.monotonic() < deadline and child.poll() is None:
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if ready:
                said += os.read(child.stdout.fileno(), 1 << 16)
                if not in_opening and said.startswith(b"open\n"):
                    deadline = min(deadline, time.monotonic() + rng.uniform(0.0, 0.4))
                    in_opening = True  # from here on the clock decides
        died = child.poll()
        child.kill()
        rest, complaint = child.communicate()
        assert died is None, f"the writer ended unexpectedly:\n{complaint.decode()}"
        said += rest
    finally:
        child.kill()
        child.wait()
    lines = said.decode().splitlines()
    for line in lines[1:]:
        told.hear(line)
    return len(lines)


def wait_for_lock(child: subprocess.Popen[bytes], path: Path) -> None:
    """Wait until the child has the store's files open."""
    wanted = str((path / "lock").resolve())
    while child.poll() is None:
        try:
            for fd in os.scandir(f"/proc/{child.pid}/fd"):
                if os.readlink(fd.path) == wanted:
                    return
        except FileNotFoundError:  # closed during the check
            pass


async def assert_nothing_lost(path: Path, told: Acknowledged) -> None:
    store = LogStore(path, killed_writer.settings("written"))
    try:
        assert store.damage == [], "a kill must not damage complete records"
        assert told.topics <= (await store.catalog.list_topics()).keys()
        found = await read_served(store, QUEUES)
        assert_records_match_places(found)
        lost = [place for place in told.bodies if place not in found]
        assert not lost, f"{len(lost)} acknowledged messages are lost, the first is {min(lost)}"
        for place, body in told.bodies.items():
            assert record.decode(found[place]).body == body, f"{place} holds another message"
        for queue in QUEUES:
            bounds = await store.bounds(queue)
            assert bounds == (0, sum(place.queue == queue for place in found)), f"{queue} has a gap"
        for place, data in random.Random(0).sample(sorted(found.items()), min(20, len(found))):
            key = record.decode(data).properties["KEYS"]
            assert data in await store.find_by_key(place.queue.topic, key), f"{place} is not found by its key"
    finally:
        store.close_blocking()


ROUNDS_A_STORE = 20


@pytest.mark.timeout(1800)
def test_a_killed_writer_loses_no_acknowledged_message(tmp_path: Path, scale: str) -> None:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    rng, acknowledged = random.Random(seed), 0
    rounds = 8 if scale == "smoke" else 200
    for number in range(rounds):
        try:
            if number % ROUNDS_A_STORE == 0:  # each check reads the whole store: keep it small
                path, told = tmp_path / str(number), Acknowledged()
            acknowledged += run_and_kill(path, rng, in_opening=number % 4 == 3, told=told)
            # Sometimes the next writer opens the store as the kill left it, without a check in between.
            if number % 3 or (number + 1) % ROUNDS_A_STORE == 0:
                asyncio.run(assert_nothing_lost(path, told))
        except BaseException as cause:
            cause.add_note(f"round {number}; to do it again: SPARROW_SEED={seed}")
            raise
    assert acknowledged > 100 * rounds // 2, "the writers must have appended something before they were killed"
    print(f"{rounds} kills, {acknowledged} appends acknowledged, none lost (SPARROW_SEED={seed})")

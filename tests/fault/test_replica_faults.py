"""Replicas as processes, with three etcd members: leaders are killed, stopped and cut off under load.

The history is checked from outside: every acknowledged message is at its queue and offset in each replica's log, the
messages of one sender are in the order in which they were acknowledged, and repeats are counted. The long form makes
300 faults, or as many as SPARROW_FAULTS says.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.drafts import decode_bodies
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_processes import ReplicaSetProcesses, replica_set_processes
from tests.support.server_processes import SMALL_LOG
from tests.support.wait import eventually

from sparrow import Message, aio
from sparrow.model.errors import SparrowError
from sparrow.model.queue import Queue
from sparrow.settings import LogSettings
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice

IS_SMOKE = os.environ.get("SPARROW_SCALE", "smoke") == "smoke"
FAULT_COUNT = int(os.environ.get("SPARROW_FAULTS", 300))
FAULTS = (["kill", "stop", "cut", "end", "kill follower", "kill etcd"] * FAULT_COUNT)[:FAULT_COUNT]
if IS_SMOKE:
    FAULTS = ["kill", "cut"]
DEADLINE_S = 120
SENDERS = 4


@pytest.fixture(scope="module")
def etcd() -> Iterator[list[EtcdServer]]:
    with etcd_cluster(3) as servers:
        yield servers


class History:
    """What senders were told."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """Queue and offset of each acknowledged message."""
        self.attempts = 0

    async def send(self, producer: aio.Producer, sender: int, is_over: asyncio.Event) -> None:
        """Send numbered messages, each until it is acknowledged."""
        number = 0
        while not is_over.is_set():
            body = f"{sender}-{number}".encode()
            self.attempts += 1
            try:
                result = await producer.send(Message("orders", body))
            except SparrowError:
                await asyncio.sleep(0.02)
                continue
            place = (result.queue_id, result.queue_offset)
            assert place not in self.acknowledged, f"{body!r} and {self.acknowledged[place]!r} are both at {place}"
            self.acknowledged[place] = body
            number += 1

    def check(self, stored: dict[tuple[int, int], bytes]) -> Counter[bytes]:
        """Compare with what a replica has stored; return how often messages were repeated."""
        lost = {place: body for place, body in self.acknowledged.items() if stored.get(place) != body}
        assert not lost, f"{len(lost)} acknowledged messages are lost or replaced, such as {next(iter(lost.items()))}"
        newest: dict[tuple[int, int], int] = {}
        for (queue, _), body in sorted(self.acknowledged.items()):
            sender, number = map(int, body.split(b"-"))
            assert number > newest.get((queue, sender), -1), f"{body!r} is out of order in queue {queue}"
            newest[queue, sender] = number
        counts = Counter(stored.values())
        return Counter({body: count - 1 for body, count in counts.items() if count > 1})


async def stored_in(path: Path) -> dict[tuple[int, int], bytes]:
    """Return the messages of the topic in the directory of a replica that has ended."""
    settings = LogSettings(**{name.lower(): value for name, value in SMALL_LOG.items()})
    found: dict[tuple[int, int], bytes] = {}
    async with await asyncio.to_thread(LogStore, path, settings, follows=True) as store:
        for queue in range(16):
            offset = 0
            while isinstance(read := await store.read(Queue("orders", queue), offset, count_max=1000), Slice):
                bodies = decode_bodies(read)
                found |= {(queue, offset + number): body for number, body in enumerate(bodies)}
                offset = int(read.next_offset)
    return found


async def inject(fault: str, processes: ReplicaSetProcesses, etcd: list[EtcdServer], history: History) -> None:
    """Let something fail, wait until sends are acknowledged again, and mend it."""
    leader = await processes.leader()
    follower = next(one for one in processes.replicas.values() if one is not leader)

    async def go_on() -> None:
        target = len(history.acknowledged) + 20
        await eventually(lambda: len(history.acknowledged) >= target, within_s=DEADLINE_S)

    match fault:
        case "kill":
            await leader.end()
            await processes.leader(but=leader)
            await go_on()
            leader.start()
        case "stop":
            leader.send_signal(signal.SIGSTOP)
            await processes.leader(but=leader)
            await go_on()
            leader.send_signal(signal.SIGCONT)
        case "end":
            await leader.end(signal.SIGTERM)
            await processes.leader(but=leader)
            leader.start()
        case "cut":
            for link in leader.links:
                link.cut()
            await processes.leader(but=leader)
            await go_on()
            for link in leader.links:
                link.mend()
        case "kill follower":
            await follower.end()
            await go_on()
            follower.start()
        case "kill etcd":
            member = random.Random(len(history.acknowledged)).choice(etcd)
            member.kill()
            await go_on()
            await asyncio.to_thread(member.start)
    await go_on()


@pytest.mark.timeout(600 if IS_SMOKE else 8 * 3600)
async def test_nothing_acknowledged_is_lost_whatever_fails(etcd: list[EtcdServer], tmp_path: Path) -> None:
    history, is_over = History(), asyncio.Event()
    async with asyncio.timeout(DEADLINE_S * (len(FAULTS) + 4)):
        async with (
            replica_set_processes(etcd, tmp_path, "set-faults") as processes,
            aio.Producer(processes.name_servers, timeout_ms=2000) as producer,
        ):
            senders = [asyncio.create_task(history.send(producer, sender, is_over)) for sender in range(SENDERS)]
            await eventually(lambda: len(history.acknowledged) >= 50, within_s=DEADLINE_S)
            for fault in FAULTS:
                await inject(fault, processes, etcd, history)
            is_over.set()
            await asyncio.gather(*senders)
            await processes.wait_in_sync()
            for replica in processes.replicas.values():
                await replica.end(signal.SIGTERM)
        repeats = [history.check(await stored_in(replica.data / "store")) for replica in processes.replicas.values()]
    assert repeats[0] == repeats[1] == repeats[2], "all replicas have the same messages"
    assert repeats[0].total() <= history.attempts - len(history.acknowledged), "only failed sends are repeated"

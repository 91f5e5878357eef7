"""Replicas as processes, with three etcd members: leaders are killed, stopped, cut off and filled up under load.

The history is checked from outside (`send_history`): every acknowledged message is at its queue and offset in each
replica's log, the messages of one sender are in the order in which they were acknowledged, and repeats are counted.

The long form makes 300 faults, or as many as SPARROW_FAULTS says. It gives each replica a disk of its own, which is
really full for a while, where this process may mount one; and official Java clients of 4.9 and 5.x send beside ours,
where Java and Maven are installed. A warning says what is left out. SPARROW_FAULT_KINDS selects faults:
`SPARROW_FAULT_KINDS="fill,fill follower"`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.fault.java_senders import JavaSender, available_kits, java_senders
from tests.fault.send_history import SendHistory, stored_in
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_processes import ReplicaProcess, ReplicaSetProcesses, replica_set_processes
from tests.support.small_disk import MountRefused, SmallDisk, small_disk
from tests.support.wait import eventually

from sparrow import aio

IS_SMOKE = os.environ.get("SPARROW_SCALE", "smoke") == "smoke"
FAULT_COUNT = int(os.environ.get("SPARROW_FAULTS", 300))
FILLING = ("fill", "fill follower", "fill follower and kill", "fill and restart")
KINDS = ("kill", "fill", "stop", "cut", "fill follower", "end", "kill follower", "fill follower and kill", "kill etcd")
CHOSEN = tuple(filter(None, os.environ.get("SPARROW_FAULT_KINDS", "").split(","))) or (*KINDS, "fill and restart")
SMOKE_FAULTS = ["kill", "cut"]
DEADLINE_S = 120
SENDERS = 4
DISK_BYTES = 8 << 30
"""Of a sparse file. Far more than the messages of all faults: a disk is full only when a fault fills it."""

SEGMENT_BYTES = 4 << 20
"""Space is reserved up to the end of the next segment: a follower goes on so long with a full disk."""


@pytest.fixture(scope="module")
def etcd() -> Iterator[list[EtcdServer]]:
    with etcd_cluster(3) as servers:
        yield servers


class FaultySet:
    """A replica set under load, its etcd members, and the disks of its replicas, if these have their own."""

    def __init__(
        self, processes: ReplicaSetProcesses, etcd: list[EtcdServer], disks: dict[int, SmallDisk], history: SendHistory
    ) -> None:
        self.processes, self._etcd, self.disks, self._history = processes, etcd, disks, history
        self.java: list[JavaSender] = []

    async def go_on(self) -> None:
        """Wait until more sends are acknowledged."""
        target = len(self._history.acknowledged) + 20
        await eventually(lambda: len(self._history.acknowledged) >= target, within_s=DEADLINE_S)

    async def go_on_with_java(self) -> None:
        """Wait until every official client has more sends acknowledged, too."""
        before = {sender.name: sender.acknowledged for sender in self.java}
        await eventually(
            lambda: all(sender.acknowledged > before[sender.name] for sender in self.java), within_s=DEADLINE_S
        )

    async def inject(self, fault: str) -> None:
        """Let something fail, wait until sends are acknowledged again, and mend it."""
        processes = self.processes
        leader = await processes.leader()
        follower = next(one for one in processes.replicas.values() if one is not leader)
        match fault:
            case "kill":
                await leader.end()
                await processes.leader(but=leader)
                await self.go_on()
                leader.start()
            case "stop":
                leader.send_signal(signal.SIGSTOP)
                await processes.leader(but=leader)
                await self.go_on()
                leader.send_signal(signal.SIGCONT)
            case "end":
                await leader.end(signal.SIGTERM)
                await processes.leader(but=leader)
                leader.start()
            case "cut":
                for link in leader.links:
                    link.cut()
                await processes.leader(but=leader)
                await self.go_on()
                for link in leader.links:
                    link.mend()
            case "kill follower":
                await follower.end()
                await self.go_on()
                follower.start()
            case "kill etcd":
                member = random.Random(len(self._history.acknowledged)).choice(self._etcd)
                member.kill()
                await self.go_on()
                await asyncio.to_thread(member.start)
            case _:
                assert fault in FILLING, f"there is no fault {fault!r}"
                await self._fill(fault, leader, follower)
        await self.go_on()
        await self.go_on_with_java()

    async def _fill(self, fault: str, leader: ReplicaProcess, follower: ReplicaProcess) -> None:
        """Let a disk be full until sends go on without it; with space again, its replica is in sync again."""
        await self.processes.wait_in_sync()  # two disks that cannot take anything would be too many
        victim = leader if fault in ("fill", "fill and restart") else follower
        disk = self.disks[victim.replica_id]
        await asyncio.to_thread(disk.fill)
        try:
            match fault:
                case "fill":
                    await self.processes.leader(but=leader)
                case "fill and restart":
                    await leader.end()
                    leader.start()
                    await self.processes.leader(but=leader)
                case "fill follower":
                    await self.processes.wait_out_of_sync(follower.replica_id)
                case "fill follower and kill":
                    # It may be elected, or not: it is still in sync, and cannot write.
                    await leader.end()
                    await self.processes.leader(but=leader)
                    leader.start()
            await self.go_on()
        finally:
            await asyncio.to_thread(disk.release)
        victim.start_again()  # without space it may not have been able to open its store
        await self.processes.wait_in_sync()


@asynccontextmanager
async def faulty_set(
    etcd: list[EtcdServer], folder: Path, history: SendHistory, *, has_disks: bool, has_java: bool
) -> AsyncIterator[FaultySet]:
    kits = available_kits() if has_java else []
    with ExitStack() as stack:
        disks: dict[int, SmallDisk] = {}
        if has_disks:
            try:
                for number in (1, 2, 3):
                    disks[number] = stack.enter_context(small_disk(folder / f"r{number}", DISK_BYTES))
            except MountRefused as refused:
                warnings.warn(f"no disk is filled: {refused}", stacklevel=2)
                disks.clear()
        # A full disk deletes old messages before their time. Here it must not: the history is compared with all.
        settings = {"log__segment_bytes": SEGMENT_BYTES, "log__disk_force_ratio": 1}
        async with (
            replica_set_processes(etcd, folder, "set-faults", **settings) as processes,
            java_senders(kits, processes.name_servers, folder, history) as java,
        ):
            found = FaultySet(processes, etcd, disks, history)
            found.java = java
            yield found
            await processes.wait_in_sync()
            for replica in processes.replicas.values():
                await replica.end(signal.SIGTERM)
        repeats = [
            history.check(await stored_in(replica.data / "store", SEGMENT_BYTES))
            for replica in processes.replicas.values()
        ]
        assert repeats[0] == repeats[1] == repeats[2], "all replicas have the same messages"
        report(history, repeats[0])


def chosen_faults(*, can_fill: bool) -> list[str]:
    if IS_SMOKE:
        return SMOKE_FAULTS
    kinds = [kind for kind in CHOSEN if can_fill or kind not in FILLING]
    return list(itertools.islice(itertools.cycle(kinds), FAULT_COUNT))


def report(history: SendHistory, repeats: Counter[str]) -> None:
    """Print the numbers; `pytest -s` shows them."""
    for sender, confirmed in sorted(history.confirmed.items()):
        failed = history.attempts[sender] - confirmed
        print(f"{sender}: {confirmed:,} acknowledged, {failed:,} failed, {repeats[sender]:,} stored again")


@pytest.mark.timeout(600 if IS_SMOKE else 8 * 3600)
async def test_nothing_acknowledged_is_lost_whatever_fails(etcd: list[EtcdServer], tmp_path: Path) -> None:
    history, is_over = SendHistory(), asyncio.Event()
    async with faulty_set(etcd, tmp_path, history, has_disks=not IS_SMOKE, has_java=not IS_SMOKE) as found:
        # No repeats of its own: each attempt is counted.
        async with aio.Producer(found.processes.name_servers, timeout_ms=2000, retries=0) as producer:
            senders = [
                asyncio.create_task(history.send(producer, f"sparrow_{number}", is_over)) for number in range(SENDERS)
            ]
            await eventually(lambda: len(history.acknowledged) >= 50, within_s=DEADLINE_S)
            await found.go_on_with_java()
            for fault in chosen_faults(can_fill=bool(found.disks)):
                begun = time.monotonic()
                async with asyncio.timeout(4 * DEADLINE_S):
                    await found.inject(fault)
                lasted_s = time.monotonic() - begun
                print(f"{fault}: {lasted_s:.1f} s, {len(history.acknowledged):,} acknowledged", flush=True)
            is_over.set()
            await asyncio.gather(*senders)
            for sender in found.java:
                await sender.stop()

"""Replicas whose disks are really full: who leads, what is cut, and that everything goes on with space.

Each replica has a file system of its own; where this process may not mount any, these tests are skipped.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_sets import DEADLINE_S, RunningSet, read_all, running_set
from tests.support.small_disk import MountRefused, SmallDisk, small_disk
from tests.support.wait import eventually

from sparrow import Message, aio
from sparrow.model.errors import SparrowError
from sparrow.replication.server import ReplicaServer

NUMBERS = (1, 2, 3)
DISK_BYTES = 256 << 20


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[int, SmallDisk]]:
    with ExitStack() as stack:
        try:
            yield {number: stack.enter_context(small_disk(tmp_path / str(number), DISK_BYTES)) for number in NUMBERS}
        except MountRefused as refused:
            pytest.skip(str(refused))


async def send(producer: aio.Producer, body: str) -> None:
    """Send a message until it is acknowledged."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if (await producer.send(Message("orders", body))).is_ok:
                    return
            except SparrowError:
                await asyncio.sleep(0.05)


async def refused_for_space(producer: aio.Producer) -> None:
    """Send until a leader says that it has no space."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await producer.send(Message("orders", "refused"))
                raise AssertionError("a leader without space has accepted a message")
            except SparrowError as error:
                if "free some space" in str(error):
                    return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def sending_set(etcd: EtcdServer, folder: Path) -> AsyncIterator[tuple[RunningSet, aio.Producer]]:
    """Run a set in which all are in sync and a message is acknowledged, with a producer that repeats nothing."""
    async with (
        running_set(etcd.url, folder) as replicas,
        aio.Producer(replicas.name_servers, timeout_ms=2000, retries=0) as producer,
    ):
        await send(producer, "first")
        await replicas.in_sync(*NUMBERS)
        yield replicas, producer


async def assert_copies_are_equal(replicas: RunningSet) -> None:
    """Wait until all are in sync, and compare their logs byte by byte."""
    await replicas.in_sync(*NUMBERS)
    await replicas.succeeds("verify")


@pytest.mark.thorough
async def test_a_replica_that_is_elected_with_a_full_disk_lets_another_lead(
    etcd: EtcdServer, tmp_path: Path, disks: dict[int, SmallDisk]
) -> None:
    async with sending_set(etcd, tmp_path) as (replicas, producer):
        leader = await replicas.leader()
        successor = next(number for number in NUMBERS if number != leader)
        disks[successor].fill()
        await replicas.command("transfer", "--to", str(successor))
        # It has the key of the leader, and cannot write the record with which its epoch begins.
        await send(producer, "second")
        assert await replicas.leader() != successor
        disks[successor].release()
        await assert_copies_are_equal(replicas)
        assert sorted(await read_all(replicas.name_servers)) == ["first", "second"]


@asynccontextmanager
async def deposed_leader(replicas: RunningSet, producer: aio.Producer) -> AsyncIterator[ReplicaServer]:
    """Yield a leader that has written "cut off", which nobody else has, and has not noticed yet that others lead."""
    former = replicas.servers[await replicas.leader()]
    others = [server for server in replicas.servers.values() if server is not former]
    leading = former.node.replica.leader
    assert leading is not None
    for server in others:
        await server.node.steps.hold()
    # The fetches that they sent before are answered without any bytes.
    await eventually(lambda: not leading._parked, within_s=DEADLINE_S)
    waiting = asyncio.create_task(producer.send(Message("orders", "cut off")))
    await eventually(lambda: former.store.written > former.store.watermark("replicated"), within_s=DEADLINE_S)
    await former.node.steps.hold()
    await replicas.coordinator.resign(leading.leader_revision)
    for server in others:
        server.node.steps.release()
    with suppress(SparrowError):
        assert not (await waiting).is_ok
    await eventually(lambda: any(server.broker is not None for server in others), within_s=DEADLINE_S)
    yield former
    former.node.steps.release()


@pytest.mark.thorough
async def test_a_former_leader_cuts_its_log_once_its_full_disk_has_space(
    etcd: EtcdServer, tmp_path: Path, disks: dict[int, SmallDisk]
) -> None:
    async with sending_set(etcd, tmp_path) as (replicas, producer):
        async with deposed_leader(replicas, producer) as former:
            disk = disks[former.node.options.replica_id]
            disk.fill()
        await send(producer, "second")
        disk.release()
        await assert_copies_are_equal(replicas)
        assert sorted(await read_all(replicas.name_servers)) == ["first", "second"]


async def test_a_follower_goes_on_only_when_its_log_is_cut(
    etcd: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would keep a record of its own where the leader has another one of the same length."""
    async with sending_set(etcd, tmp_path) as (replicas, producer):
        later = [f"later{number:02}" for number in range(20)]
        async with deposed_leader(replicas, producer) as former:
            for body in later:
                await send(producer, body)
            truncate, failures = former.node.disk.truncate, iter([errno.ENOSPC, errno.EDQUOT])

            def fail_twice(end: int) -> None:
                if (number := next(failures, None)) is not None:
                    raise OSError(number, os.strerror(number))
                truncate(end)

            monkeypatch.setattr(former.node.disk, "truncate", fail_twice)
        await assert_copies_are_equal(replicas)
        assert next(failures, None) is None
        assert sorted(await read_all(replicas.name_servers)) == ["first", *later]


@pytest.mark.thorough
async def test_a_set_whose_disks_are_all_full_sends_again_once_they_have_space(
    etcd: EtcdServer, tmp_path: Path, disks: dict[int, SmallDisk]
) -> None:
    async with sending_set(etcd, tmp_path) as (replicas, producer):
        former, epoch = await replicas.leader(), (await replicas.state()).state.epoch
        for disk in disks.values():
            disk.fill_to(0.95)
        await eventually(lambda: replicas.servers[former].store.replica.is_full, within_s=DEADLINE_S)
        await refused_for_space(producer)
        # It resigns, and one of them leads, which has no space either: it refuses sends and goes on.
        async with asyncio.timeout(DEADLINE_S):
            while (state := await replicas.state()).state.epoch == epoch or state.leader is None:
                await asyncio.sleep(0.05)
        await replicas.leader()
        await refused_for_space(producer)
        for disk in disks.values():
            disk.release()
        await send(producer, "second")
        assert sorted(await read_all(replicas.name_servers)) == ["first", "second"]
        await assert_copies_are_equal(replicas)

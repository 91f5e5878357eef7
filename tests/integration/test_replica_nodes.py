"""Replicas of a set in one process: real stores, sockets and etcd; leaders that fail, and logs that must be equal."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.drafts import decode_bodies, make_draft
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.log_stores import small_settings
from tests.support.wait import eventually

from sparrow.model.errors import NotLeader, Refused, ReplicationTimeout, SparrowError, Unavailable
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.dispatcher import RequestDispatcher
from sparrow.net.listener import Listener
from sparrow.replication import operations
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.etcd.coordinator import EtcdCoordinator
from sparrow.replication.etcd.gateway import EtcdGateway
from sparrow.replication.identity import load_identity
from sparrow.replication.node import ReplicaNode
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice

NAMES = itertools.count()
QUEUE = Queue("orders", 0)
DEADLINE_S = 30


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


class Member:
    """One replica: its directory, and while it runs its store, listener and node."""

    def __init__(
        self, etcd_url: str, path: Path, name: str, replica_id: int, flush: str, ttl_s: int, **settings: object
    ) -> None:
        self.path, self.name, self.replica_id, self._ttl_s = path, name, replica_id, ttl_s
        self._etcd_url, self._settings = (
            etcd_url,
            small_settings(**{"visible_after": "replicated", "flush": flush, **settings}),
        )
        self.identity = load_identity(path, name, replica_id, flushes=flush == "sync")

    async def start(self) -> None:
        self.identity = load_identity(self.path, self.name, self.replica_id, flushes=self._settings.flush == "sync")
        self.store = await asyncio.to_thread(LogStore, self.path, self._settings, follows=True)
        self._listener = Listener()
        port = self._listener.bind("127.0.0.1", 0)
        self._gateway = EtcdGateway([self._etcd_url])
        coordinator = EtcdCoordinator(
            self._gateway, "test", self.name, self.replica_id, address=f"127.0.0.1:{port}", ttl_s=self._ttl_s
        )
        options = ReplicaOptions(set_id=self.name, replica_id=self.replica_id, lag_ms=1000, fetch_wait_ms=200)
        # Longer than by default: this machine may be busy.
        self.node = ReplicaNode(
            self.store, self.identity, options, coordinator, PeerAccess(), acknowledge_timeout_ms=30_000
        )
        self._listener.serve = RequestDispatcher(self, operations.HANDLERS, self.node.fetch_server.handlers)
        await self._listener.start()
        await self.node.start()

    async def stop(self, *, resigns: bool = True) -> None:
        if not resigns:
            self.node.replica.leader = None  # as a killed process, which tells nobody
        self._listener.stop_accepting()
        await self.node.stop()
        await self._listener.stop()
        await self._gateway.close()
        await self.store.close()

    async def send(self, body: str) -> None:
        """Append a message, and wait until it is committed."""
        end = self.store.append_nowait(QUEUE, [make_draft(body)]).end
        await self.node.when_committed(end)


@asynccontextmanager
async def replica_set(
    etcd: EtcdServer, path: Path, flush: str, *, ttl_s: int = 30, **settings: object
) -> AsyncIterator[list[Member]]:
    """Run a new set of three; a busy machine must not end a lease of `ttl_s` unless a test wants that."""
    name = f"broker-{next(NAMES)}"
    members = [Member(etcd.url, path / str(number), name, number, flush, ttl_s, **settings) for number in (1, 2, 3)]
    gateway = EtcdGateway([etcd.url])
    await EtcdCoordinator(gateway, "test", name, 1).initialise(
        ReplicaSetState(
            set_id=name,
            members=tuple(member.replica_id for member in members),
            min_in_sync=2,
            in_sync={member.replica_id: member.identity.incarnation for member in members},
        )
    )
    await gateway.close()
    for member in members:
        await member.start()
    try:
        yield members
    finally:
        for member in members:
            await member.stop()


async def leader_of(members: list[Member]) -> Member:
    """Wait until a member leads, and return it."""
    leading: list[Member] = []

    def is_led() -> bool:
        leading[:] = [member for member in members if member.node.is_leading]
        return bool(leading)

    await eventually(is_led, within_s=DEADLINE_S)
    return leading[0]


async def create_topic(members: list[Member]) -> None:
    """Create the topic; on a busy machine the leader may lose its lease meanwhile, or its followers are late."""
    while True:
        leader = await leader_of(members)
        try:
            await leader.store.catalog.put_topic(Topic(name="orders"))
            return
        except (NotLeader, ReplicationTimeout):
            pass


def log_of(store: LogStore) -> bytes:
    step = store.settings.segment_bytes
    return b"".join(store.raw(at, step) for at in range(store.first, store.written, step))


async def bodies_of(store: LogStore) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while isinstance(read := await store.read(QUEUE, offset, count_max=1000), Slice):
        found += decode_bodies(read)
        offset = int(read.next_offset)
    return found


async def wait_for_equal_logs(members: list[Member]) -> None:
    await eventually(
        lambda: (
            len({(member.store.written, member.store.watermark("replicated")) for member in members}) == 1
            and members[0].store.written == members[0].store.watermark("replicated")
        ),
        within_s=DEADLINE_S,
    )
    assert len({log_of(member.store) for member in members}) == 1


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_every_replica_gets_the_same_log_and_shows_what_is_committed(
    etcd: EtcdServer, tmp_path: Path, flush: str
) -> None:
    async with replica_set(etcd, tmp_path, flush) as members:
        await create_topic(members)
        leader = await leader_of(members)
        await asyncio.wait_for(asyncio.gather(*(leader.send(f"m{n}") for n in range(300))), DEADLINE_S)
        await wait_for_equal_logs(members)
        for member in members:
            assert sorted(await bodies_of(member.store)) == sorted(f"m{n}".encode() for n in range(300))
            if member is not leader:
                with pytest.raises(NotLeader):
                    member.store.append_nowait(QUEUE, [make_draft("mine")])


async def test_nothing_acknowledged_is_lost_when_leaders_die(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, "async", ttl_s=1) as members:
        await create_topic(members)
        acknowledged: list[bytes] = []

        async def produce(number: int) -> None:
            """Send until the message is acknowledged, like a client that looks for the leader."""
            while True:
                for member in members:
                    if not member.node.is_leading:
                        continue
                    try:
                        await asyncio.wait_for(member.send(f"m{number}"), 3)
                        acknowledged.append(f"m{number}".encode())
                        return
                    except (SparrowError, TimeoutError):
                        pass
                await asyncio.sleep(0.02)

        is_over = asyncio.Event()

        async def load(first: int) -> None:
            for number in itertools.count(first, 8):  # however fast it is, leaders die under load
                if is_over.is_set():
                    return
                await produce(number)

        loads = [asyncio.create_task(load(first)) for first in range(8)]
        for _ in range(3):
            target = len(acknowledged) + 60
            await eventually(lambda target=target: len(acknowledged) >= target, within_s=DEADLINE_S)  # type: ignore[misc]
            victim = await leader_of(members)
            await victim.stop(resigns=False)
            await leader_of([member for member in members if member is not victim])
            await victim.start()
        is_over.set()
        await asyncio.wait_for(asyncio.gather(*loads), DEADLINE_S)
        await wait_for_equal_logs(members)
        for member in members:
            assert set(acknowledged) <= set(await bodies_of(member.store))
        epochs = members[0].store.replica.epochs
        assert len(epochs) >= 4
        assert epochs == members[1].store.replica.epochs == members[2].store.replica.epochs


async def test_a_planned_stop_hands_over_at_once(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, "async") as members:
        await create_topic(members)
        leader = await leader_of(members)
        await asyncio.wait_for(leader.send("before"), DEADLINE_S)
        await leader.stop()
        following = await leader_of([member for member in members if member is not leader])
        await asyncio.wait_for(following.send("after"), DEADLINE_S)
        await leader.start()
        await wait_for_equal_logs(members)
        assert await bodies_of(leader.store) == [b"before", b"after"]


async def test_sends_are_refused_before_they_are_written_while_too_few_replicas_are_in_sync(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with replica_set(etcd, tmp_path, "async") as members:
        await create_topic(members)
        leader = await leader_of(members)
        others = [member for member in members if member is not leader]
        for member in others:
            await member.stop()
        await eventually(lambda: not leader.node.replica.is_leading, within_s=DEADLINE_S)
        written = leader.store.written
        with pytest.raises(Unavailable, match=r"too few replicas|follows"):
            leader.store.append_nowait(QUEUE, [make_draft("never")])
        assert leader.store.written == written
        for member in others:
            await member.start()
        leader = await leader_of(members)
        await asyncio.wait_for(leader.send("again"), DEADLINE_S)


async def test_a_replica_with_an_empty_disk_copies_everything(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, "async") as members:
        await create_topic(members)
        leader = await leader_of(members)
        await asyncio.wait_for(asyncio.gather(*(leader.send("x" * 500) for _ in range(50))), DEADLINE_S)
        victim = next(member for member in members if member is not leader)
        old = victim.identity.incarnation
        await victim.stop()
        victim.path.rename(tmp_path / "gone")
        await victim.start()
        assert victim.identity.incarnation != old
        await wait_for_equal_logs(members)

        async def in_sync() -> dict[int, str]:
            gateway = EtcdGateway([etcd.url])
            snapshot = await EtcdCoordinator(gateway, "test", victim.name, 1).read()
            await gateway.close()
            assert snapshot is not None
            return snapshot.state.in_sync

        while (await in_sync()).get(victim.replica_id) != victim.identity.incarnation:
            await asyncio.sleep(0.05)


def test_the_directory_of_another_replica_or_set_is_refused(tmp_path: Path) -> None:
    first = load_identity(tmp_path / "r", "set-a", 1, flushes=True)
    assert load_identity(tmp_path / "r", "set-a", 1, flushes=True) == first
    with pytest.raises(Refused, match="holds replica 1 of set set-a"):
        load_identity(tmp_path / "r", "set-b", 1, flushes=True)
    with pytest.raises(Refused, match="not replica 2"):
        load_identity(tmp_path / "r", "set-a", 2, flushes=True)
    (tmp_path / "log" / "commitlog").mkdir(parents=True)
    (tmp_path / "log" / "commitlog" / ("0" * 20)).write_bytes(b"x")
    with pytest.raises(Refused, match="no replica of set"):
        load_identity(tmp_path / "log", "set-a", 1, flushes=True)


@pytest.mark.thorough
async def test_a_replica_that_was_away_longer_than_retention_copies_what_is_left(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with replica_set(etcd, tmp_path, "async", retention_hours=0) as members:
        await create_topic(members)
        leader = await leader_of(members)
        away, present = (member for member in members if member is not leader)
        await away.stop()
        for number in range(60):
            await asyncio.wait_for(leader.send(f"{number}" * 300), DEADLINE_S)
        first = leader.store.first

        async def trim() -> None:
            while leader.store.first == first:  # the state that it appends again must be committed first
                await leader.store.trim()
                await asyncio.sleep(0.02)

        await asyncio.wait_for(trim(), DEADLINE_S)
        await asyncio.wait_for(leader.send("after"), DEADLINE_S)
        await eventually(lambda: present.store.first == leader.store.first, within_s=DEADLINE_S)
        old = away.identity.incarnation
        await away.start()
        await wait_for_equal_logs(members)
        assert away.store.first == leader.store.first > 0
        assert away.node.replica.incarnation != old, "it has lost what it had acknowledged"
        topics = [dict(member.store._state.tables.topics) for member in members]
        assert topics[0] == topics[1] == topics[2]


@pytest.mark.thorough
async def test_segment_ends_and_large_bodies_make_identical_files(etcd: EtcdServer, tmp_path: Path) -> None:
    settings = {"segment_bytes": 40 << 20, "message_bytes_max": 16 << 20}
    async with replica_set(etcd, tmp_path, "async", **settings) as members:
        await create_topic(members)
        leader = await leader_of(members)
        for megabytes in (4, 16, 1, 16, 4):
            await asyncio.wait_for(leader.send("x" * ((megabytes << 20) - 1000)), DEADLINE_S)
        await wait_for_equal_logs(members)
        assert leader.store.written > 40 << 20, "a segment has ended"
        files = [sorted((member.path / "commitlog").iterdir()) for member in members]
        assert len({tuple(path.name for path in of_member if path.stat().st_size) for of_member in files}) == 1


async def test_bytes_that_the_leader_s_disk_has_damaged_are_refused(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, "async", segment_bytes=1 << 20) as members:
        await create_topic(members)
        leader = await leader_of(members)
        for number in range(20):
            await asyncio.wait_for(leader.send(f"m{number}"), DEADLINE_S)
        follower = next(member for member in members if member is not leader)
        await follower.stop()
        follower.path.rename(tmp_path / "gone")
        segment = leader.store._log.segment_at(int(leader.store.first))
        assert segment is not None
        at = bytes(segment.mapping[: int(leader.store.written)]).rindex(b"m19")  # a checksum covers the body
        segment.mapping[at] ^= 1
        await follower.start()
        await eventually(lambda: follower.store.written > 0, within_s=DEADLINE_S)
        await asyncio.sleep(0.5)  # it keeps trying
        assert follower.store.written < leader.store.written
        segment.mapping[at - segment.base] ^= 1
        await wait_for_equal_logs(members)


async def test_a_leader_whose_sync_fails_hands_over(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, "sync") as members:
        await create_topic(members)
        leader = await leader_of(members)
        await asyncio.wait_for(leader.send("before"), DEADLINE_S)
        old = leader.identity.incarnation
        leader.store._failed(OSError("input/output error"))  # as a failed fdatasync does
        others = [member for member in members if member is not leader]
        following = await leader_of(others)
        await asyncio.wait_for(following.send("after"), DEADLINE_S)
        await leader.stop()
        await leader.start()
        assert leader.identity.incarnation != old
        await wait_for_equal_logs(members)
        assert await bodies_of(leader.store) == [b"before", b"after"]


async def test_a_replica_with_other_segments_is_refused_at_its_first_fetch(
    etcd: EtcdServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_set(etcd, tmp_path, "async") as members:
        await create_topic(members)
        leader = await leader_of(members)
        follower = next(member for member in members if member is not leader)
        await follower.stop()
        follower.path.rename(tmp_path / "gone")
        settings, larger = follower._settings, 2 * follower._settings.segment_bytes
        follower._settings = settings.model_copy(update={"segment_bytes": larger})
        await follower.start()
        sentence = f"replica {follower.replica_id} has segments of {larger} bytes, and the leader"
        await eventually(lambda: sentence in caplog.text, within_s=DEADLINE_S)
        assert follower.store.written == 0, "nothing was copied"
        follower._settings = settings


async def test_damage_that_no_checksum_covers_is_not_copied_unnoticed(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path, "async", segment_bytes=1 << 20) as members:
        await create_topic(members)
        leader = await leader_of(members)
        for number in range(20):
            await asyncio.wait_for(leader.send(f"m{number}"), DEADLINE_S)
        await wait_for_equal_logs(members)
        copying, intact = (member for member in members if member is not leader)
        await copying.stop()
        copying.path.rename(tmp_path / "gone")
        segment = leader.store._log.segment_at(int(leader.store.first))
        assert segment is not None
        at = bytes(segment.mapping[: int(leader.store.written)]).rindex(b"m19") + len("m19") + 1
        assert bytes(segment.mapping[at : at + 6]) == b"orders", "the checksum of a record covers its body only"
        segment.mapping[at] ^= 1
        await copying.start()
        await eventually(lambda: bool(copying.node.copy_check.differences), within_s=DEADLINE_S)
        (found,) = copying.node.copy_check.differences
        assert f"replica {copying.replica_id} has copied bytes of the log that replica {intact.replica_id}" in found
        segment.mapping[at] ^= 1

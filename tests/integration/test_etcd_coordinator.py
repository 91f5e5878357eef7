"""A real etcd as the coordinator of a replica set: conditional writes, leases, watches, and members that die."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from tests.support.etcd import EtcdServer, etcd_cluster, newer_etcd

from sparrow.model.errors import Refused, Unavailable
from sparrow.replication.coordinator import CallOutcome
from sparrow.replication.core import membership
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.output import Change, Elect
from sparrow.replication.core.snapshot import Snapshot
from sparrow.replication.etcd.coordinator import EtcdCoordinator
from sparrow.replication.etcd.gateway import EtcdGateway

STATE = ReplicaSetState(
    set_id="set", members=(1, 2, 3), min_in_sync=2, in_sync={1: "a", 2: "b", 3: "c"}, change_id="first"
)
NAMES = itertools.count()
DEADLINE_S = 20


@pytest.fixture(scope="module", params=["installed", pytest.param("newer", marks=pytest.mark.thorough)])
def etcd(request: pytest.FixtureRequest) -> Iterator[EtcdServer]:
    with etcd_cluster(program=newer_etcd() if request.param == "newer" else None) as (server,):
        yield server


@pytest.fixture
async def gateway(etcd: EtcdServer) -> AsyncIterator[EtcdGateway]:
    connected = EtcdGateway([etcd.url])
    yield connected
    await connected.close()


@pytest.fixture
async def replicas(gateway: EtcdGateway) -> list[EtcdCoordinator]:
    """Three replicas of a new set."""
    name = f"broker-{next(NAMES)}"
    made = [EtcdCoordinator(gateway, "test", name, number, ttl_s=1) for number in STATE.members]
    assert await made[0].read() is None
    await made[0].initialise(STATE)
    return made


async def read(replica: EtcdCoordinator) -> Snapshot:
    snapshot = await replica.read()
    assert snapshot is not None
    return snapshot


async def elect(replica: EtcdCoordinator, replica_id: int, snapshot: Snapshot) -> CallOutcome:
    epoch = membership.next_epoch(snapshot.state.epoch)
    state = membership.elect(snapshot.state, replica_id, STATE.in_sync[replica_id], epoch, f"by {replica_id}")
    return await replica.elect(Elect(state=state, state_revision=snapshot.state_revision, leader_revision=0))


async def test_a_set_is_initialised_once(replicas: list[EtcdCoordinator]) -> None:
    assert (await read(replicas[1])).state == STATE
    with pytest.raises(Refused, match="initialised already"):
        await replicas[1].initialise(STATE)


async def test_one_of_two_candidates_wins(replicas: list[EtcdCoordinator]) -> None:
    snapshot = await read(replicas[0])
    outcomes = await asyncio.gather(elect(replicas[0], 1, snapshot), elect(replicas[1], 2, snapshot))
    assert sorted(outcome.value for outcome in outcomes) == ["applied", "refused"]
    after = await read(replicas[2])
    assert after.leader is not None
    assert (after.leader.epoch, after.leader.change_id) == (1, after.state.change_id)
    assert after.state.leader == after.leader.replica_id


async def test_only_the_holder_of_the_leader_key_changes_the_state(replicas: list[EtcdCoordinator]) -> None:
    await elect(replicas[0], 1, await read(replicas[0]))
    snapshot = await read(replicas[0])
    assert snapshot.leader is not None
    smaller = membership.leave(snapshot.state, 3, "smaller")
    change = Change(
        state=smaller, state_revision=snapshot.state_revision, leader_revision=snapshot.leader.create_revision
    )
    forged = msgspec.structs.replace(change, leader_revision=change.leader_revision + 1)
    assert await replicas[1].change(forged) is CallOutcome.REFUSED
    assert await replicas[0].change(change) is CallOutcome.APPLIED
    assert await replicas[0].change(change) is CallOutcome.REFUSED, "the state has changed since it was read"
    assert (await read(replicas[2])).state == smaller


async def test_a_renewed_lease_lives_and_another_ends(replicas: list[EtcdCoordinator]) -> None:
    await elect(replicas[0], 1, await read(replicas[0]))

    async def outlive() -> None:
        deadline = asyncio.get_running_loop().time() + 2.5  # more than twice its time to live
        while asyncio.get_running_loop().time() < deadline:
            assert await replicas[0].renew()
            await asyncio.sleep(0.2)

    await asyncio.wait_for(outlive(), DEADLINE_S)
    assert (await read(replicas[1])).leader is not None

    async def end() -> None:
        async for snapshot in replicas[1].watch():
            if snapshot.leader is None:
                return

    await asyncio.wait_for(end(), DEADLINE_S)
    assert not await replicas[0].renew()
    assert not await replicas[2].renew(), "it never had a lease"


async def test_a_new_key_of_the_same_replica_ends_the_rights_of_the_old_one(replicas: list[EtcdCoordinator]) -> None:
    await elect(replicas[0], 1, await read(replicas[0]))
    before = await read(replicas[0])
    assert before.leader is not None
    state = membership.elect(before.state, 1, "a", 2, "again")
    old = before.leader.create_revision
    again = Elect(state=state, state_revision=before.state_revision, leader_revision=old)
    assert await replicas[0].elect(again) is CallOutcome.APPLIED
    after = await read(replicas[0])
    assert after.leader is not None
    assert after.leader.create_revision > old
    late = Change(state=before.state, state_revision=after.state_revision, leader_revision=old)
    assert await replicas[0].change(late) is CallOutcome.REFUSED


async def test_a_watch_tells_every_change(replicas: list[EtcdCoordinator]) -> None:
    seen: list[Snapshot] = []
    is_watching = asyncio.Event()

    async def watch() -> None:
        async for snapshot in replicas[2].watch():
            seen.append(snapshot)
            is_watching.set()
            if snapshot.leader is not None:
                return

    watching = asyncio.create_task(watch())
    await asyncio.wait_for(is_watching.wait(), DEADLINE_S)
    await elect(replicas[0], 1, await read(replicas[0]))
    await asyncio.wait_for(watching, DEADLINE_S)
    assert seen[0].leader is None
    assert seen[-1].state.epoch == 1


async def test_an_unreachable_etcd_is_unavailable() -> None:
    gateway = EtcdGateway(["http://127.0.0.1:1"], timeout_s=1)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await EtcdCoordinator(gateway, "test", "x", 1).read()
    await gateway.close()


async def test_calls_go_on_when_a_member_dies() -> None:
    with etcd_cluster(3) as servers:
        gateway = EtcdGateway([server.url for server in servers], timeout_s=2)
        replica = EtcdCoordinator(gateway, "test", "broker", 1, ttl_s=1)
        await replica.initialise(STATE)
        servers[0].kill()

        async def elected() -> None:
            while True:
                try:
                    snapshot = await read(replica)
                    if snapshot.leader is not None or await elect(replica, 1, snapshot) is CallOutcome.APPLIED:
                        return
                except Unavailable:
                    pass  # the others elect a new etcd leader

        await asyncio.wait_for(elected(), DEADLINE_S)
        # Without a majority nothing is confirmed.
        servers[1].kill()
        with pytest.raises(Unavailable):
            await replica.read()
        await gateway.close()

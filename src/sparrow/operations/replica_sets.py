"""Replica sets: who leads, who is in sync, how far each replica is, and the hand-over of the leadership.

1. Everything is asked of the replicas, whose addresses the name server lists: no access to the coordinator is needed.
2. A broker without replicas refuses the question, and belongs to no set.
3. A hand-over loses nothing: the leader takes no sends until its successor has everything, and clients repeat theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.clusters import gather_all
from sparrow.model.errors import Refused, SparrowError, Unavailable
from sparrow.operations.errors import NotFound
from sparrow.operations.plans import check_plan, hash_plan
from sparrow.wire import bodies
from sparrow.wire.bodies import ReplicaSetSnapshot, ReplicaStatus
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import QueryReplica, TransferLeadership

_ASK_TIMEOUT_MS = 2_000
_TRANSFER_TIMEOUT_MS = 5_000
_NEW_LEADER_S = 10.0
_POLL_S = 0.05
LEADER_ROLE = "leader"
AWAY_ROLE = "away"
"""Of a replica that does not answer."""

ReplicaAnswer = ReplicaStatus | SparrowError


class ReplicaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a set. None: it does not answer, or is the leader, which has no lag."""

    replica_id: int
    role: str
    """leader, follower, candidate (it follows nobody), removed, stopped (an operator must act), or away."""
    is_in_sync: bool
    is_eligible: bool
    """Whether it may be elected although it is not in sync."""
    address: str | None
    error: str | None = None
    """Why it does not answer."""
    epoch: int | None = None
    end: int | None = None
    """The end of its log, a physical offset."""
    high_watermark: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    """How long ago it had everything that the leader had."""


class ReplicaSetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A replica set, or a master with its slaves."""

    name: str
    cluster: str
    set_id: str
    is_fixed: bool
    """Whether roles are fixed: a master and its slaves, which elect nobody."""
    leader: int | None
    leader_address: str | None
    epoch: int
    in_sync: tuple[int, ...]
    min_in_sync: int
    high_watermark: int | None
    is_serving: bool
    """Whether it takes sends, as far as the coordinator knows."""
    replicas: tuple[ReplicaSummary, ...]
    error: str | None = None
    """Why the coordinator's state is not known; then leader and in-sync set are what replicas say of themselves."""


class HandOverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a hand-over would do."""

    name: str
    leader: int
    successor: int
    epoch: int
    """The epoch that ends."""
    lag_bytes: int | None
    """What the successor has to copy first."""
    in_sync: tuple[int, ...]
    hash: str


class HandOverResult(msgspec.Struct, frozen=True, kw_only=True):
    """A hand-over that has happened."""

    name: str
    leader: int
    """The former leader."""
    successor: int
    """The replica that leads now."""
    epoch: int
    """The epoch that has begun."""
    took_ms: int


async def list_replica_sets(admin: Admin) -> list[ReplicaSetSummary]:
    """Return all replica sets by name; none if brokers have no replicas."""
    clusters = await admin.clusters()
    found = await gather_all(
        _fetch_set(admin, cluster.name, name, members)
        for cluster in clusters.values()
        for name, members in cluster.brokers.items()
    )
    return [each for each in found if each is not None]


async def fetch_replica_set(admin: Admin, name: str) -> ReplicaSetSummary:
    """Return one replica set; raise `NotFound` if no brokers of this name have replicas."""
    for cluster in (await admin.clusters()).values():
        if name in cluster.brokers:
            found = await _fetch_set(admin, cluster.name, name, cluster.brokers[name])
            if found is not None:
                return found
    raise NotFound("replica set", name, "the brokers of this name have no replicas, or do not answer")


async def plan_hand_over(admin: Admin, name: str, successor: int | None = None) -> HandOverPlan:
    """Return what a hand-over would do; without a successor, the in-sync follower that is furthest is chosen."""
    return _plan(await fetch_replica_set(admin, name), successor)


async def hand_over(
    admin: Admin, name: str, successor: int | None = None, *, plan: str | None = None, force: bool = False
) -> HandOverResult:
    """Let another in-sync replica lead, and return once it does. Raise `Refused` if the leader goes on to lead."""
    found = await fetch_replica_set(admin, name)
    planned = _plan(found, successor)
    check_plan(f"the hand-over of {name!r}", plan, planned.hash, force=force)
    assert found.leader_address is not None, "a plan has a leader"
    began_s = time.perf_counter()
    request = TransferLeadership(found.set_id, planned.successor)
    await admin.session.invoke(
        found.leader_address, RequestCode.TRANSFER_LEADERSHIP, request, timeout_ms=_TRANSFER_TIMEOUT_MS
    )
    try:
        async with asyncio.timeout(_NEW_LEADER_S):
            while True:
                leads = await _new_leader(admin, found)
                if leads is not None:
                    took_ms = round((time.perf_counter() - began_s) * 1000)
                    number, epoch = leads
                    return HandOverResult(
                        name=name, leader=planned.leader, successor=number, epoch=epoch, took_ms=took_ms
                    )
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise Unavailable(
            f"replica {planned.leader} of {name!r} has stepped down, and nobody leads: look at the replica set"
        ) from None


def _plan(found: ReplicaSetSummary, successor: int | None) -> HandOverPlan:
    if found.is_fixed:
        raise Refused(
            f"the roles of {found.name!r} are fixed: stop the master, and start a slave's directory as the master"
        )
    if found.leader is None:
        raise Refused(f"nobody leads {found.name!r}: start one of the replicas {', '.join(map(str, found.in_sync))}")
    if successor == found.leader:
        raise Refused(f"replica {successor} of {found.name!r} leads already")
    candidates = {
        each.replica_id: each.lag_bytes or 0
        for each in found.replicas
        if each.is_in_sync and each.replica_id != found.leader and each.role != AWAY_ROLE
    }
    if successor is not None and successor not in candidates:
        raise Refused(
            f"replica {successor} of {found.name!r} is not an in-sync follower: start it, and wait until it has "
            "caught up"
        )
    if not candidates:
        raise Refused(f"no follower of {found.name!r} is in sync: start one, and wait until it has caught up")
    chosen = min(candidates, key=lambda number: (candidates[number], number)) if successor is None else successor
    return HandOverPlan(
        name=found.name,
        leader=found.leader,
        successor=chosen,
        epoch=found.epoch,
        lag_bytes=candidates[chosen],
        in_sync=found.in_sync,
        # Not what was chosen for the operator: which follower is furthest changes with every send.
        hash=hash_plan("hand-over", found.name, found.leader, successor, found.epoch),
    )


async def _new_leader(admin: Admin, before: ReplicaSetSummary) -> tuple[int, int] | None:
    """Return the replica that leads a later epoch, and the epoch; None as long as nobody does."""
    for replica in before.replicas:
        if replica.address is not None and replica.replica_id != before.leader:
            try:
                snapshot = await _read_snapshot(admin, replica.address)
            except SparrowError:
                continue
            if snapshot.leader is not None and snapshot.state.epoch > before.epoch:
                return snapshot.leader.replica_id, snapshot.state.epoch
    return None


# -- questions to replicas --------------------------------------------------------------------------------------------


async def _fetch_set(admin: Admin, cluster: str, name: str, members: Mapping[int, str]) -> ReplicaSetSummary | None:
    statuses = await _ask_all(admin, members.values())
    answered = {address: found for address, found in statuses.items() if isinstance(found, ReplicaStatus)}
    if not answered:
        return None
    snapshot, error = await _first_snapshot(admin, answered)
    if snapshot is not None:
        unasked = [address for address in snapshot.addresses.values() if address not in statuses]
        statuses |= await _ask_all(admin, unasked)
    return summarise_set(cluster, name, statuses, snapshot, error)


async def _first_snapshot(
    admin: Admin, answered: Mapping[str, ReplicaStatus]
) -> tuple[ReplicaSetSnapshot | None, str | None]:
    error = ""
    # A leader first: a follower may be cut off from the coordinator.
    for address in sorted(answered, key=lambda address: answered[address].role != LEADER_ROLE):
        try:
            return await _read_snapshot(admin, address), None
        except SparrowError as failure:
            error = str(failure)
    return None, error


async def _read_snapshot(admin: Admin, address: str) -> ReplicaSetSnapshot:
    answer = await admin.session.invoke(address, RequestCode.READ_REPLICA_SET, timeout_ms=_ASK_TIMEOUT_MS)
    return bodies.read(ReplicaSetSnapshot, answer.body)


async def _ask_all(admin: Admin, addresses: Iterable[str]) -> dict[str, ReplicaAnswer]:
    async def ask(address: str) -> tuple[str, ReplicaAnswer]:
        try:
            answer = await admin.session.invoke(
                address, RequestCode.QUERY_REPLICA, QueryReplica(), timeout_ms=_ASK_TIMEOUT_MS
            )
            return address, bodies.read(ReplicaStatus, answer.body)
        except SparrowError as error:
            return address, error

    return dict(await gather_all(ask(address) for address in addresses))


def summarise_set(
    cluster: str,
    name: str,
    answers: Mapping[str, ReplicaAnswer],
    snapshot: ReplicaSetSnapshot | None,
    error: str | None,
) -> ReplicaSetSummary:
    """Return the summary of a set, from the answers of its replicas by address and from the coordinator's state."""
    statuses = {found.replica_id: (at, found) for at, found in answers.items() if isinstance(found, ReplicaStatus)}
    newest = max((found for _, found in statuses.values()), key=lambda found: found.epoch)
    leading = [number for number, (_, found) in statuses.items() if found.role == LEADER_ROLE]
    leader = max(leading, key=lambda number: statuses[number][1].epoch, default=None)
    in_sync: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
    members, addresses, epoch, min_in_sync, is_fixed = sorted(statuses), dict[int, str](), newest.epoch, 0, False
    leader_address = statuses[leader][0] if leader is not None else None
    if snapshot is not None:
        state, elected = snapshot.state, snapshot.leader
        in_sync, eligible, addresses = tuple(sorted(state.in_sync)), tuple(state.eligible), snapshot.addresses
        epoch, min_in_sync, is_fixed = state.epoch, state.min_in_sync, state.is_fixed
        leader = None if elected is None else elected.replica_id
        leader_address = None if elected is None else elected.address
        if not is_fixed:  # the state of a master lists every number that a slave may have
            members = list(state.members)
    led = statuses[leader][1] if leader in statuses else None
    lags = {one.replica_id: one for one in led.followers} if led is not None else {}
    if is_fixed:
        members = sorted({*members, *lags})
    failures = {at: found for at, found in answers.items() if isinstance(found, SparrowError)}
    replicas = []
    for number in members:
        at, status = statuses.get(number, (addresses.get(number), None))
        lag = lags.get(number)
        failure = failures.get(at) if at is not None else None
        replicas.append(
            ReplicaSummary(
                replica_id=number,
                role=status.role if status is not None else AWAY_ROLE,
                is_in_sync=number in in_sync,
                is_eligible=number in eligible,
                address=at,
                error=str(failure) if failure is not None else None,
                epoch=status.epoch if status is not None else None,
                end=status.end if status is not None else None,
                high_watermark=status.high_watermark if status is not None else None,
                lag_bytes=lag.lag_bytes if lag is not None else None,
                lag_ms=lag.lag_ms if lag is not None else None,
            )
        )
    return ReplicaSetSummary(
        name=name,
        cluster=cluster,
        set_id=newest.set_id,
        is_fixed=is_fixed,
        leader=leader,
        leader_address=leader_address,
        epoch=epoch,
        in_sync=in_sync,
        min_in_sync=min_in_sync,
        high_watermark=max((found.high_watermark for _, found in statuses.values()), default=None),
        is_serving=snapshot is not None and leader is not None and len(in_sync) >= min_in_sync,
        replicas=tuple(replicas),
        error=error,
    )

"""The keys of a replica set in etcd.

Below `sparrow/CLUSTER/NAME/`:

key          lease         value
state        none          the `ReplicaSetState`, as JSON
leader       the leader's  id, incarnation, epoch and change id, as JSON
member/ID    its own       address of a replica that runs, as JSON

1. Every write is one transaction that compares what the writer has read.
2. A lease detects that a leader is gone; it proves nothing. Epochs are numbers in values, never revisions, which go
   back when etcd is restored from a copy.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import msgspec

from sparrow.model.errors import Refused, SparrowError
from sparrow.replication.coordinator import CallOutcome
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.output import Change, Elect, HandOver
from sparrow.replication.core.snapshot import LeaderKey, Snapshot
from sparrow.replication.etcd.gateway import (
    CallLost,
    EtcdGateway,
    RangeResult,
    created_at,
    delete,
    has_value,
    modified_at,
    put,
)


class _LeaderValue(msgspec.Struct, frozen=True):
    replica_id: int
    incarnation: str
    epoch: int
    change_id: str
    address: str = ""


class _MemberValue(msgspec.Struct, frozen=True):
    address: str
    process_id: str = ""
    """A random value of the process: two of them may have had one address."""


_MEMBER_TTL_S = 30
"""How long the address of a replica that was killed stays known."""


class EtcdCoordinator:
    """One replica's view of its set in etcd."""

    announced_s = _MEMBER_TTL_S

    def __init__(
        self, gateway: EtcdGateway, cluster: str, name: str, replica_id: int, *, address: str = "", ttl_s: int = 2
    ) -> None:
        """`address`: where this replica takes fetches when it leads."""
        self._gateway, self._replica_id, self._address, self.ttl_s = gateway, replica_id, address, ttl_s
        self._prefix = f"sparrow/{cluster}/{name}/"
        self._state_key, self._leader_key = f"{self._prefix}state", f"{self._prefix}leader"
        self._lease_id: int | None = None
        self._member_key = f"{self._prefix}member/{replica_id}"
        self._member = _MemberValue(address, secrets.token_hex(8))
        self._member_lease_id: int | None = None
        self._leases: dict[str, int] = {}
        """The lease of each election that this process asked for, by its change id: any of them may have won."""

    async def initialise(self, state: ReplicaSetState) -> None:
        """Write the first state of a set. Refused if the set has one: it would lose what it knows."""
        if not await self._gateway.transaction([created_at(self._state_key, 0)], [put(self._state_key, _json(state))]):
            raise Refused(f"the replica set {self._prefix} is initialised already")

    async def read(self) -> Snapshot | None:
        """Return what is held now, linearizably; None before the set is initialised."""
        return self._snapshot(await self._gateway.range(self._prefix))

    def _snapshot(self, found: RangeResult) -> Snapshot | None:
        keys = {pair.key: pair for pair in found.keys}
        state, leader = keys.get(self._state_key), keys.get(self._leader_key)
        members = f"{self._prefix}member/"
        addresses = {
            int(key.removeprefix(members)): msgspec.json.decode(pair.value, type=_MemberValue).address
            for key, pair in keys.items()
            if key.startswith(members)
        }
        if state is None:
            return None
        if leader is not None:
            lease_id = self._leases.get(_leader(leader.value, leader.create_revision).change_id)
            if lease_id is not None:
                self._lease_id, self._leases = lease_id, {}
        return Snapshot(
            revision=found.revision,
            state=msgspec.json.decode(state.value, type=ReplicaSetState),
            state_revision=state.mod_revision,
            leader=None if leader is None else _leader(leader.value, leader.create_revision),
            addresses=addresses,
        )

    async def elect(self, election: Elect) -> CallOutcome:
        """Write the state and the leader key, with a new lease, if both are as they were read."""
        if election.leader_revision:
            # A key that is written again keeps its creation revision, and with it the rights of its old owner.
            outcome = await self.resign(election.leader_revision)
            if outcome is not CallOutcome.APPLIED:
                return outcome
        state = election.state
        lease_id = await self._gateway.grant_lease(self.ttl_s)
        value = _LeaderValue(
            self._replica_id, state.in_sync[self._replica_id], state.epoch, state.change_id, self._address
        )
        self._leases[state.change_id] = lease_id
        outcome = await self._try(
            [created_at(self._leader_key, 0), modified_at(self._state_key, election.state_revision)],
            [put(self._state_key, _json(state)), put(self._leader_key, _json(value), lease_id)],
        )
        if outcome is CallOutcome.APPLIED:  # else a read tells which election has won, if any
            self._lease_id, self._leases = lease_id, {}
        return outcome

    async def change(self, change: Change) -> CallOutcome:
        """Write the state, if it is as it was read and the leader key is still the caller's."""
        return await self._try(
            [created_at(self._leader_key, change.leader_revision), modified_at(self._state_key, change.state_revision)],
            [put(self._state_key, _json(change.state))],
        )

    async def hand_over(self, call: HandOver) -> CallOutcome:
        """Write the state and remove the leader key, if both are as they were read."""
        return await self._try(
            [created_at(self._leader_key, call.leader_revision), modified_at(self._state_key, call.state_revision)],
            [put(self._state_key, _json(call.state)), delete(self._leader_key)],
        )

    async def operate(
        self, state: ReplicaSetState, state_revision: int, *, leader_revision: int | None = None
    ) -> CallOutcome:
        """Write an operator's change, if the state is as it was read, and the leader key too if it is given."""
        compare = [modified_at(self._state_key, state_revision)]
        if leader_revision is not None:
            compare.append(created_at(self._leader_key, leader_revision))
        return await self._try(compare, [put(self._state_key, _json(state))])

    async def announce(self, *, replacing: str = "") -> str | None:
        """Tell others where this replica takes requests. Repeat it before `announced_s` are over.

        Return the address of another process that is announced as this replica; None: this one is. `replacing`: the
        address of such a process that is gone.
        """
        key, own, lease_id = self._member_key, self._member, self._member_lease_id
        found = {pair.key: pair for pair in (await self._gateway.range(key)).keys}.get(key)
        known = None if found is None else msgspec.json.decode(found.value, type=_MemberValue)
        if known == own and lease_id is not None and await self._gateway.keep_alive(lease_id, self._gateway.timeout_s):
            return None
        if known is not None and known.address not in (own.address, replacing):
            return known.address
        lease_id = await self._gateway.grant_lease(_MEMBER_TTL_S)
        as_read = created_at(key, 0) if found is None else modified_at(key, found.mod_revision)
        if not await self._gateway.transaction([as_read], [put(key, _json(own), lease_id)]):
            return await self.announce()  # another process was faster
        self._member_lease_id = lease_id
        return None

    async def withdraw(self) -> None:
        """Forget the address of this replica: it stops."""
        if self._member_lease_id is not None:
            self._member_lease_id = None
            is_own = has_value(self._member_key, _json(self._member))
            await self._gateway.transaction([is_own], [delete(self._member_key)])

    async def resign(self, leader_revision: int) -> CallOutcome:
        """Remove the leader key that was created at this revision."""
        return await self._try([created_at(self._leader_key, leader_revision)], [delete(self._leader_key)])

    async def _try(self, compare: list[dict[str, object]], success: list[dict[str, object]]) -> CallOutcome:
        try:
            is_applied = await self._gateway.transaction(compare, success)
        except CallLost:
            return CallOutcome.UNKNOWN
        return CallOutcome.APPLIED if is_applied else CallOutcome.REFUSED

    async def renew(self) -> bool:
        """Extend the lease of the leader key; return False if it is gone."""
        return self._lease_id is not None and await self._gateway.keep_alive(self._lease_id, self.ttl_s / 6)

    async def watch(self) -> AsyncIterator[Snapshot]:
        """Yield what is held after each change. Ends when the connection does."""
        found = await self._gateway.range(self._prefix)
        if (snapshot := self._snapshot(found)) is not None:
            yield snapshot
        async for _ in self._gateway.watch(self._prefix, found.revision + 1):
            try:
                snapshot = await self.read()
            except SparrowError:
                return
            if snapshot is not None:
                yield snapshot


def _json(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)


def _leader(value: bytes, create_revision: int) -> LeaderKey:
    read = msgspec.json.decode(value, type=_LeaderValue)
    return LeaderKey(
        replica_id=read.replica_id,
        incarnation=read.incarnation,
        epoch=read.epoch,
        change_id=read.change_id,
        create_revision=create_revision,
        address=read.address,
    )

"""RocketMQ's fixed roles, a master and its slaves, by the same protocol as replica sets, without etcd.

1. The master is its own coordinator: it alone is in sync, and leads a new epoch whenever it starts. Nobody is elected.
2. A slave asks the master for its state. It finds the master by a setting, or in the routes of the name servers.
3. The master's log is the truth: a slave cuts what the master does not have, and the log says how much that was. But a
   slave copies only the log that it began with: a master with another one, such as an empty disk, is refused.
4. A slave announces its broker id to the master. A second process with that id is refused before it registers with name
   servers; where the master is away, the routes tell who has the id.
5. A slave's directory may be started as the new master when the old master is stopped, which may return as a slave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec

from sparrow.broker.routes import find_broker, name_server_access
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Refused, Unavailable
from sparrow.model.protocol import MASTER_BROKER_ID
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.replication import operations
from sparrow.replication.announcement import announce_alone
from sparrow.replication.coordinator import CallOutcome, Coordinator
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.output import Change, Elect, HandOver
from sparrow.replication.core.snapshot import LeaderKey, Snapshot
from sparrow.replication.identity import ReplicaIdentity, known_set_id, load_identity, make_incarnation
from sparrow.replication.roles.slave_addresses import ANNOUNCED_S, SLAVES_MAX, SlaveAddresses
from sparrow.settings import BrokerSettings, ReplicationPolicy, ReplicationSettings
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import AnnounceSlave, AnnounceSlaveResponse

log = logging.getLogger(__name__)

_ASK_TIMEOUT_MS = 1_000
_ASK_AGAIN_S = 0.5
_ROUTE_CHECKS = 5
"""How often a slave asks who is at an address in the routes, before it takes the address for an old one."""


def policy_of(settings: ReplicationSettings) -> ReplicationPolicy:
    """Return when sends are acknowledged: by the role, or in a replica set by the setting."""
    if settings.role == "replica":
        return settings.policy
    return "sync" if settings.role == "sync-master" else "async"


async def take_role(
    settings: BrokerSettings,
    replication: ReplicationSettings,
    path: Path,
    *,
    address: str,
    flushes: bool,
    access: PeerAccess,
) -> tuple[ReplicaIdentity, Coordinator]:
    """Return who a master or a slave is, and its coordinator. A new slave waits until its master is there."""
    own_id, set_id = replication.broker_id, known_set_id(path)
    if replication.role != "slave":
        if own_id != MASTER_BROKER_ID:
            raise Refused(f"a master has the broker id 0, not {own_id}: leave it out, or start a slave")
        identity = load_identity(
            path, set_id or make_incarnation(), own_id, flushes=flushes, may_change_id=True, may_adopt_log=True
        )
        return identity, MasterCoordinator(identity, address)
    if own_id == MASTER_BROKER_ID:
        raise Refused("a slave needs a broker id from 1 on, which no other slave of this name has: --broker-id 1")
    coordinator = SlaveCoordinator(settings, replication, set_id, access, address=address)
    if set_id is None:
        set_id = await coordinator.wait_for_master()
    await coordinator.take_id(partial(operations.is_gone, set_id, own_id, access))
    return load_identity(path, set_id, own_id, flushes=flushes, may_change_id=True), coordinator


class _FixedRole:
    """What a master and a slave answer alike, because nothing changes their roles."""

    ttl_s = 10**9
    announced_s = 10**9

    async def change(self, change: Change) -> CallOutcome:
        return CallOutcome.REFUSED

    async def hand_over(self, call: HandOver) -> CallOutcome:
        return CallOutcome.REFUSED

    async def announce(self, *, replacing: str = "") -> str | None:
        """Tell nobody: a master's address is in the routes."""
        return None

    async def withdraw(self) -> None:
        """Withdraw nothing."""


class MasterCoordinator(_FixedRole):
    """The state that a master holds for itself and its slaves, in memory."""

    def __init__(self, identity: ReplicaIdentity, address: str) -> None:
        """`address`: where the master takes fetches."""
        self._address = address
        self.slaves = SlaveAddresses()
        self._state = ReplicaSetState(
            set_id=identity.set_id,
            members=tuple(range(SLAVES_MAX + 1)),
            min_in_sync=1,
            in_sync={identity.replica_id: identity.incarnation},
            is_fixed=True,
            loss_accepted_epoch=1 << 62,
        )
        self._leader: LeaderKey | None = None

    def continue_after(self, epoch: int) -> None:
        """Note the newest epoch of the master's log; the next one is above it."""
        self._state = msgspec.structs.replace(self._state, epoch=epoch)

    async def read(self) -> Snapshot:
        revision = self._state.epoch  # it rises with every start of the master
        return Snapshot(revision=revision, state=self._state, state_revision=revision, leader=self._leader)

    async def elect(self, election: Elect) -> CallOutcome:
        state = self._state = election.state
        assert state.leader is not None
        self._leader = LeaderKey(
            replica_id=state.leader,
            incarnation=state.in_sync[state.leader],
            epoch=state.epoch,
            change_id=state.change_id,
            create_revision=state.epoch,
            address=self._address,
        )
        return CallOutcome.APPLIED

    async def resign(self, leader_revision: int) -> CallOutcome:
        self._leader = None
        return CallOutcome.APPLIED

    async def renew(self) -> bool:
        return True

    async def watch(self) -> AsyncIterator[Snapshot]:
        yield await self.read()
        await asyncio.Event().wait()


class SlaveCoordinator(_FixedRole):
    """What a slave knows of its master: what the master answers."""

    announced_s = ANNOUNCED_S

    def __init__(
        self,
        settings: BrokerSettings,
        replication: ReplicationSettings,
        set_id: str | None,
        access: PeerAccess,
        *,
        address: str,
    ) -> None:
        """`set_id`: the set whose log the slave has begun to copy; None: it is empty. `address`: the slave's own."""
        self._settings, self._master, self._set_id, self._access = settings, replication.master, set_id, access
        self._own_id, self._address = replication.broker_id, address
        self._name_server_access = name_server_access(settings)
        self._channel: Channel | None = None
        self._connecting = asyncio.Lock()
        self._is_announced = False
        self._failures = LogIntervals()

    async def wait_for_master(self) -> str:
        """Return the set of the master, once it is there."""
        while True:
            try:
                self._set_id = (await self._ask()).state.set_id
                return self._set_id
            except Unavailable as error:
                if self._failures.is_due("master"):
                    log.warning("the slave waits for its master: %(error)s", {"error": error})
            await asyncio.sleep(_ASK_AGAIN_S)

    async def take_id(self, is_gone: Callable[[str], Awaitable[bool]]) -> None:
        """Announce this process as the slave of its broker id; raise `Refused` if another one has it.

        `is_gone` raises it if a process at an address is that slave. If the master is away, the routes decide now, and
        the master once it is back.
        """
        known = await self._find_broker(self._own_id)
        if known is not None and known != self._address:
            for _ in range(_ROUTE_CHECKS):
                if await is_gone(known):
                    break
        try:
            await announce_alone(self, is_gone)
        except Unavailable as error:
            log.warning("the slave starts without its master: %(error)s", {"error": error})

    async def read(self) -> Snapshot:
        snapshot = await self._ask()
        if not self._is_announced and (holder := await self.announce()) is not None:
            raise Refused(
                f"broker {self._settings.name!r} has another slave with the broker id {self._own_id}, at {holder}: "
                "stop one of the two, or start it with another --broker-id"
            )
        return snapshot

    async def _ask(self) -> Snapshot:
        channel = await self._connect()
        answer = await channel.request(RequestCode.READ_REPLICA_SET, timeout_ms=_ASK_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            channel.close()
            raise error_for_response(answer.code, answer.remark)
        snapshot = bodies.read(Snapshot, answer.body)
        if snapshot.leader is None:
            raise Unavailable(f"the master at {channel.address} does not lead yet: ask again")
        if self._set_id not in (None, snapshot.state.set_id):
            channel.close()
            raise Refused(
                f"the master at {channel.address} has another log (set {snapshot.state.set_id}) than the one that this "
                f"slave has copied (set {self._set_id}): start this slave's directory as the master, or the slave with "
                "an empty directory"
            )
        return snapshot

    async def _connect(self) -> Channel:
        async with self._connecting:
            if self._channel is None or not self._channel.is_open:
                address = self._master or await self._find_broker(MASTER_BROKER_ID)
                if address is None:
                    cluster, name = self._settings.cluster, self._settings.name
                    raise Unavailable(
                        f"no name server knows a master of broker {name!r} in cluster {cluster!r}: start it"
                    )
                self._channel = await self._access.connect(Address.parse(address), timeout_ms=_ASK_TIMEOUT_MS)
            return self._channel

    async def _find_broker(self, broker_id: int) -> str | None:
        """Return the address of a broker of this name, by its id; None if no name server knows it."""
        settings = self._settings
        return await find_broker(
            self._name_server_access,
            settings.name_servers,
            settings.cluster,
            settings.name,
            broker_id,
            timeout_ms=_ASK_TIMEOUT_MS,
        )

    async def elect(self, election: Elect) -> CallOutcome:
        return CallOutcome.REFUSED

    async def announce(self, *, replacing: str = "") -> str | None:
        channel = await self._connect()
        answer = await channel.request(
            RequestCode.ANNOUNCE_SLAVE, self._announcement(replacing=replacing), timeout_ms=_ASK_TIMEOUT_MS
        )
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_response(answer.code, answer.remark)
        holder = headers.read(AnnounceSlaveResponse, answer.ext).holder
        self._is_announced = holder is None
        return holder

    async def withdraw(self) -> None:
        if self._is_announced and self._channel is not None and self._channel.is_open:
            header = self._announcement(is_leaving=True)
            await self._channel.request(RequestCode.ANNOUNCE_SLAVE, header, timeout_ms=_ASK_TIMEOUT_MS)

    def _announcement(self, *, replacing: str = "", is_leaving: bool = False) -> AnnounceSlave:
        assert self._set_id is not None, "the set is known before the id is announced"
        return AnnounceSlave(self._set_id, self._own_id, self._address, replacing, is_leaving)

    async def resign(self, leader_revision: int) -> CallOutcome:
        return CallOutcome.REFUSED  # nobody may depose a master

    async def renew(self) -> bool:
        return False

    async def watch(self) -> AsyncIterator[Snapshot]:
        await asyncio.Event().wait()  # the master reports nothing; its state is read every second
        yield await self.read()


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the body of the answer to a slave or an operator who asks for the state."""
    return msgspec.json.encode(snapshot)

"""A broker with replicas: a replica of a set, a master or a slave. It copies the leader's log, or leads and serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sparrow import clock
from sparrow.broker import log_broker
from sparrow.broker.access.authorizer import RequestAuthorizer
from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.context import Broker
from sparrow.model.errors import Refused, Unavailable
from sparrow.net.access.audit_log import AuditLog
from sparrow.net.access.guarded_dispatcher import GuardedRequestDispatcher
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import (
    HandlerResponse,
    RequestContext,
    RequestDispatcher,
    RequestHandler,
)
from sparrow.net.listener import Listener, advertised_address
from sparrow.replication import operations
from sparrow.replication.announcement import announce_alone
from sparrow.replication.coordinator import Coordinator
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.identity import ReplicaIdentity, load_identity
from sparrow.replication.node import ReplicaNode
from sparrow.replication.replica_connection import replica_access
from sparrow.replication.roles import fixed_roles
from sparrow.replication.roles.broker_roles import BrokerRoles
from sparrow.replication.roles.fixed_roles import MasterCoordinator
from sparrow.settings import BrokerSettings, LogSettings, ReplicationSettings
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import AnnounceSlave, AnnounceSlaveResponse, EmptyHeader, Header


async def _serve_state(_: EmptyHeader, server: ReplicaServer, _call: RequestContext) -> HandlerResponse:
    snapshot = await server.coordinator.read()
    if snapshot is None:
        raise Unavailable(f"broker {server.settings.name} has no replica set yet: ask again")
    return HandlerResponse(body=fixed_roles.encode_snapshot(snapshot))


async def _announce_slave(request: AnnounceSlave, server: ReplicaServer, _call: RequestContext) -> Header:
    coordinator = server.coordinator
    if not isinstance(coordinator, MasterCoordinator):
        raise Refused(f"this broker is no master of {server.settings.name!r}, so that it has no slaves")
    holder = None
    if request.is_leaving:
        coordinator.slaves.withdraw(request.broker_id, request.address)
    elif request.set_id == server.node.options.set_id:  # a slave of another log only serves what it has copied
        holder = coordinator.slaves.announce(request.broker_id, request.address, request.replacing)
    return AnnounceSlaveResponse(holder)


_REPLICATION_HANDLERS: dict[int, RequestHandler[ReplicaServer]] = {
    RequestCode.READ_REPLICA_SET: _serve_state,
    RequestCode.ANNOUNCE_SLAVE: _announce_slave,
    **operations.HANDLERS,
}
_REPLICATION_CODES = {
    *(RequestCode.FETCH_LOG, RequestCode.ACKNOWLEDGE_FLUSH, *_REPLICATION_HANDLERS),
    RequestCode.GET_CHALLENGE,  # also while the broker changes its role: the signatures of a connection depend on it
}


class ReplicaServer:
    """One replica with its sockets. `async with ReplicaServer(...)` serves until the block ends."""

    node: ReplicaNode
    coordinator: Coordinator

    def __init__(
        self,
        settings: BrokerSettings,
        path: Path,
        log_settings: LogSettings,
        replication: ReplicationSettings,
        coordinator: Callable[[str], Coordinator] | None = None,
        *,
        now_ms: Callable[[], int] = clock.now_ms,
    ) -> None:
        """Prepare a replica.

        `coordinator` makes the coordinator for the address at which a replica of a set takes fetches. Masters and
        slaves need none.
        """
        self.settings, self._path, self._replication_settings, self._now_ms = settings, path, replication, now_ms
        self._policy = fixed_roles.policy_of(replication)
        visible_after = "replicated" if self._policy == "quorum" else "written"
        self._log_settings = log_settings.model_copy(update={"visible_after": visible_after})
        self._make_coordinator = coordinator
        self._access = replica_access(settings)

    @property
    def broker(self) -> Broker | None:
        """The broker, while this replica leads."""
        return self._roles.leading_broker

    async def start(self) -> None:
        """Start to follow, or to lead."""
        self._listener = Listener(
            self._receive, self.settings.net, on_close=self._closed, counts_tokens=self.settings.auth
        )
        port = self._listener.bind(self.settings.host, self.settings.port)
        self.address = advertised_address(self.settings.host, port, self.settings.advertised_host)
        try:
            identity, self.coordinator = await self._take_role()
        except BaseException:
            self._listener.stop_accepting()
            raise
        long_polls = LongPollTable(asyncio.get_running_loop(), pulls_max=self.settings.long_polls_max)
        self.store = await log_broker.open_log_store(
            self._path,
            self._log_settings,
            address=self.address,
            long_polls=long_polls,
            now_ms=self._now_ms,
            follows=True,
        )
        if isinstance(self.coordinator, MasterCoordinator):
            await asyncio.to_thread(self.store.replica.begin_history)
            self.coordinator.continue_after(max((epoch for epoch, _ in self.store.replica.epochs), default=0))
        self.node = ReplicaNode(
            self.store,
            identity,
            ReplicaOptions(
                set_id=identity.set_id, replica_id=identity.replica_id, lag_ms=self._replication_settings.lag_ms
            ),
            self.coordinator,
            self._access,
            policy=self._policy,
            acknowledge_timeout_ms=self._replication_settings.acknowledge_timeout_ms,
        )
        self._roles = BrokerRoles(
            self.node,
            self.settings,
            self._replication_settings,
            own_id=identity.replica_id,
            address=self.address,
            long_polls=long_polls,
            now_ms=self._now_ms,
        )
        self._replication = self._replication_dispatcher()
        await self._listener.start()
        await self.node.start()
        await self._roles.start()

    async def _take_role(self) -> tuple[ReplicaIdentity, Coordinator]:
        if self._replication_settings.role == "replica":
            assert self._make_coordinator is not None, "a replica of a set needs a coordinator"
            coordinator = self._make_coordinator(str(self.address))
            return await self._identify(coordinator), coordinator
        return await fixed_roles.take_role(
            self.settings,
            self._replication_settings,
            self._path,
            address=str(self.address),
            flushes=self._log_settings.flush == "sync",
            access=self._access,
        )

    async def _identify(self, coordinator: Coordinator) -> ReplicaIdentity:
        """Return who this replica is, from its directory and from the state of its set."""
        replica_id = self._replication_settings.replica_id
        snapshot = await coordinator.read()
        if snapshot is None:
            raise Refused(
                f"the replica set {self.settings.name!r} of cluster {self.settings.cluster!r} does not exist: "
                "create it once with `sparrow cluster init`"
            )
        state = snapshot.state
        if replica_id not in state.members:
            members = ", ".join(map(str, state.members))
            raise Refused(f"the replica set {self.settings.name!r} has the replicas {members}, and no {replica_id}")
        is_gone = partial(operations.is_gone, state.set_id, replica_id, self._access)
        await announce_alone(coordinator, is_gone)
        return load_identity(
            self._path,
            state.set_id,
            replica_id,
            flushes=self._log_settings.flush == "sync",
            # Nobody has led yet, so that there is nothing that an empty replica could lack.
            assigned=state.in_sync.get(replica_id) if state.epoch == 0 else None,
        )

    async def stop(self) -> None:
        """Hand over, stop to serve, and close the store."""
        if self._replication_settings.role == "replica":
            await operations.prepare_stop(self.node, self._access)
        await self._roles.stop()
        self._listener.stop_accepting()
        await self.node.stop()
        await self._listener.stop()
        await self.store.close()

    async def __aenter__(self) -> ReplicaServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _replication_dispatcher(self) -> RequestDispatcher[ReplicaServer]:
        """Return what serves the other replicas. If requests are signed, only an admin token may read the raw log."""
        if not self.settings.auth:
            return RequestDispatcher(self, _REPLICATION_HANDLERS, self.node.fetch_server.handlers)
        guard = RequestAuthorizer(
            self.store.tokens.all_nowait(),
            self.settings.admin_tokens,
            requires_challenge=self.settings.auth_requires_challenge,
        )
        handlers = self.node.fetch_server.handlers
        audit = AuditLog({RequestCode.TRANSFER_LEADERSHIP, RequestCode.LEAVE_IN_SYNC_SET})
        return GuardedRequestDispatcher(self, _REPLICATION_HANDLERS, handlers, check=guard.check, audit=audit)

    def _receive(self, command: RemotingCommand, channel: Channel) -> None:
        if command.code in _REPLICATION_CODES:
            self._replication(command, channel)
        else:
            self._roles.receive(command, channel)

    def _closed(self, channel: Channel) -> None:
        self._roles.closed(channel)

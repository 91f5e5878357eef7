"""The broker of a replica: while it leads, a whole one that is number 0; else one that serves reads under its own id.

1. Clients, parked pulls and the registration with name servers outlive a change of the role: a new leader knows the
   members of all groups, and a deposed one registers as a follower at once.
2. A new leader serves before the follower ends; a deposed leader ends before the follower serves.
3. A new leader loads delayed messages, half messages, pops in flight and repeated sends from what readers may see. So
   it first waits until everything that it took over is committed: an acknowledged message may be above its high
   watermark. Until then it serves reads like a follower, which costs no time, since no send is acknowledged earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from sparrow.broker import dispatch, log_broker
from sparrow.broker.clients import heartbeats
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.context import Broker
from sparrow.broker.registration import NameServerRegistration
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import NotLeader, SparrowError
from sparrow.net.address import Address, parse_addresses
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import RequestDispatcher, encode_error
from sparrow.replication.node import ReplicaNode
from sparrow.replication.read_advice import ReadAdvisor
from sparrow.settings import BrokerSettings, ReplicationSettings
from sparrow.wire.frame import RemotingCommand

log = logging.getLogger(__name__)

_REFRESH_S = 1.0
"""How often a follower takes over topics and groups that it has received."""
_RETRY_S = 0.1
_REGISTRATION_S = 1.0
"""How long a start waits for the name servers; one that does not answer must not keep a replica from leading."""


class BrokerRoles:
    """Runs the broker of the role that a replica has now."""

    def __init__(
        self,
        node: ReplicaNode,
        settings: BrokerSettings,
        replication: ReplicationSettings,
        *,
        own_id: int,
        address: Address,
        long_polls: LongPollTable,
        now_ms: Callable[[], int],
    ) -> None:
        """`own_id`: the id in routes while the replica follows."""
        self._node, self._settings, self._own_id, self._address = node, settings, own_id, address
        self._long_polls, self._now_ms, self._clients = long_polls, now_ms, ClientRegistry()
        self._advisor = ReadAdvisor(node, replication, own_id=own_id)
        self._serving: RequestDispatcher[Broker] | None = None
        self._registration: NameServerRegistration | None = None
        self._scan: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._broker: Broker | None = None
        self._failures = LogIntervals()

    @property
    def leading_broker(self) -> Broker | None:
        """The broker while this replica leads and serves; None while it follows."""
        return self._broker if self._broker is not None and not self._broker.is_follower else None

    async def start(self) -> None:
        """Serve as a follower, and change the role whenever the replica does."""
        await self._advisor.start()
        await self._follow()
        self._tasks += [asyncio.create_task(self._change_roles()), asyncio.create_task(self._refresh())]
        self._scan_members()

    async def stop(self) -> None:
        """Unregister, and answer what is in progress."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        if self._scan is not None:
            self._scan.cancel()
        await self._advisor.stop()
        if self._registration is not None:
            await self._registration.stop()
        await self._end()

    # -- requests -----------------------------------------------------------------------------------------------------

    def receive(self, command: RemotingCommand, channel: Channel) -> None:
        """Serve a request of a client."""
        if self._serving is not None:
            self._serving(command, channel)
            return
        refusal = encode_error(command, NotLeader("this broker is changing its role: send again"))
        if refusal is not None:
            channel.write(refusal)

    def closed(self, channel: Channel) -> None:
        """Forget the clients of a closed connection."""
        if self._broker is not None:
            heartbeats.remove_channel(self._broker, channel)
        else:
            self._clients.remove_channel(channel)
        self._long_polls.drop_channel(channel)

    def _scan_members(self) -> None:
        if self._broker is not None:
            heartbeats.expire_clients(self._broker)
            self._broker.counters.tick(self._now_ms())
        self._scan = asyncio.get_running_loop().call_later(self._settings.scan_interval_ms / 1000, self._scan_members)

    # -- roles --------------------------------------------------------------------------------------------------------

    async def _change_roles(self) -> None:
        led: int | None = None
        while True:
            await self._node.role_changed.wait()
            self._node.role_changed.clear()
            epoch = self._node.leading_epoch
            if epoch == led:
                continue
            if led is not None:
                await self._end()
                await self._follow()
                led = None
            if epoch is None:
                continue
            try:
                await self._lead(epoch)
                led = epoch
                self._failures.end("lead")
            except SparrowError as error:  # such as the end of the leadership
                if self._failures.is_due("lead", type(error)):
                    log.warning(
                        "the broker could not start to lead epoch %(epoch)s: %(error)s; retrying",
                        {"epoch": epoch, "error": error},
                    )
                self._node.role_changed.set()
                await asyncio.sleep(_RETRY_S)

    async def _lead(self, epoch: int) -> None:
        node = self._node
        await node.until(lambda: node.has_committed_history or node.leading_epoch != epoch)
        if node.leading_epoch != epoch:
            raise NotLeader("the leadership is over")
        broker = await log_broker.start_log_broker(
            self._node.store,
            self._settings,
            address=self._address,
            long_polls=self._long_polls,
            now_ms=self._now_ms,
            clients=self._clients,
        )
        await broker.topics.set_leader_term(epoch)
        broker.advised_broker_id = self._advisor.advise_at_leader
        await self._serve(broker, dispatch.make_dispatcher(broker))

    async def _follow(self) -> None:
        broker = await log_broker.build_follower_broker(
            self._node.store,
            self._settings,
            broker_id=self._own_id,
            address=self._address,
            long_polls=self._long_polls,
            now_ms=self._now_ms,
            clients=self._clients,
        )
        await broker.topics.set_leader_term(self._node.replica.heard_epoch)
        broker.advised_broker_id, broker.has_leader = self._advisor.advise_at_follower, self._has_leader
        await self._serve(broker, dispatch.make_follower_dispatcher(broker))

    def _has_leader(self) -> bool:
        return self._node.knows_leader

    async def _serve(self, broker: Broker, serving: RequestDispatcher[Broker]) -> None:
        """Serve with this broker, register it, and end the one before."""
        before, self._broker, self._serving = self._serving, broker, serving
        self._long_polls.release_all()  # to be parked again in the new role
        if self._registration is None:
            self._registration = NameServerRegistration(broker, parse_addresses(self._settings.name_servers))
            registering = asyncio.create_task(self._registration.start())
            self._tasks.append(registering)
            await asyncio.wait([registering], timeout=_REGISTRATION_S)
        else:
            self._registration.broker = broker
            await self._registration.changed(None)
        if not broker.is_follower:
            broker.topics.on_change = self._registration.changed
        if before is not None:
            await before.stop(self._settings.net.stop_grace_ms / 1000)

    async def _end(self) -> None:
        """Stop to serve; the caller serves in another role, or stops."""
        broker, serving = self._broker, self._serving
        self._broker = self._serving = None
        if broker is None or serving is None:
            return
        self._long_polls.release_all()
        await serving.stop(self._settings.net.stop_grace_ms / 1000)
        self._long_polls.release_all()
        if not broker.is_follower:
            await broker.stop_workers()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            if self._broker is not None and self._broker.is_follower:
                await log_broker.refresh_catalog(self._broker)

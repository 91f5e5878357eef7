"""The registration of a producer group with the brokers: heartbeats while it is open, unregistration at the end."""

from __future__ import annotations

import asyncio

from sparrow.client.aio.connection.session import ClientSession
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import UnregisterClient


class ProducerRegistration:
    """Keeps the brokers informed that a producer of this group is connected."""

    def __init__(self, session: ClientSession, group: str) -> None:
        self._session, self._group = session, group
        self._heartbeat: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Add the group to the session's heartbeats."""
        self._session.producers.add(self._group)
        self._session.on_routes_changed.append(self._send_heartbeat)
        if self._session.broker_addresses(masters_only=True):  # of a shared session, whose heartbeats lack the group
            self._send_heartbeat("")

    async def close(self) -> None:
        """Unregister the group from the brokers that are connected."""
        await self.wait_for_heartbeat()
        self._session.on_routes_changed.remove(self._send_heartbeat)
        self._session.producers.discard(self._group)
        header = UnregisterClient(self._session.client_id, producer_group=self._group)
        addresses = [
            address
            for address in self._session.broker_addresses(masters_only=True)
            if self._session.cached_channel(address) is not None
        ]
        await asyncio.gather(
            *(self._session.invoke(address, RequestCode.UNREGISTER_CLIENT, header) for address in addresses),
            return_exceptions=True,  # a broker that cannot be reached notices the missing heartbeats
        )

    async def wait_for_heartbeat(self) -> None:
        """Wait until the heartbeat that was sent last is delivered."""
        if self._heartbeat is not None:
            await asyncio.wait([self._heartbeat])

    def _send_heartbeat(self, _topic: str) -> None:
        """Send a heartbeat now, so that a broker that has just appeared in a route need not wait for the next one."""
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = asyncio.create_task(self._session.heartbeat())

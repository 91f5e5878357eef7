"""A name server with its sockets. It keeps nothing but the KV configuration: routes come back with the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sparrow import clock
from sparrow.nameserver import dispatch
from sparrow.nameserver.context import NameServerContext
from sparrow.nameserver.kv import KvConfig
from sparrow.nameserver.registration import log_removed_brokers
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import RequestDispatcher
from sparrow.net.listener import Listener, advertised_address
from sparrow.settings import NameServerSettings
from sparrow.wire.frame import RemotingCommand


class NameServer:
    """`async with NameServer(settings) as server:` and it serves until the block ends."""

    def __init__(
        self,
        settings: NameServerSettings,
        kv_path: Path | None = None,
        now_ms: Callable[[], int] = clock.now_ms,
    ) -> None:
        self.settings = settings
        self._kv_path, self._now_ms = kv_path, now_ms
        self._scan: asyncio.TimerHandle | None = None
        self.naming: NameServerContext
        self.address: Address
        """Where it listens, with the port it got."""

    async def start(self) -> None:
        kv = await asyncio.to_thread(KvConfig, self._kv_path)
        self._listener = Listener(self._serve, self.settings.net, on_close=self._closed)
        port = self._listener.bind(self.settings.host, self.settings.port)
        self.address = advertised_address(self.settings.host, port)
        self.naming = NameServerContext(settings=self.settings, address=self.address, kv=kv, now_ms=self._now_ms)
        self._serving: RequestDispatcher[NameServerContext] = dispatch.serving(self.naming)
        await self._listener.start()
        self._scan_later()

    def _serve(self, command: RemotingCommand, channel: Channel) -> None:
        self._serving(command, channel)

    def _closed(self, channel: Channel) -> None:
        log_removed_brokers(self.naming.routes.connection_closed(channel), why="its connection closed")

    def _scan_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(self.settings.scan_interval_ms / 1000, self._drop_silent)

    def _drop_silent(self) -> None:
        self._scan_later()
        log_removed_brokers(self.naming.routes.expire(self._now_ms()), why="it fell silent")

    async def stop(self) -> None:
        """Refuse what is new, finish what is in hand, hang up."""
        if self._scan is not None:
            self._scan.cancel()
        self._listener.stop_accepting()
        await self._serving.stop(self.settings.net.stop_grace_ms / 1000)
        await self._listener.stop()

    async def __aenter__(self) -> NameServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

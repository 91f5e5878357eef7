"""The name server: listener, dispatcher and the scan for expired brokers.

Only the KV configuration is persistent. Routes return with the next registration of each broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sparrow import clock
from sparrow.model.health import Finding, Health
from sparrow.nameserver import dispatch
from sparrow.nameserver.context import NameServerContext
from sparrow.nameserver.kv import KvConfig
from sparrow.nameserver.metrics import NameServerMetrics
from sparrow.nameserver.registration import log_removed_brokers
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import RequestDispatcher
from sparrow.net.listener import Listener, advertised_address
from sparrow.settings import NameServerSettings
from sparrow.wire.frame import RemotingCommand


class NameServer:
    """A running name server: `async with NameServer(settings) as server:` serves until the block ends."""

    def __init__(
        self,
        settings: NameServerSettings,
        kv_path: Path | None = None,
        monotonic_ms: Callable[[], int] = clock.monotonic_ms,
        *,
        has_metrics: bool = False,
    ) -> None:
        """Prepare a name server. `has_metrics`: measure its requests, for `metrics`."""
        self.settings, self._has_metrics = settings, has_metrics
        self.metrics: NameServerMetrics | None = None
        self._is_serving = False
        self._kv_path, self._monotonic_ms = kv_path, monotonic_ms
        self._scan: asyncio.TimerHandle | None = None
        self.context: NameServerContext
        self.address: Address
        """The address that clients connect to, with the actual port."""

    async def start(self) -> None:
        """Load the KV configuration and listen."""
        kv = await asyncio.to_thread(KvConfig, self._kv_path)
        self._listener = Listener(
            self._serve, self.settings.net, on_close=self._closed, counts_tokens=self.settings.auth
        )
        port = self._listener.bind(self.settings.host, self.settings.port)
        self.address = advertised_address(self.settings.host, port)
        self.context = NameServerContext(
            settings=self.settings, address=self.address, kv=kv, monotonic_ms=self._monotonic_ms
        )
        self._dispatcher: RequestDispatcher[NameServerContext] = dispatch.make_dispatcher(self.context)
        if self._has_metrics:
            self.metrics = NameServerMetrics(self.context, self._dispatcher, self._listener)
        await self._listener.start()
        self._schedule_scan()
        self._is_serving = True

    def health(self) -> Health:
        """Return whether the name server serves."""
        if self._is_serving:
            return Health(True)
        return Health(False, (Finding("not_serving", "the name server is starting or stopping", datetime.now(UTC)),))

    def _serve(self, command: RemotingCommand, channel: Channel) -> None:
        self._dispatcher(command, channel)

    def _closed(self, channel: Channel) -> None:
        log_removed_brokers(self.context.routes.connection_closed(channel), why="its connection closed")

    def _schedule_scan(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(self.settings.scan_interval_ms / 1000, self._remove_expired)

    def _remove_expired(self) -> None:
        self._schedule_scan()
        log_removed_brokers(self.context.routes.expire(self._monotonic_ms()), why="its heartbeat timed out")

    async def stop(self) -> None:
        """Stop accepting, finish requests in progress, close all connections."""
        self._is_serving = False
        if self._scan is not None:
            self._scan.cancel()
        self._listener.stop_accepting()
        await self._dispatcher.stop(self.settings.net.stop_grace_ms / 1000)
        await self._listener.stop()

    async def __aenter__(self) -> NameServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

"""A broker with its sockets: opens the store, listens, registers with name servers, and stops in reverse order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sparrow import clock
from sparrow.broker import dispatch, log_broker, sql_broker
from sparrow.broker.clients import heartbeats
from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.context import Broker
from sparrow.broker.metrics.collector import BrokerMetrics
from sparrow.broker.registration import NameServerRegistration
from sparrow.model.health import Finding, Health
from sparrow.net.address import Address, parse_addresses
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import RequestDispatcher
from sparrow.net.listener import Listener, advertised_address
from sparrow.settings import BrokerSettings, LogSettings, SqlSettings, TelemetrySettings


class BrokerServer:
    """A running broker: `async with BrokerServer(settings, store) as server:` serves until the block ends."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Path | str,
        log_settings: LogSettings | None = None,
        *,
        sql_settings: SqlSettings | None = None,
        telemetry: TelemetrySettings | None = None,
        now_ms: Callable[[], int] = clock.now_ms,
        monotonic_ms: Callable[[], int] = clock.monotonic_ms,
    ) -> None:
        """Prepare a broker.

        `store` is the directory of a log store. If `settings.store` is a database URL, messages are stored there.
        With `telemetry`, the broker has `metrics`.
        """
        self.settings, self._telemetry = settings, telemetry
        self.metrics: BrokerMetrics | None = None
        self._is_serving = False
        self._store, self._log_settings, self._sql_settings, self._now_ms = store, log_settings, sql_settings, now_ms
        self._monotonic_ms = monotonic_ms
        self._scan: asyncio.TimerHandle | None = None
        self.broker: Broker
        self.address: Address

    async def start(self) -> None:
        """Start to serve, and register with the name servers that can be reached."""
        name_servers = parse_addresses(self.settings.name_servers)
        self._listener = Listener(None, self.settings.net, on_close=self._closed, counts_tokens=self.settings.auth)
        port = self._listener.bind(self.settings.host, self.settings.port)
        self.address = advertised_address(self.settings.host, port, self.settings.advertised_host)
        try:
            self.broker = await self._open()
            self.broker.monotonic_ms = self._monotonic_ms
        except BaseException:
            self._listener.stop_accepting()
            raise
        self._serving: RequestDispatcher[Broker] = dispatch.make_dispatcher(self.broker)
        self._registration = NameServerRegistration(self.broker, name_servers)
        self.broker.topics.on_change = self._registration.changed
        if self._telemetry is not None:
            self.metrics = BrokerMetrics(self.broker, self._serving, self._listener, self._telemetry)
            self.metrics.start()
        self._listener.serve = self._serving
        await self._listener.start()
        await self._registration.start()
        self.broker.counters.tick(self._now_ms())
        self._scan_later()
        self._is_serving = True

    def health(self) -> Health:
        """Return whether the broker serves and a name server knows it."""
        if self._is_serving:
            return self._registration.health()
        return Health(False, (Finding("not_serving", "the broker is starting or stopping", datetime.now(UTC)),))

    async def _open(self) -> Broker:
        long_polls = LongPollTable(asyncio.get_running_loop(), pulls_max=self.settings.long_polls_max)
        if self.settings.store is not None:
            return await sql_broker.open_sql_broker(
                self.settings.store,
                Path(self._store),
                self.settings,
                self._sql_settings or SqlSettings(),
                address=self.address,
                long_polls=long_polls,
                now_ms=self._now_ms,
            )
        return await log_broker.open_log_broker(
            Path(self._store),
            self.settings,
            self._log_settings or LogSettings(),
            address=self.address,
            long_polls=long_polls,
            now_ms=self._now_ms,
        )

    def _closed(self, channel: Channel) -> None:
        heartbeats.remove_channel(self.broker, channel)
        self.broker.long_polls.drop_channel(channel)

    def _scan_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(self.settings.scan_interval_ms / 1000, self._scan_members)

    def _scan_members(self) -> None:
        heartbeats.expire_clients(self.broker)
        self.broker.counters.tick(self._now_ms())
        self._scan_later()

    async def stop(self) -> None:
        """Unregister, refuse new requests, finish those in progress, answer parked requests, close the store."""
        self._is_serving = False
        if self._scan is not None:
            self._scan.cancel()
        if self.metrics is not None:
            await self.metrics.stop()
        await self.broker.hand_over()
        await self._registration.stop()
        self._listener.stop_accepting()
        self.broker.long_polls.release_all()
        await self._serving.stop(self.settings.net.stop_grace_ms / 1000)
        self.broker.long_polls.release_all()
        await self._listener.stop()
        await self.broker.stop()

    async def __aenter__(self) -> BrokerServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

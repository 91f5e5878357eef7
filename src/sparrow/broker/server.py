"""A broker with its sockets: opens the store, listens, registers, and takes all of it down again in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sparrow import clock
from sparrow.broker import dispatch, membership
from sparrow.broker.context import Broker
from sparrow.broker.counters import Counters
from sparrow.broker.delay import Delay
from sparrow.broker.groups import Groups
from sparrow.broker.hold import Hold
from sparrow.broker.locks import QueueLocks
from sparrow.broker.members import Members
from sparrow.broker.pop.pops import Pops
from sparrow.broker.pop.revive import Reviving
from sparrow.broker.registration import Registration
from sparrow.broker.topics import Topics
from sparrow.broker.transactions import Transactions
from sparrow.net.address import Address, parse_list
from sparrow.net.channel import Channel
from sparrow.net.listener import Listener, reachable_address
from sparrow.net.serving import Serving
from sparrow.settings import BrokerSettings, LogSettings
from sparrow.store.log import LogStore


class BrokerServer:
    """`async with BrokerServer(settings, path) as server:` and it serves until the block ends."""

    def __init__(
        self,
        settings: BrokerSettings,
        store_path: Path | str,
        log_settings: LogSettings | None = None,
        *,
        now_ms: Callable[[], int] = clock.now_ms,
    ) -> None:
        self.settings = settings
        self._store_path, self._log_settings, self._now_ms = store_path, log_settings, now_ms
        self._scan: asyncio.TimerHandle | None = None
        self.broker: Broker
        self.address: Address

    async def start(self) -> None:
        """Serving when this returns, and known to the name servers that could be reached."""
        name_servers = parse_list(self.settings.name_servers)
        self._listener = Listener(None, self.settings.net, on_close=self._closed)
        port = self._listener.bind(self.settings.host, self.settings.port)
        self.address = reachable_address(self.settings.host, port, self.settings.advertised_host)
        try:
            self.broker = await self._open()
        except BaseException:
            self._listener.stop_accepting()
            raise
        self._serving: Serving[Broker] = dispatch.serving(self.broker)
        self._registration = Registration(self.broker, name_servers)
        self.broker.topics.on_change = self._registration.changed
        self._listener.serve = self._serving
        await self._listener.start()
        await self._registration.start()
        self.broker.counters.tick(self._now_ms())
        self._scan_later()

    async def _open(self) -> Broker:
        hold = Hold(asyncio.get_running_loop(), pulls_max=self.settings.held_pulls_max)
        store = await asyncio.to_thread(
            LogStore,
            self._store_path,
            self._log_settings,
            store_host=self.address.as_host(),
            on_growth=hold.grew,
            now_ms=self._now_ms,
        )
        topics, members = Topics(store, self.settings, self._now_ms), Members()
        broker = Broker(
            settings=self.settings,
            address=self.address,
            store=store,
            topics=topics,
            groups=Groups(store, self.settings, self._now_ms),
            members=members,
            locks=QueueLocks(self.settings.lock_ms),
            hold=hold,
            counters=Counters(),
            delay=Delay(
                store,
                horizon_ms=self.settings.delay_horizon_ms,
                rolls_after_ms=int(store.settings.retention_hours * 3_600_000 / 2),
                now_ms=self._now_ms,
            ),
            transactions=Transactions(store, topics, members, self.settings, now_ms=self._now_ms),
            pops=Pops(store, topics, cluster=self.settings.cluster, now_ms=self._now_ms),
            started_ms=self._now_ms(),
            now_ms=self._now_ms,
        )
        try:
            await broker.topics.load()
            await broker.groups.load()
            await broker.delay.start()
            await broker.transactions.start()
            self._reviving = Reviving(broker.pops, store, topics, broker.groups, hold, now_ms=self._now_ms)
            await self._reviving.start()
        except BaseException:
            await store.close()
            raise
        return broker

    def _closed(self, channel: Channel) -> None:
        membership.left(self.broker, channel)
        self.broker.hold.drop(channel)

    def _scan_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(self.settings.scan_interval_ms / 1000, self._scan_members)

    def _scan_members(self) -> None:
        membership.drop_silent(self.broker)
        self.broker.counters.tick(self._now_ms())
        self._scan_later()

    async def stop(self) -> None:
        """Tell the name servers, refuse what is new, finish what is in hand, answer who waits, close the store."""
        if self._scan is not None:
            self._scan.cancel()
        await self._registration.stop()
        self._listener.stop_accepting()
        self.broker.hold.release_all()
        await self._serving.stop(self.settings.net.stop_grace_ms / 1000)
        self.broker.hold.release_all()
        await self._listener.stop()
        await self._reviving.stop()
        await self.broker.transactions.stop()
        await self.broker.delay.stop()
        await self.broker.store.close()

    async def __aenter__(self) -> BrokerServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

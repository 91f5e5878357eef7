"""Brokers on one database, with one name server, in this process, so that a test can inspect them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.platform_driver import PlatformDriver
from tests.support.platforms import broker_settings, open_channel

from sparrow.broker.leadership import Leadership
from sparrow.broker.server import BrokerServer
from sparrow.cli.server.platform import Platform
from sparrow.client.aio import Admin
from sparrow.nameserver.server import NameServer
from sparrow.net import Channel
from sparrow.settings import NameServerSettings, SqlSettings, TopicNames
from sparrow.store.sql.engine import SqlStore

BROKER_NAME = "db"
"""The broker name that all of them share in routes."""
LEASE_MS = 1_000


@asynccontextmanager
async def running_sql_platform(
    folder: Path, url: str, *, wait_ms: int = 5_000, topic_names: TopicNames = "lower", **settings: object
) -> AsyncIterator[PlatformDriver]:
    """Run a name server and a broker on a database, with the topic `t` of one part."""
    async with Platform(
        folder,
        name_server=NameServerSettings(port=0),
        broker=broker_settings(store=url, **settings),
        sql=SqlSettings(database_wait_ms=wait_ms, topic_names=topic_names),
    ) as platform:
        async with open_channel(platform.address) as channel:
            driver = PlatformDriver(platform, channel)
            if "t" not in platform.broker.broker.topics:
                await driver.create_topic("t")
            yield driver


def sql_store_of(server: BrokerServer) -> SqlStore:
    store = server.broker.store
    assert isinstance(store, SqlStore)
    return store


def leadership_of(server: BrokerServer) -> Leadership:
    part = server.broker.workers[0]
    assert isinstance(part, Leadership)
    return part


class SqlBrokers:
    """Several brokers on one database."""

    def __init__(
        self, stack: AsyncExitStack, url: str, folder: Path, sql: SqlSettings, settings: dict[str, object]
    ) -> None:
        self._stack, self._url, self._folder, self._sql, self._settings = stack, url, folder, sql, settings
        self.brokers: list[BrokerServer] = []
        self.channels: list[Channel] = []

    async def start_name_server(self) -> None:
        self.name_server = NameServer(NameServerSettings(port=0), kv_path=self._folder / "naming.json")
        await self.name_server.start()
        self._stack.push_async_callback(self.name_server.stop)
        self.name_servers = str(self.name_server.address)

    async def start_broker(self) -> BrokerServer:
        """Start one more broker."""
        settings = broker_settings(name=BROKER_NAME, store=self._url, name_servers=self.name_servers, **self._settings)
        server = BrokerServer(settings, self._folder, sql_settings=self._sql)
        await self._stack.enter_async_context(_running(server))
        self.brokers.append(server)
        self.channels.append(await self._stack.enter_async_context(open_channel(server.address)))
        return server

    @property
    def broker_ids(self) -> list[int]:
        return [server.broker.broker_id for server in self.brokers]

    async def registered_brokers(self) -> dict[int, str]:
        """Return the name server's entries: broker number to address."""
        async with Admin(self.name_servers) as admin:
            for cluster in (await admin.clusters()).values():
                if BROKER_NAME in cluster.brokers:
                    return dict(cluster.brokers[BROKER_NAME])
        return {}


@asynccontextmanager
async def _running(server: BrokerServer) -> AsyncIterator[BrokerServer]:
    """Run a broker; stop it on exit unless the test has stopped it."""
    await server.start()
    stop, is_stopped = server.stop, False

    async def once() -> None:
        nonlocal is_stopped
        if not is_stopped:
            is_stopped = True
            await stop()

    server.stop = once  # type: ignore[method-assign]
    try:
        yield server
    finally:
        await once()


@asynccontextmanager
async def running_sql_brokers(
    folder: Path, url: str, count: int = 2, *, lease_ms: int = LEASE_MS, busy_ms: float = 0, **settings: object
) -> AsyncIterator[SqlBrokers]:
    async with AsyncExitStack() as stack:
        sql = SqlSettings(lease_ms=lease_ms, leader_busy_delay_ms=busy_ms)
        found = SqlBrokers(stack, url, folder, sql, settings)
        await found.start_name_server()
        for _ in range(count):
            await found.start_broker()
        yield found

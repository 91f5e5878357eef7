"""A name server and a broker in one process, put together: what `sparrow up` runs, and what tests start."""

from __future__ import annotations

from pathlib import Path

from sparrow.broker.server import BrokerServer
from sparrow.nameserver.server import NameServer
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, SqlSettings


class Platform:
    """`async with Platform(folder) as platform:` and clients may come to `platform.name_servers`."""

    def __init__(
        self,
        folder: Path | str,
        *,
        name_server: NameServerSettings | None = None,
        broker: BrokerSettings | None = None,
        log: LogSettings | None = None,
        sql: SqlSettings | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._name_server_settings, self._log, self._sql = name_server or NameServerSettings(), log, sql
        self._broker_settings = broker or BrokerSettings()
        self.name_server: NameServer
        self.broker: BrokerServer

    @property
    def name_servers(self) -> str:
        return str(self.name_server.address)

    @property
    def address(self) -> Address:
        """The broker's."""
        return self.broker.address

    async def start(self) -> None:
        self.name_server = NameServer(self._name_server_settings, kv_path=self._folder / "naming.json")
        await self.name_server.start()
        settings = self._broker_settings.model_copy(update={"name_servers": self.name_servers})
        self.broker = BrokerServer(settings, self._folder / "store", self._log, sql_settings=self._sql)
        try:
            await self.broker.start()
        except BaseException:
            await self.name_server.stop()
            raise

    async def stop(self) -> None:
        await self.broker.stop()
        await self.name_server.stop()

    async def __aenter__(self) -> Platform:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

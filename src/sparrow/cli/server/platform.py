"""A name server and a broker in one process: what `sparrow up` runs and `sparrow.testing` starts."""

from __future__ import annotations

from pathlib import Path

from sparrow.broker.server import BrokerServer
from sparrow.cli.server.output import port_flag
from sparrow.nameserver.server import NameServer
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, SqlSettings


class Platform:
    """A name server and a broker. In `async with Platform(folder) as platform:` clients use `platform.name_servers`."""

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
        """The address of the name server, as clients take it."""
        return str(self.name_server.address)

    @property
    def address(self) -> Address:
        """The address of the broker."""
        return self.broker.address

    async def start(self) -> None:
        """Start the name server, then the broker, which registers with it."""
        self.name_server = NameServer(self._name_server_settings, kv_path=self._folder / "naming.json")
        with port_flag("--name-server-port"):
            await self.name_server.start()
        settings = self._broker_settings.model_copy(update={"name_servers": self.name_servers})
        self.broker = BrokerServer(settings, self._folder / "store", self._log, sql_settings=self._sql)
        try:
            with port_flag("--port"):
                await self.broker.start()
        except BaseException:
            await self.name_server.stop()
            raise

    async def stop(self) -> None:
        """Stop the broker, then the name server."""
        await self.broker.stop()
        await self.name_server.stop()

    async def __aenter__(self) -> Platform:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

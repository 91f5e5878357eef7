"""A name server and a broker in one process: what `sparrow up` runs and `sparrow.testing` starts."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from sparrow.broker.server import BrokerServer
from sparrow.cli.server.output import port_flag
from sparrow.cli.server.telemetry_endpoint import telemetry_endpoint
from sparrow.nameserver.server import NameServer
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, SqlSettings, TelemetrySettings
from sparrow.telemetry.server import TelemetryServer


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
        telemetry: TelemetrySettings | None = None,
        metrics_port: int | None = None,
    ) -> None:
        """Prepare a platform. `metrics_port`: where metrics are served if the settings do not say it."""
        self._folder = Path(folder)
        self._telemetry, self._metrics_port = telemetry or TelemetrySettings(), metrics_port
        self._endpoint = AsyncExitStack()
        self.telemetry_server: TelemetryServer | None = None
        """The endpoint with metrics and health, if there is one."""
        self._broker_settings, self._log, self._sql = broker or BrokerSettings(), log, sql
        self._name_server_settings = guarded_like(self._broker_settings, name_server or NameServerSettings())
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
        has_metrics = self._telemetry.metrics_port is not None or self._metrics_port is not None
        self.name_server = NameServer(
            self._name_server_settings, kv_path=self._folder / "naming.json", has_metrics=has_metrics
        )
        with port_flag("--name-server-port"):
            await self.name_server.start()
        settings = self._broker_settings.model_copy(update={"name_servers": self.name_servers})
        self.broker = BrokerServer(
            settings,
            self._folder / "store",
            self._log,
            sql_settings=self._sql,
            telemetry=self._telemetry if has_metrics else None,
        )
        try:
            with port_flag("--port"):
                await self.broker.start()
        except BaseException:
            await self.name_server.stop()
            raise
        endpoint = telemetry_endpoint(
            self._telemetry, [self.broker, self.name_server], preferred_port=self._metrics_port
        )
        try:
            self.telemetry_server = await self._endpoint.enter_async_context(endpoint)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the broker, then the name server, then the endpoint, which says so meanwhile."""
        await self.broker.stop()
        await self.name_server.stop()
        await self._endpoint.aclose()

    async def __aenter__(self) -> Platform:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def guarded_like(broker: BrokerSettings, name_server: NameServerSettings) -> NameServerSettings:
    """Return the settings of a name server beside a broker with `auth`: it accepts changes of the same admins only."""
    if not broker.auth or not broker.admin_tokens or name_server.auth:
        return name_server
    return name_server.model_copy(
        update={
            "auth": True,
            "admin_tokens": broker.admin_tokens,
            "auth_requires_challenge": broker.auth_requires_challenge,
        }
    )

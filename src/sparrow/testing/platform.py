"""A platform for tests, on an event loop in its own thread, so that blocking and asyncio tests can use it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrow.extras import require

if TYPE_CHECKING:  # pytest imports this module at every start; heavy modules are imported with the first platform
    from sparrow.cli.server.platform import Platform
    from sparrow.client.blocking.loop_thread import LoopThread

SMALL_LOG_SETTINGS: dict[str, Any] = {
    "segment_bytes": 16 << 20,
    "queue_file_entries": 10_000,
    "index_slots": 1 << 14,
    "index_entries": 1 << 16,
    "warm_bytes": 0,
    # Tests must not fail because the disk of the developer is nearly full.
    "disk_clean_ratio": 1,
    "disk_force_ratio": 1,
    "disk_refuse_ratio": 1,
}
"""Settings of a log store whose files are created fast."""


STORE_ENVIRONMENT_VARIABLE = "SPARROW_TEST_STORE"
"""Environment variable with the default store URL of all platforms."""


class RunningPlatform:
    """A running name server and broker."""

    def __init__(self, platform: Platform, loop: LoopThread, folder: Path) -> None:
        self._platform, self._loop = platform, loop
        self._is_stopped = False
        self.folder = folder
        """The data folder."""
        self.name_servers = platform.name_servers
        """The address of the name server, for clients: `host:port`."""
        self.address = str(platform.address)
        """The address of the broker: `host:port`."""
        endpoint = platform.telemetry_server
        self.metrics_address = endpoint.address if endpoint is not None else None
        """The address of metrics and health: `host:port`; None without `telemetry`."""

    def stop(self) -> None:
        """Stop the platform; clients then see an outage."""
        if not self._is_stopped:
            self._is_stopped = True
            try:
                self._loop.run(self._platform.stop())
            finally:
                self._loop.stop()


@contextmanager
def run_platform(
    folder: Path | str | None = None,
    *,
    store: str | None = None,
    broker: dict[str, Any] | None = None,
    log: dict[str, Any] | None = None,
    telemetry: dict[str, Any] | None = None,
) -> Iterator[RunningPlatform]:
    """Run a platform on free ports. Without `folder`, its data is deleted at the end.

    `store` is a database for the messages (`sqlite:///path`, `mysql://…`, `postgresql://…`). `broker`, `log` and
    `telemetry` are settings that differ from the defaults: `run_platform(broker={"auto_create_topics": False})`.
    """
    if folder is None:
        with (
            tempfile.TemporaryDirectory(prefix="sparrow-", ignore_cleanup_errors=True) as made,
            run_platform(made, store=store, broker=broker, log=log, telemetry=telemetry) as platform,
        ):
            yield platform
        return
    platform = start_platform(
        Path(folder),
        {"store": store or os.environ.get(STORE_ENVIRONMENT_VARIABLE), **(broker or {})},
        log or {},
        telemetry or {},
    )
    try:
        yield platform
    finally:
        platform.stop()


def start_platform(
    folder: Path, broker: dict[str, Any], log: dict[str, Any], telemetry: dict[str, Any] | None = None
) -> RunningPlatform:
    """Start a platform in a folder, with settings that differ from the defaults."""
    require("numpy", "pyarrow", "pydantic_settings", extra="server", for_="sparrow.testing.run_platform")
    from sparrow.cli.server.platform import Platform
    from sparrow.client.blocking.loop_thread import LoopThread
    from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, TelemetrySettings

    platform = Platform(
        folder,
        name_server=NameServerSettings(port=0),
        broker=BrokerSettings.model_validate({"port": 0, **broker}),
        log=LogSettings.model_validate(SMALL_LOG_SETTINGS | log),
        telemetry=TelemetrySettings.model_validate(telemetry or {}),
    )
    loop = LoopThread("sparrow platform")
    try:
        loop.run(platform.start())
    except BaseException:
        loop.stop()
        raise
    return RunningPlatform(platform, loop, folder)

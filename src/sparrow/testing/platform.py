"""Starts and stops a platform on a loop thread of its own, so that blocking and asyncio tests can use it alike."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pytest imports us at every start: what is heavy comes with the first platform
    from sparrow.cli.server.platform import Platform
    from sparrow.client.blocking.loop_thread import LoopThread

SMALL_LOG_SETTINGS: dict[str, Any] = {
    "segment_bytes": 16 << 20,
    "queue_file_entries": 10_000,
    "index_slots": 1 << 14,
    "index_entries": 1 << 16,
    "warm_bytes": 0,
    # A developer's disk may be nearly full: that is no reason for a test to fail.
    "disk_clean_ratio": 1,
    "disk_force_ratio": 1,
    "disk_refuse_ratio": 1,
}
"""A log store whose files are made in no time."""


STORE_ENVIRONMENT_VARIABLE = "SPARROW_TEST_STORE"
"""Where every platform keeps its messages that is not told otherwise."""


class RunningPlatform:
    """A name server and a broker that run until `stop`."""

    def __init__(self, platform: Platform, loop: LoopThread, folder: Path) -> None:
        self._platform, self._loop = platform, loop
        self._is_stopped = False
        self.folder = folder
        """Where everything is kept."""
        self.name_servers = platform.name_servers
        """What clients are told: `host:port`."""
        self.address = str(platform.address)
        """The broker's `host:port`."""

    def stop(self) -> None:
        """What clients see from now on is an outage."""
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
) -> Iterator[RunningPlatform]:
    """A platform on free ports. Without a folder, it leaves nothing behind.

    With a `store`, messages are kept in that database (`sqlite:///path`, `mysql://…`, `postgresql://…`).

    `broker` and `log` are settings that differ: `run_platform(broker={"auto_create_topics": False})`.
    """
    if folder is None:
        with (
            tempfile.TemporaryDirectory(prefix="sparrow-", ignore_cleanup_errors=True) as made,
            run_platform(made, store=store, broker=broker, log=log) as platform,
        ):
            yield platform
        return
    platform = start_platform(
        Path(folder), {"store": store or os.environ.get(STORE_ENVIRONMENT_VARIABLE), **(broker or {})}, log or {}
    )
    try:
        yield platform
    finally:
        platform.stop()


def start_platform(folder: Path, broker: dict[str, Any], log: dict[str, Any]) -> RunningPlatform:
    from sparrow.cli.server.platform import Platform
    from sparrow.client.blocking.loop_thread import LoopThread
    from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings

    platform = Platform(
        folder,
        name_server=NameServerSettings(port=0),
        broker=BrokerSettings.model_validate({"port": 0, **broker}),
        log=LogSettings.model_validate(SMALL_LOG_SETTINGS | log),
    )
    loop = LoopThread("sparrow platform")
    try:
        loop.run(platform.start())
    except BaseException:
        loop.stop()
        raise
    return RunningPlatform(platform, loop, folder)

"""Redis, for its streams and as the broker of Celery."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from bench.versus.peers.peer import Peer
from tests.support.databases import _find
from tests.support.redis_nats import redis_server

APPEND_FSYNC = {"async": "everysec", "sync": "always"}


class Redis(Peer):
    name = "Redis Streams"
    measured_program = "redis-server"

    @property
    def description(self) -> str:
        program = _find("redis-server")
        assert program is not None
        version = subprocess.run((program, "--version"), capture_output=True, text=True, check=True).stdout.split()[2]
        return f"Redis {version.removeprefix('v=')}, append-only file, appendfsync {APPEND_FSYNC[self.flush]}"

    @classmethod
    def is_installed(cls) -> bool:
        return _find("redis-server") is not None

    def _launch(self, folder: Path, running: ExitStack) -> None:
        self.address = running.enter_context(redis_server(folder, appendfsync=APPEND_FSYNC[self.flush])).url

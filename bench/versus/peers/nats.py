"""NATS with JetStream: the newest server that Go can build, or else Debian's."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from bench.versus.packages import FOLDER
from bench.versus.peers.peer import Peer
from tests.interop import official
from tests.interop.go import find_compiler
from tests.support.databases import _find
from tests.support.redis_nats import nats_server

MODULE = "github.com/nats-io/nats-server/v2@latest"
PROGRAM = FOLDER / "nats" / "nats-server"
BUILD_TIMEOUT_S = 900


class Nats(Peer):
    name = "NATS JetStream"
    measured_program = "nats-server"

    @property
    def description(self) -> str:
        program = _newest() or _find("nats-server")
        assert program is not None
        version = subprocess.run((program, "--version"), capture_output=True, text=True, check=True).stdout.strip()
        return (
            f"{version}, file storage, one replica; it syncs every 2 minutes by default, Sparrow's async flush every "
            "500 ms"
        )

    @classmethod
    def is_installed(cls) -> bool:
        return PROGRAM.exists() or _find("nats-server") is not None

    def _launch(self, folder: Path, running: ExitStack) -> None:
        if self.is_fetch_allowed:
            _build()
        self.address = running.enter_context(nats_server(folder, program=_newest())).url


def _newest() -> Path | None:
    return PROGRAM if PROGRAM.exists() else None


def _build() -> None:
    """Build the newest server; without Go or the registry, Debian's is used."""
    compiler = find_compiler()
    if compiler is None:
        return
    with official.locked(PROGRAM.parent):
        if not PROGRAM.exists():
            official.run((compiler, "install", MODULE), BUILD_TIMEOUT_S, environment={"GOBIN": str(PROGRAM.parent)})

"""PostgreSQL, in which the event bus and procrastinate keep their rows; every commit is on the disk."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.versus.peers.peer import Peer
from tests.support.databases import _find, postgres_server

SHARED_FOLDER = Path("/var/tmp")
"""On a disk and open to every user: under root the server runs as user postgres."""


class PostgreSQL(Peer):
    name = "PostgreSQL"
    measured_program = "postgres"

    @property
    def description(self) -> str:
        program = _find("postgres")
        assert program is not None
        version = subprocess.run((program, "--version"), capture_output=True, text=True, check=True).stdout.split()[2]
        return f"PostgreSQL {version}, synchronous commits, 512 MB of shared buffers"

    @classmethod
    def is_installed(cls) -> bool:
        return _find("postgres") is not None

    def _launch(self, folder: Path, running: ExitStack) -> None:
        opened = tempfile.TemporaryDirectory(prefix="sparrow-versus-", dir=SHARED_FOLDER, ignore_cleanup_errors=True)
        shared = Path(running.enter_context(opened))
        shared.chmod(0o755)
        server = running.enter_context(postgres_server(shared, shared_buffers="512MB", max_wal_size="2GB"))
        self.address = server.new_database()
        self.other_address = server.new_database()
        """A second database, for another library."""

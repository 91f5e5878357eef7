"""The wall clock of a server process that a test sets while the process runs."""

from __future__ import annotations

import mmap
from pathlib import Path

from tests.support.server_processes import ROOT

_SITE = Path(__file__).parent / "server_site"


class WallClock:
    """How far the wall clock of a process is ahead of the machine's."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8))
        self._path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self.offset_ms = 0

    @property
    def environment(self) -> dict[str, str]:
        """What the process needs in its environment."""
        return {"SPARROW_TEST_CLOCK": str(self._path), "PYTHONPATH": f"{_SITE}:{ROOT / 'src'}:{ROOT}"}

    def set(self, offset_ms: int) -> None:
        self.offset_ms = offset_ms
        self._memory[:] = (offset_ms * 1_000_000).to_bytes(8, "little", signed=True)

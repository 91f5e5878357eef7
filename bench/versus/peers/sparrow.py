"""Sparrow itself: name server and broker in one process, as `sparrow up` starts them."""

from __future__ import annotations

import platform
from contextlib import ExitStack
from pathlib import Path

from bench.versus.peers.peer import Peer
from bench.versus.workload import SPARROW
from tests.interop.platforms import sparrow

import sparrow as package


class Sparrow(Peer):
    name = SPARROW

    @property
    def description(self) -> str:
        return (
            f"{package.__version__} on Python {platform.python_version()}; `sparrow up`: name server and broker in one "
            f"process, log store, flush {self.flush}"
        )

    @classmethod
    def is_installed(cls) -> bool:
        return True

    def _launch(self, folder: Path, running: ExitStack) -> None:
        started = running.enter_context(sparrow(folder, LOG__FLUSH=self.flush))
        self.address = started.name_server

"""A server that takes part in the comparison: its start and stop, its settings, its CPU time and memory."""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar, Literal

import psutil
import pytest
from tests.support.databases import ServerNotInstalled

Flush = Literal["async", "sync"]
"""When a message counts as accepted: once the server has it, or once it is on the disk."""


class PeerMissing(Exception):
    """This machine cannot have the peer; the message says why."""


class Peer(ABC):
    """One server, on loopback, with its data below the folder it is started with."""

    name: ClassVar[str]
    measured_program: ClassVar[str] = ""
    """Text in the command line of the processes that are measured; empty: all processes that the start left."""

    def __init__(self, flush: Flush = "async") -> None:
        self.flush = flush
        self.address = ""
        """What a client of the running server is given: a name server, an address or a URL."""
        self.folder = Path()
        self.start_s = 0.0
        """How long the start took, until the server accepted work."""
        self.is_fetch_allowed = True
        """Whether a start may fetch from registries; `is_installed` says whether it has to."""
        self._running = ExitStack()
        self._processes: list[psutil.Process] = []

    @property
    def title(self) -> str:
        """The name with the way in which the server runs, for the report."""
        return self.name if self.flush == "async" else f"{self.name}, sync flush"

    @property
    @abstractmethod
    def description(self) -> str:
        """Version and settings, for the report."""

    @classmethod
    @abstractmethod
    def is_installed(cls) -> bool:
        """Whether a start needs nothing from a registry."""

    @abstractmethod
    def _launch(self, folder: Path, running: ExitStack) -> None:
        """Start the server, wait until it accepts work, and register in `running` how it is stopped."""

    def start(self, folder: Path) -> None:
        """Start the server; raise `PeerMissing` where this machine cannot have it."""
        folder.mkdir(parents=True)
        self.folder = folder
        before = {process.pid for process in _children()}
        begun = time.perf_counter()
        with missing_programs():
            self._launch(folder, self._running)
        self.start_s = self.start_s or time.perf_counter() - begun
        fresh = [process for process in _children() if process.pid not in before]
        self._processes = [one for one in fresh if self.measured_program in " ".join(one.cmdline())]
        assert self._processes, f"no process of {self.name} found among {fresh}"

    def stop(self) -> None:
        self._running.close()

    @property
    def cpu_s(self) -> float:
        """CPU time so far of the server's processes."""
        times = [process.cpu_times() for process in self._processes]
        return sum(one.user + one.system for one in times)

    @property
    def disk_read_mb(self) -> float:
        """What the server's processes read so far from the disk, not from the page cache."""
        return sum(process.io_counters().read_bytes for process in self._processes) / 1e6

    @property
    def memory_mb(self) -> float:
        """Anonymous memory of the server's processes, without mapped files: the kernel drops their pages at will."""
        return sum(_anonymous_kb(process.pid) for process in self._processes) / 1024


@contextmanager
def missing_programs() -> Iterator[None]:
    """Turn the ways in which the tests report a missing program into `PeerMissing`."""
    try:
        yield
    except (pytest.skip.Exception, ServerNotInstalled, subprocess.CalledProcessError) as reason:
        raise PeerMissing(str(reason)) from reason


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _anonymous_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("/proc has no RssAnon; this bench needs Linux")

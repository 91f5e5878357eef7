"""One run of the comparison: it starts peers, measures work loads at them, and keeps what was missing or failed."""

from __future__ import annotations

import itertools
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.versus.peers.peer import Peer, PeerMissing
from bench.versus.rounds import interleave
from bench.versus.workload import Comparison, Scale, Workload, load_of_machine

FAILURE_CHARACTERS = 300


class Run:
    """What a run has measured so far."""

    def __init__(self, scale: Scale, folder: Path, *, only: str = "") -> None:
        """`only`: the text that the names of the wanted work loads contain."""
        self.scale, self._only = scale, only
        self.comparisons: list[Comparison] = []
        self.descriptions: dict[str, str] = {}
        """Version and settings of every peer, server or library, that took part."""
        self.missing: dict[str, str] = {}
        """Peers that this machine cannot have, with the reason."""
        self.failures: dict[str, str] = {}
        self._folder = folder
        self._numbers = itertools.count(1)

    def new_folder(self) -> Path:
        """Return the path of a folder that does not exist yet."""
        return self._folder / f"{next(self._numbers)}"

    @contextmanager
    def started(self, *wanted: Peer) -> Iterator[list[Peer]]:
        """Start peers one after the other; yield those that this machine can have, and stop them on exit.

        A run at smoke scale fetches nothing.
        """
        folder = self.new_folder()
        found: list[Peer] = []
        try:
            for number, peer in enumerate(wanted):
                try:
                    peer.is_fetch_allowed = not self.scale.is_smoke
                    if not peer.is_fetch_allowed and not peer.is_installed():
                        raise PeerMissing("not installed yet, and a smoke run fetches nothing")
                    found.append(peer)
                    peer.start(folder / f"{number}-{peer.name}")
                    self.describe(peer.title, peer.description)
                    say(f"{peer.name} started in {peer.start_s:.1f} s")
                except PeerMissing as reason:
                    self.report_missing(peer.title, str(reason))
                    if peer in found:
                        found.remove(peer)
                        peer.stop()
            yield found
        finally:
            for peer in reversed(found):
                peer.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def describe(self, name: str, description: str) -> None:
        self.descriptions[name] = description

    def report_missing(self, name: str, reason: str) -> None:
        self.missing[name] = reason
        say(f"{name} is missing: {reason}")

    def wants(self, workload: Workload) -> bool:
        return self._only in workload.name

    def measure(self, peer: str, workload: Workload) -> None:
        """Prepare and measure a work load, if it is wanted; a failure is kept for the report, and the run goes on."""
        if not self.wants(workload):
            return
        with self._failure_kept(f"{peer}: {workload.name}"):
            say(f"{peer}: {workload.name}")
            if workload.prepare is not None:
                workload.prepare()
            rounds, warm_ups = self.scale.rounds, self.scale.warm_ups
            if workload.rounds_max is not None:
                rounds, warm_ups = min(workload.rounds_max, rounds), 0
            measured = interleave(workload.sides, rounds=rounds, warm_ups=warm_ups)
            goals = () if self.scale.is_smoke else workload.goals
            self.comparisons.append(Comparison(peer, workload.name, measured, goals, load_of_machine()))

    def attempt(self, name: str, section: Callable[[], None]) -> None:
        """Run a section; a failure, such as a server that does not start, is kept for the report likewise."""
        with self._failure_kept(name):
            section()

    @contextmanager
    def _failure_kept(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as failure:
            traceback.print_exc()
            self.failures[name] = (str(failure) or type(failure).__name__)[:FAILURE_CHARACTERS]


def say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)

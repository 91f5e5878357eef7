"""The figures of all attacks, as a table for people and as JSON in `build/hostile.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil
from tests.hostile.honest_client import HonestFigures
from tests.hostile.tally import Tally

PATH = Path(__file__).resolve().parents[2] / "build" / "hostile.json"
GOAL_P99_MS = 50.0


class AttackReport(msgspec.Struct):
    """What one attack did, and what it cost the honest client and the servers."""

    attack: str
    rows: str
    """The rows of the table of known weaknesses that it repeats."""
    seconds: float
    tally: Tally
    honest: HonestFigures
    growth_mib: dict[str, float]
    """Private memory of each server, above that before the attack."""


class Report(msgspec.Struct):
    """All attacks of a run."""

    scale: str
    goal_p99_ms: float = GOAL_P99_MS
    load_average: float = 0.0
    """Of the machine, at the end: processes that want a CPU."""
    cpus: int = 0
    attacks: list[AttackReport] = msgspec.field(default_factory=list)

    def add(self, attack: AttackReport) -> None:
        """Add the figures of an attack, and write the file."""
        self.attacks.append(attack)
        self.load_average, self.cpus = round(psutil.getloadavg()[0], 1), psutil.cpu_count() or 0
        PATH.parent.mkdir(exist_ok=True)
        PATH.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    def lines(self) -> list[str]:
        found = [f"{'attack':24}  requests  refused  closed     p50      p99   max ms    MiB"]
        for each in self.attacks:
            tally, honest = each.tally, each.honest
            found.append(
                f"{each.attack:24} {tally.requests:9} {tally.refused:8} {tally.closed:7}"
                f" {honest.p50_ms:7.1f} {honest.p99_ms:8.1f} {honest.max_ms:8.1f} {each.growth_mib['broker']:6.0f}"
            )
        return [*found, f"{PATH}: load average {self.load_average} on {self.cpus} CPUs"]

"""Shared parts of all benches: the scale of a run, CPU time, and the report.

A bench compares with a peer or a physical limit in the same run, so that its ratios hold on a busy or slow machine.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

if {"-h", "--help"} & set(sys.argv[1:]):  # a short run of the bench instead of minutes
    print(
        sys.modules["__main__"].__doc__,
        "\n`--smoke` runs for seconds; SPARROW_BENCH_RESULT=FILE keeps the figures as JSON.",
    )
    sys.exit()


class Row(NamedTuple):
    """One figure. A goal is a lower limit, or with `at_most` an upper limit, as for costs."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal


def is_smoke() -> bool:
    """Whether this is a short run (`--smoke`, or SPARROW_SCALE=smoke) that checks correctness only."""
    return "--smoke" in sys.argv[1:] or os.environ.get("SPARROW_SCALE") == "smoke"


def cpu_seconds(work: Callable[[], object], rounds: int = 7) -> float:
    """Return the CPU time of the fastest of several rounds, the one with the least disturbance."""
    best = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def rss_anon_mb() -> float:
    """Return the anonymous memory of this process. Mapped files do not count: the kernel drops their pages at will."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("/proc/self/status has no RssAnon; this bench needs Linux")


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """Yield an empty folder on the disk of the project, and remove it afterwards; /tmp may be in memory."""
    parent = ROOT / "build" / "bench"
    parent.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="scratch-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def report(name: str, rows: Sequence[Row]) -> Path:
    """Print the figures as a table, and write them to build/bench/NAME.json (or where SPARROW_BENCH_RESULT says)."""
    width = max((len(row.name) for row in rows), default=0)
    unit_width = max((len(row.unit) for row in rows), default=0)
    for row in rows:
        line = f"{row.name:<{width}}  {row.value:>12,.2f} {row.unit:<{unit_width}}"
        if row.goal is not None:
            wanted = f"{'at most' if row.at_most else 'at least'} {row.goal:g}"
            line += f"  {wanted}: {'met' if row.met else 'NOT met'}"
        print(line.rstrip())
    return write_rows(name, rows)


def write_rows(name: str, rows: Sequence[Row]) -> Path:
    """Write the figures to build/bench/NAME.json (or where SPARROW_BENCH_RESULT says)."""
    path = Path(os.environ.get("SPARROW_BENCH_RESULT") or ROOT / "build" / "bench" / f"{name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [
        {"name": row.name, "value": row.value, "unit": row.unit, "goal": row.goal, "met": row.met} for row in rows
    ]
    path.write_text(json.dumps(listed, indent=1) + "\n")
    return path

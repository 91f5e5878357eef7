"""The report of a torture run: a line for each fault, and a summary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.fault.torture.checker import Findings


class RunReport:
    """Lines that are printed and written to a file at once: a run takes long, and may not end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(exist_ok=True)
        path.write_text("")

    def add(self, line: str) -> None:
        print(line, flush=True)
        with self._path.open("a") as file:
            file.write(line + "\n")


def describe(findings: Findings) -> str:
    """Return the summary of a run."""
    kinds = Counter(fault.kind for fault in findings.faults)
    slowest_ms = max((fault.recovered_ms - fault.ended_ms for fault in findings.faults), default=0)
    lines = [
        f"{kinds.total()} faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
        f"{findings.connections:,} connections, {findings.failed:,} requests failed",
        f"{findings.acknowledged.total():,} acknowledged ({_list(findings.acknowledged)})",
        f"{findings.received.total():,} received ({_list(findings.received)})",
        f"{findings.repeats.total():,} repeats ({_list(findings.repeats)});"
        f" {findings.popped_again:,} popped again after their acknowledgement",
        f"longest pause: {findings.longest_send_pause_ms / 1000:.1f} s without an acknowledgement,"
        f" {findings.longest_receive_pause_ms / 1000:.1f} s without a receipt;"
        f" {slowest_ms / 1000:.1f} s from the end of a fault until all loads went on",
        f"violations: {_list(Counter(violation.kind for violation in findings.violations)) or 'none'}",
    ]
    return "\n".join(lines)


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))

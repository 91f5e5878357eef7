"""The checker of a history: a pure function that knows the promises of docs/delivery.md, and nothing of the servers.

| Violation | What it means |
| --- | --- |
| `lost` | acknowledged (and committed, if it was a half message), and never received |
| `early` | received before its time by every clock that the brokers had since it was sent |
| `uncommitted` | a half message was received before its producer committed it, or after it rolled it back |
| `order` | received while an earlier acknowledged message of its key had not been received |
| `phantom` | nobody sent it |
| `damaged` | its body is not the one that was sent |
| `place` | two messages at one offset of a queue, by acknowledgements or receipts |

Repeats are no violation: delivery is at least once. They are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.fault.torture.history import (
    Acknowledged,
    ClockSet,
    Connections,
    Decided,
    Failed,
    Fault,
    Popped,
    Received,
    Record,
    Sent,
    load_of,
)

ViolationKind = Literal["lost", "early", "uncommitted", "order", "phantom", "damaged", "place"]
_CLOCK_SLACK_MS = 200
"""A clock that is set is recorded a moment before or after the broker sees it."""


class Violation(NamedTuple):
    kind: ViolationKind
    id: str
    detail: str


class ClockPeriod(NamedTuple):
    """A period in which the clock of a server had an offset."""

    begin_ms: float
    end_ms: float
    offset_ms: int


@dataclass
class Findings:
    """The violations of a history, and its figures."""

    violations: list[Violation] = field(default_factory=list)
    acknowledged: Counter[str] = field(default_factory=Counter)
    """Messages by load."""
    received: Counter[str] = field(default_factory=Counter)
    """Different messages by load."""
    repeats: Counter[str] = field(default_factory=Counter)
    """Receipts after the first, by load."""
    popped_again: int = 0
    """Popped messages that came again after the broker had accepted their acknowledgement."""
    failed: int = 0
    faults: list[Fault] = field(default_factory=list)
    connections: int = 0
    """The most connections at a time."""
    longest_send_pause_ms: int = 0
    """The longest time without any acknowledged send."""
    longest_receive_pause_ms: int = 0


def check(history: Iterable[Record]) -> Findings:
    """Check a history, whose records are in the order of events."""
    checker = _Checker(list(history))
    checker.run()
    return checker.findings


class _Checker:
    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self.findings = Findings()
        self._sent: dict[str, Sent] = {}
        self._stored: dict[str, Acknowledged] = {}
        for record in records:
            if isinstance(record, Sent):
                self._sent[record.id] = record
            elif isinstance(record, Acknowledged):
                self._stored.setdefault(record.id, record)
        self._acknowledged_numbers: dict[str, set[int]] = {}
        for name in self._stored:
            if name in self._sent and (sent := self._sent[name]).key:
                self._acknowledged_numbers.setdefault(sent.key, set()).add(sent.number)
        self._clocks = _clock_periods(records)
        self._seen: set[str] = set()
        self._popped: set[str] = set()
        self._decisions: dict[str, bool] = {}
        self._newest: dict[str, int] = {}
        self._at: dict[str, str] = {}
        """The message at each place."""
        self._last_stored_ms = self._last_received_ms = 0

    def run(self) -> None:
        for record in self._records:
            match record:
                case Acknowledged():
                    self._take_acknowledged(record)
                case Decided(id=name, commits=commits):
                    if self._decisions.setdefault(name, commits) != commits:
                        self._report("uncommitted", name, "its producer has decided both ways: the test is wrong")
                case Received():
                    self._take_received(record)
                case Popped(id=name):
                    self._popped.add(name)
                case Failed():
                    self.findings.failed += 1
                case Fault():
                    self.findings.faults.append(record)
                case Connections(count=count):
                    self.findings.connections = max(self.findings.connections, count)
        for name in self._stored:
            is_due = name in self._sent and (not self._sent[name].is_half or self._decisions.get(name))
            if is_due and name not in self._seen:
                self._report("lost", name, f"acknowledged at {self._stored[name].at_ms}, and never received")

    def _report(self, kind: ViolationKind, name: str, detail: str) -> None:
        self.findings.violations.append(Violation(kind, name, detail))

    def _take_acknowledged(self, record: Acknowledged) -> None:
        findings = self.findings
        findings.acknowledged[load_of(record.id)] += 1
        if self._last_stored_ms:
            pause_ms = record.at_ms - self._last_stored_ms
            findings.longest_send_pause_ms = max(findings.longest_send_pause_ms, pause_ms)
        self._last_stored_ms = record.at_ms
        self._check_place(record.id, record.place)

    def _take_received(self, record: Received) -> None:
        findings, name = self.findings, record.id
        if self._last_received_ms:
            pause_ms = record.at_ms - self._last_received_ms
            findings.longest_receive_pause_ms = max(findings.longest_receive_pause_ms, pause_ms)
        self._last_received_ms = record.at_ms
        sent = self._sent.get(name)
        if sent is None:
            self._report("phantom", name, f"received at {record.at_ms}, and never sent")
            return
        if not record.is_intact:
            self._report("damaged", name, f"its body at {record.place} is not the one that was sent")
        self._check_place(name, record.place)
        self._check_time(sent, record)
        if sent.is_half and not self._decisions.get(name):
            said = "rolled back" if name in self._decisions else "not decided yet"
            self._report("uncommitted", name, f"received at {record.at_ms}, and {said}")
        if sent.key:
            self._check_order(sent, record)
        if name in self._seen:
            findings.repeats[load_of(name)] += 1
            findings.popped_again += name in self._popped
        else:
            self._seen.add(name)
            findings.received[load_of(name)] += 1

    def _check_place(self, name: str, place: str | None) -> None:
        if place is not None and self._at.setdefault(place, name) != name:
            self._report("place", name, f"it is at {place}, where {self._at[place]} was before")

    def _check_time(self, sent: Sent, record: Received) -> None:
        due_ms = sent.due_ms if sent.delay_ms is None else sent.at_ms + sent.delay_ms
        if due_ms is None:
            return
        offsets = [
            period.offset_ms
            for period in self._clocks
            if period.begin_ms <= record.at_ms and period.end_ms >= sent.at_ms
        ] or [0]
        if sent.delay_ms is not None:
            due_ms += min(offsets)  # the broker has counted the delay from a time of its own clock
        early_ms = due_ms - (record.at_ms + max(offsets))
        if early_ms > 0:
            self._report("early", record.id, f"received {early_ms} ms before its time, at {record.at_ms}")

    def _check_order(self, sent: Sent, record: Received) -> None:
        newest = self._newest.get(sent.key, 0)
        if sent.number <= newest:
            return  # a repeat
        numbers = self._acknowledged_numbers.get(sent.key, set())
        missing = [number for number in range(newest + 1, sent.number) if number in numbers]
        if missing:
            self._report("order", record.id, f"received at {record.at_ms}, before number {missing[0]} of its key")
        self._newest[sent.key] = sent.number


def _clock_periods(records: Iterable[Record]) -> list[ClockPeriod]:
    """Return the offsets of all servers over time. A server whose clock is set later writes an offset of 0 first."""
    periods: list[ClockPeriod] = []
    since: dict[str, ClockSet] = {}
    for record in records:
        if isinstance(record, ClockSet):
            if (before := since.get(record.server)) is not None:
                periods.append(_period(before, record.at_ms))
            since[record.server] = record
    return periods + [_period(each, float("inf")) for each in since.values()]


def _period(begin: ClockSet, end_ms: float) -> ClockPeriod:
    return ClockPeriod(begin.at_ms - _CLOCK_SLACK_MS, end_ms + _CLOCK_SLACK_MS, begin.offset_ms)

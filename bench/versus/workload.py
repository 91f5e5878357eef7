"""A work load, its figures and its goals; and what a run of it gave."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.versus.rounds import Figures, Spread, Work, compare, summarize

RATE = "messages/s"
ROWS = "rows/s"
ENQUEUED = "enqueued, tasks/s"
HANDLED = "handled, tasks/s"
DELIVERIES = "deliveries/s"
BYTES = "MB/s"
CPU = "server CPU, µs/message"
DELIVERY_CPU = "server CPU, µs/delivery"
DISK_READS = "read from the disk, MB"
CLIENT_CPU = "client CPU, µs/message"
P50 = "p50, ms"
P99 = "p99, ms"
START = "start, s"
MEMORY_IDLE = "anonymous memory idle, MB"
MEMORY_LOADED = "anonymous memory after load, MB"
LARGER_IS_BETTER = frozenset({RATE, ROWS, ENQUEUED, HANDLED, DELIVERIES, BYTES})
"""Goals of these figures are lower limits; those of all others, which are costs, are upper limits."""
SPARROW = "Sparrow"


class Scale(NamedTuple):
    """How long a run takes."""

    rounds: int
    warm_ups: int
    seconds: float
    """Of one round of a work load that runs for a time."""
    messages: int
    """Of one round of a work load that runs for a number of messages; those that are slower take a part of it."""
    warm_up_s: float
    """Before the first round: how long a JVM compiles."""

    @property
    def is_smoke(self) -> bool:
        return self == SMOKE


SMOKE = Scale(rounds=1, warm_ups=0, seconds=0.5, messages=5_000, warm_up_s=0)
FULL = Scale(rounds=5, warm_ups=1, seconds=4, messages=400_000, warm_up_s=15)


class Goal(NamedTuple):
    """Ours / theirs: a lower limit of a rate, or an upper limit of a cost."""

    figure: str
    against: str
    ratio: float


class Workload(NamedTuple):
    """The same work at several sides, Sparrow's first."""

    name: str
    sides: Mapping[str, Work]
    goals: Sequence[Goal] = ()
    prepare: Callable[[], object] | None = None
    """What the rounds need, such as a backlog; called only if the work load is wanted."""
    rounds_max: int | None = None
    """Of a work load with long rounds: at most so many rounds, without one to warm up."""


class Comparison(NamedTuple):
    """What all rounds of a work load measured."""

    peer: str
    """The section of the run: the peer that Sparrow is compared with."""
    name: str
    measured: Mapping[str, Sequence[Figures]]
    goals: Sequence[Goal] = ()
    load: float = 0
    """The machine's load average at the end, so that a reader sees whether it had other work."""

    @property
    def figures(self) -> list[str]:
        """The figures that Sparrow has, and those of the others that it has not."""
        return list(dict.fromkeys(name for rounds in self.measured.values() for name in rounds[0]))

    def values(self, side: str, figure: str) -> list[float] | None:
        rounds = self.measured[side]
        return [each[figure] for each in rounds] if figure in rounds[0] else None

    def spread(self, side: str, figure: str) -> Spread | None:
        values = self.values(side, figure)
        return None if values is None else summarize(values)

    def ratio(self, side: str, figure: str) -> Spread | None:
        """Return Sparrow's value / that of the side; None if one was not measured, or theirs is zero."""
        if side == SPARROW or SPARROW not in self.measured:
            return None
        ours, theirs = self.values(SPARROW, figure), self.values(side, figure)
        return None if ours is None or theirs is None or not all(theirs) else compare(ours, theirs)

    def goal(self, side: str, figure: str) -> float | None:
        found = [goal.ratio for goal in self.goals if (goal.figure, goal.against) == (figure, side)]
        return found[0] if found else None


def load_of_machine() -> float:
    return os.getloadavg()[0]

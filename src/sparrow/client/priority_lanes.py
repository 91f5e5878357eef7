"""Messages of one topic that wait in three lanes: high is handed out before middle, and middle before low.

1. In a lane, messages keep the order in which they came.
2. A lower lane whose first message has waited too long is owed a share of what is handed out: of ten messages at least
   two of the middle lane, one of the low one. The first is handed out at once.
3. Shares are kept across batches, so they hold for batches of one as well.

Nothing here reads a clock: time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from sparrow.model.priority import Priority

STARVATION_MS = 30_000
"""How long a lower lane waits before it gets a share of its own, unless a consumer says otherwise."""
STARVED_SHARES_OF_TEN = (0, 2, 1)
"""Of ten: what a lane gets that has waited too long, by priority."""
_TEN = 10

T = TypeVar("T")


def allot(waiting: Sequence[int], reserved: Sequence[int], count_max: int) -> list[int]:
    """How many to take from each lane. Reserved places are given away first, the rest in the order of priority."""
    taken = []
    room = count_max
    for count, places in zip(waiting, reserved, strict=True):
        taken.append(min(count, places, room))
        room -= taken[-1]
    for lane, count in enumerate(waiting):
        more = min(count - taken[lane], room)
        taken[lane] += more
        room -= more
    return taken


class StarvationGuard:
    """Sees to it that no lane starves. With `starvation_ms` 0 it lets them: the order is strict."""

    def __init__(self, starvation_ms: int) -> None:
        self._starvation_ms = starvation_ms
        # In tenths of a message, never above zero: how much sooner than its share a lane got something last time.
        self._credit = [0] * len(STARVED_SHARES_OF_TEN)

    def reserved(self, waited_ms: Sequence[int | None], count_max: int) -> list[int]:
        """Places of the next batch that belong to each lane. `waited_ms` is of its first message, if it has any."""
        return [
            (self._credit[lane] + count_max * share + _TEN - share) // _TEN if self._starves(waited, share) else 0
            for lane, (waited, share) in enumerate(zip(waited_ms, STARVED_SHARES_OF_TEN, strict=True))
        ]

    def took(self, taken: Sequence[int]) -> None:
        count = sum(taken)
        for lane, share in enumerate(STARVED_SHARES_OF_TEN):
            credit = self._credit[lane] + count * share - taken[lane] * _TEN
            self._credit[lane] = max(share - _TEN, min(0, credit))

    def _starves(self, waited_ms: int | None, share: int) -> bool:
        return share > 0 and self._starvation_ms > 0 and waited_ms is not None and waited_ms > self._starvation_ms


class PriorityLanes(Generic[T]):
    """What waits of one topic. `stored_ms` says since when something does."""

    def __init__(self, stored_ms: Callable[[T], int], *, starvation_ms: int) -> None:
        self._stored_ms = stored_ms
        self._guard = StarvationGuard(starvation_ms)
        self._lines: tuple[deque[T], ...] = tuple(deque() for _ in Priority)

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def add(self, lane: Priority, items: Iterable[T]) -> None:
        self._lines[lane].extend(items)

    def take(self, count_max: int, now_ms: int) -> list[T]:
        """Up to so many, the highest priority first."""
        waited_ms = [now_ms - self._stored_ms(line[0]) if line else None for line in self._lines]
        counts = allot([len(line) for line in self._lines], self._guard.reserved(waited_ms, count_max), count_max)
        self._guard.took(counts)
        return [line.popleft() for line, count in zip(self._lines, counts, strict=True) for _ in range(count)]

    def keep(self, is_wanted: Callable[[T], bool]) -> None:
        """Forget the others."""
        self._lines = tuple(deque(filter(is_wanted, line)) for line in self._lines)

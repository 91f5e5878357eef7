"""Priority lanes: messages of one topic that wait by priority; high is delivered before middle, and middle before low.

1. Within a lane, messages keep their order.
2. A lower lane whose first message has waited too long gets a share of the deliveries: of ten messages at least two of
   the middle lane, and one of the low lane. The first is delivered at once.
3. Shares are counted across batches, so they hold for batches of one as well.

The module reads no clock: time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from sparrow.model.priority import Priority

STARVATION_MS = 30_000
"""Default of how long a lower lane waits before it gets a share."""
STARVED_SHARES_OF_TEN = (0, 2, 1)
"""Messages of ten that a starved lane gets, by priority."""
_TEN = 10

T = TypeVar("T")


def allot(waiting: Sequence[int], reserved: Sequence[int], count_max: int) -> list[int]:
    """Return how many messages to take from each lane: reserved ones first, then the rest in order of priority."""
    taken = []
    free = count_max
    for count, share in zip(waiting, reserved, strict=True):
        taken.append(min(count, share, free))
        free -= taken[-1]
    for lane, count in enumerate(waiting):
        more = min(count - taken[lane], free)
        taken[lane] += more
        free -= more
    return taken


class StarvationGuard:
    """Reserves shares for starved lanes. With `starvation_ms` 0 the priority is strict."""

    def __init__(self, starvation_ms: int) -> None:
        self._starvation_ms = starvation_ms
        # In tenths of a message, never above zero: how far a lane is ahead of its share.
        self._credit = [0] * len(STARVED_SHARES_OF_TEN)

    def reserved(self, waited_ms: Sequence[int | None], count_max: int) -> list[int]:
        """Return how many messages of the next batch are reserved for each lane.

        `waited_ms` is the age of its first message.
        """
        return [
            (self._credit[lane] + count_max * share + _TEN - share) // _TEN if self._starves(waited, share) else 0
            for lane, (waited, share) in enumerate(zip(waited_ms, STARVED_SHARES_OF_TEN, strict=True))
        ]

    def took(self, taken: Sequence[int]) -> None:
        """Record how many messages were taken from each lane."""
        count = sum(taken)
        for lane, share in enumerate(STARVED_SHARES_OF_TEN):
            credit = self._credit[lane] + count * share - taken[lane] * _TEN
            self._credit[lane] = max(share - _TEN, min(0, credit))

    def _starves(self, waited_ms: int | None, share: int) -> bool:
        return share > 0 and self._starvation_ms > 0 and waited_ms is not None and waited_ms > self._starvation_ms


class PriorityLanes(Generic[T]):
    """The waiting messages of one topic. `stored_ms` returns the time at which an item began to wait."""

    def __init__(self, stored_ms: Callable[[T], int], *, starvation_ms: int) -> None:
        self._stored_ms = stored_ms
        self._guard = StarvationGuard(starvation_ms)
        self._lines: tuple[deque[T], ...] = tuple(deque() for _ in Priority)

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def add(self, lane: Priority, items: Iterable[T]) -> None:
        """Append items to a lane."""
        self._lines[lane].extend(items)

    def take(self, count_max: int, now_ms: int) -> list[T]:
        """Remove and return up to `count_max` items, the highest priority first."""
        waited_ms = [now_ms - self._stored_ms(line[0]) if line else None for line in self._lines]
        counts = allot([len(line) for line in self._lines], self._guard.reserved(waited_ms, count_max), count_max)
        self._guard.took(counts)
        return [line.popleft() for line, count in zip(self._lines, counts, strict=True) for _ in range(count)]

    def keep(self, is_wanted: Callable[[T], bool]) -> None:
        """Drop the items that are not wanted."""
        self._lines = tuple(deque(filter(is_wanted, line)) for line in self._lines)

"""A limit for the series of a metric: whatever the number of topics and groups, a scrape stays small.

1. The first keys that are seen get series of their own and keep them. Later ones are added up under `OTHER`.
2. A key that was folded stays folded until it is gone; otherwise the sum under `OTHER` would go down.
3. Keys that are gone, such as those of deleted topics, make room.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

OTHER = "__other__"
"""The value of the labels of folded series."""

K = TypeVar("K", bound=Hashable)


class SeriesLimit(Generic[K]):
    """The keys of one kind (topics, or groups on topics) that have series of their own."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._shown: set[K] = set()
        self._folded: set[K] = set()
        self.dropped = 0
        """Keys that were folded since the start."""

    @property
    def folded_count(self) -> int:
        """Keys that are folded now."""
        return len(self._folded)

    def shows(self, key: K) -> bool:
        """Return whether a key has series of its own."""
        if key in self._shown:
            return True
        if key in self._folded:
            return False
        if len(self._shown) < self._keys_max:
            self._shown.add(key)
            return True
        self._folded.add(key)
        self.dropped += 1
        return False

    def keep(self, is_alive: Callable[[K], bool]) -> None:
        """Forget the keys for which this is not true."""
        self._shown = set(filter(is_alive, self._shown))
        self._folded = set(filter(is_alive, self._folded))

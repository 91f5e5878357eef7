"""Leader epochs of a log: which leadership wrote which bytes.

1. Each leadership has one epoch, and writes a record at its start: an epoch always has bytes.
2. Starts rise with epochs. The bytes of an epoch end where the next one starts, or at the end of the log.
3. Two logs that share an epoch have the same bytes in it, as far as both have any.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class EpochStart(NamedTuple):
    """The first byte of an epoch, or the first that the log still has of it."""

    epoch: int
    offset: int


class EpochHistory:
    """The epochs of one log, the oldest first. Epoch 0 stands for "no byte"."""

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self._epochs: list[int] = []
        self._offsets: list[int] = []
        for epoch, offset in starts:
            self.begin(epoch, offset)

    @property
    def starts(self) -> list[EpochStart]:
        """Epochs and the offsets at which they start."""
        return [EpochStart(*pair) for pair in zip(self._epochs, self._offsets, strict=True)]

    @property
    def last(self) -> int:
        """The newest epoch; 0 if there is none."""
        return self._epochs[-1] if self._epochs else 0

    def begin(self, epoch: int, offset: int) -> None:
        """Add an epoch that starts at this offset."""
        assert epoch > self.last
        assert not self._offsets or offset > self._offsets[-1]
        self._epochs.append(epoch)
        self._offsets.append(offset)

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the byte before this offset; 0 if no epoch starts before it."""
        position = bisect_left(self._offsets, offset)
        return self._epochs[position - 1] if position else 0

    def end_of(self, epoch: int, log_end: int) -> int:
        """Return where the bytes of this epoch end."""
        position = bisect_right(self._epochs, epoch)
        return self._offsets[position] if position < len(self._offsets) else log_end

    def largest_up_to(self, epoch: int) -> int:
        """Return the newest epoch of the log that is not above this one; 0 if there is none."""
        position = bisect_right(self._epochs, epoch)
        return self._epochs[position - 1] if position else 0

    def next_start(self, offset: int) -> int | None:
        """Return where the next epoch starts, behind the byte at this offset; None if there is none."""
        position = bisect_right(self._offsets, offset)
        return self._offsets[position] if position < len(self._offsets) else None

    def truncate(self, end: int) -> None:
        """Forget the epochs that start at this offset or behind it."""
        position = bisect_left(self._offsets, end)
        del self._epochs[position:], self._offsets[position:]

    def clear(self) -> None:
        """Forget all epochs: the log is empty."""
        self._epochs.clear()
        self._offsets.clear()

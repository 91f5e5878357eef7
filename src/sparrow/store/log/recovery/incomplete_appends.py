"""Which groups a log that is read again holds whole, and where it has to be cut because one is not."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.store.log.commit_log.log_scan import DamagedRange
from sparrow.store.log.state.updates import AtomicAppendBegin, LedgerUpdate, StateUpdate


class IncompleteAppends:
    """Hears the words of the state queue in the order of the log."""

    def __init__(self, open_at: int | None = None) -> None:
        """`open_at`: where a group begins that goes on where the reading starts."""
        self._open: list[int] = [] if open_at is None else [open_at]
        """Where groups begin whose end has not been seen."""
        self._whole: list[tuple[int, int]] = []
        """Where groups begin and end."""
        self._newest_word = -1 if open_at is None else open_at

    def observe(self, word: StateUpdate, physical_offset: int) -> None:
        self._newest_word = physical_offset
        if isinstance(word, AtomicAppendBegin):
            self._open.append(physical_offset)
        elif isinstance(word, LedgerUpdate) and word.begun >= 0:
            self._open = [begun for begun in self._open if begun != word.begun]
            self._whole.append((word.begun, physical_offset))

    def recovered_end(self, end: int, damage: Sequence[DamagedRange], checkpoint: int) -> int:
        """Where a log that was read up to `end` has to end.

        Behind the checkpoint nothing was known to be safe. A group there that has lost any part of itself, its end or a
        record between, was not acknowledged as safe, nor was anything behind it: it never was. Before the checkpoint
        every group was whole. There, only one that the log breaks off in is cut.
        """
        damage = [part for part in damage if part.end > part.start]  # bytes, not records of which we think little
        voids = [begun for begun in self._open if begun >= checkpoint]
        voids += [
            begun
            for begun, last in self._whole
            if begun >= checkpoint and any(part.start < last and part.end > begun for part in damage)
        ]
        if self._open and self._open[-1] == self._newest_word:
            begun = self._open[-1]
            if not any(part.end > begun for part in damage):
                voids.append(begun)
        return min(voids, default=end)

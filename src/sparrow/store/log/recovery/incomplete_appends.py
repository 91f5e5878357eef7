"""Detection of incomplete atomic appends while the log is replayed: where the log must be truncated."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.store.log.commit_log.log_scan import DamagedRange
from sparrow.store.log.state.updates import AtomicAppendBegin, LedgerUpdate, StateUpdate


class IncompleteAppends:
    """Observes the state updates in the order of the log."""

    def __init__(self, open_at: int | None = None) -> None:
        """`open_at` is the begin of an atomic append that continues where the replay starts."""
        self._open: list[int] = [] if open_at is None else [open_at]
        """Begins of atomic appends whose ends were not seen yet."""
        self._whole: list[tuple[int, int]] = []
        """Begins and ends of complete atomic appends."""
        self._newest_word = -1 if open_at is None else open_at

    def observe(self, update: StateUpdate, physical_offset: int) -> None:
        self._newest_word = physical_offset
        if isinstance(update, AtomicAppendBegin):
            self._open.append(physical_offset)
        elif isinstance(update, LedgerUpdate) and update.begun >= 0:
            self._open = [begun for begun in self._open if begun != update.begun]
            self._whole.append((update.begun, physical_offset))

    def recovered_end(self, end: int, damage: Sequence[DamagedRange], checkpoint: int) -> int:
        """Return where a log that was replayed up to `end` must end.

        After the checkpoint nothing was known to be durable. An atomic append there that lost its end or any record
        was never acknowledged as durable, nor was anything after it, so the log is truncated at its begin. Before the
        checkpoint every atomic append was complete; only one in which the log breaks off is cut there.
        """
        damage = [part for part in damage if part.end > part.start]  # an empty range is a record that was refused
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

"""What a replica knows of its own log: bounds, high watermark and epochs. The disk is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparrow.replication.core.epochs import EpochHistory


@dataclass(slots=True)
class LogPosition:
    """Offsets of a log. `first` <= `high_watermark` <= `end`, and `safe_end` <= `end`."""

    first: int = 0
    end: int = 0
    safe_end: int = 0
    """Bytes before it survive what the flush policy promises to survive."""
    high_watermark: int = 0
    """Bytes before it are committed, as far as this replica knows."""
    epochs: EpochHistory = field(default_factory=EpochHistory)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last byte; 0 if the log is empty."""
        return self.epochs.epoch_before(self.end)

    def commit_to(self, offset: int) -> bool:
        """Raise the high watermark, but not beyond the end; return whether it moved."""
        reached = min(offset, self.end)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def truncate(self, end: int) -> None:
        """Forget the bytes from this offset on."""
        assert self.high_watermark <= end <= self.end
        self.end, self.safe_end = end, min(self.safe_end, end)
        self.epochs.truncate(end)

    def restart_at(self, first: int) -> None:
        """Forget everything; the next byte is that at `first`, and what the leader has deleted is committed."""
        self.first = self.end = self.safe_end = self.high_watermark = first
        self.epochs.clear()

    def delete_before(self, first: int) -> bool:
        """Forget the bytes before this offset, as far as they are committed; return whether there were any."""
        first = min(first, self.high_watermark)
        if first <= self.first:
            return False
        self.first = first
        return True

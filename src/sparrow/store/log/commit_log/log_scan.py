"""The log scan: reads the log record by record and tells sound records from damage.

A record contains its own physical offset. So the next sound record after damage is found by searching for a magic
number that is followed, at the right distance, by the offset at which it was found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparrow.store.log.commit_log.segment import Segment
from sparrow.wire import columns
from sparrow.wire.record import MAGIC_BLANK

_SIZE_AND_MAGIC = Struct(">ii")
_MAGIC_PREFIX = b"\xda\xa3\x20"
"""The common prefix of both magic numbers."""
_CHUNK_BYTES = 32 << 20
"""How much is checked at a time: more than the largest record."""
_SALVAGE_BYTES = 32 << 20
"""How far after damage a sound record is searched for: also more than the largest record."""

_NEVER = 1 << 62

Starts = npt.NDArray[np.int64]


class DamagedRange(NamedTuple):
    """A range of the log without sound records, between two sound records."""

    start: int
    end: int


class SoundRecords(NamedTuple):
    """Sound records of one segment, in order."""

    segment: Segment
    starts: Starts
    """Positions in the segment."""
    end: int
    """The physical offset after the last of them."""


class LogScan:
    """Iterates over sound records from `start` on; then `end` is the end of the log, and `damage` was skipped."""

    def __init__(self, segments: Sequence[Segment], start: int, *, torn_from: int = _NEVER) -> None:
        """From `torn_from` on, zeros mean an interrupted append, not damage: the log ends there."""
        self.end = start
        self._torn_from = torn_from
        self.damage: list[DamagedRange] = []
        self._segments = [segment for segment in segments if segment.end > start]
        self._start = start

    def __iter__(self) -> Iterator[SoundRecords]:
        for segment in self._segments:
            yield from self._records(segment, max(self._start - segment.base, 0))

    def _records(self, segment: Segment, at: int) -> Iterator[SoundRecords]:
        while True:
            starts = columns.find_starts(segment.view, at, at + _CHUNK_BYTES, strict=False)
            is_sound = columns.find_valid(segment.view, starts, base=segment.base)
            count = len(starts) if is_sound.all() else int(np.argmin(is_sound))
            if count:
                self._reached(segment, at)
                last = int(starts[count - 1])
                at = last + int(_SIZE_AND_MAGIC.unpack_from(segment.view, last)[0])
                self.end = segment.base + at
                yield SoundRecords(segment, starts[:count], self.end)
                if count == len(starts):
                    continue
            # No sound record here: the rest of a full segment, damage, or the end of the log.
            if _is_blank(segment, at):
                if self.end == segment.base + at:
                    self.end = segment.end
                return
            following = None if self._is_torn(segment, at) else _resync(segment, at)
            if following is None:
                return
            at = following

    def _is_torn(self, segment: Segment, at: int) -> bool:
        return segment.base + at >= self._torn_from and segment.view[at : at + 8] == bytes(8)

    def _reached(self, segment: Segment, at: int) -> None:
        """Record damage between the last sound record and the one that starts here."""
        if segment.base + at > self.end:
            self.damage.append(DamagedRange(self.end, segment.base + at))


def _is_blank(segment: Segment, at: int) -> bool:
    rest = segment.size - at
    return rest == 0 or (rest >= 8 and _SIZE_AND_MAGIC.unpack_from(segment.view, at) == (rest, MAGIC_BLANK))


def _resync(segment: Segment, after: int) -> int | None:
    """Return where the next sound record starts after the unsound one at `after`; None if there is none near."""
    stop = min(segment.size, after + _SALVAGE_BYTES)
    at = segment.mapping.find(_MAGIC_PREFIX, after + 5, stop)
    while at >= 0:
        if columns.find_valid(segment.view, np.array([at - 4], np.int64), base=segment.base)[0]:
            return at - 4
        at = segment.mapping.find(_MAGIC_PREFIX, at + 1, stop)
    return None

"""Walking the log record by record and telling sound ones from damage.

A record says where it lies: its physical offset is written in it. So after damage the next sound record can be found by
looking for a magic number followed, at the right distance, by the very offset it was found at.
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
"""What both magic numbers start with."""
_CHUNK_BYTES = 32 << 20
"""How much is looked at at a time: more than the largest record."""
_SALVAGE_BYTES = 32 << 20
"""How far behind damage a sound record is looked for: the same."""

_NEVER = 1 << 62

Starts = npt.NDArray[np.int64]


class DamagedRange(NamedTuple):
    """A range of the log that holds no sound record, between two that are."""

    start: int
    end: int


class SoundRecords(NamedTuple):
    """Sound records of one segment, in order."""

    segment: Segment
    starts: Starts
    """Positions in the segment."""
    end: int
    """Physical offset behind the last of them."""


class LogScan:
    """Reads sound records from `start` on. Once done, `end` is where the log ends and `damage` what was passed over."""

    def __init__(self, segments: Sequence[Segment], start: int, *, torn_from: int = _NEVER) -> None:
        """From `torn_from` on, zeros are where an append was interrupted, not damage: nothing behind them counts."""
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
            # What stands here is not a sound record: the rest of a full segment, damage, or the end of the log.
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
        """A sound record starts here: whatever lies between the last one and this is damage."""
        if segment.base + at > self.end:
            self.damage.append(DamagedRange(self.end, segment.base + at))


def _is_blank(segment: Segment, at: int) -> bool:
    rest = segment.size - at
    return rest == 0 or (rest >= 8 and _SIZE_AND_MAGIC.unpack_from(segment.view, at) == (rest, MAGIC_BLANK))


def _resync(segment: Segment, after: int) -> int | None:
    """Where the next sound record starts, not far behind the unsound one at `after`."""
    stop = min(segment.size, after + _SALVAGE_BYTES)
    at = segment.mapping.find(_MAGIC_PREFIX, after + 5, stop)
    while at >= 0:
        if columns.find_valid(segment.view, np.array([at - 4], np.int64), base=segment.base)[0]:
            return at - 4
        at = segment.mapping.find(_MAGIC_PREFIX, at + 1, stop)
    return None

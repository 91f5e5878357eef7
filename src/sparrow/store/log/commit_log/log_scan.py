"""The log scan: reads the log record by record and tells sound records from damage.

A body may contain the bytes of whole records, with the physical offsets at which they lie. So the scan never looks for
records inside a record. After an unsound one it continues only at a place where a record is known to start:

1. behind the unsound record, if the lengths in its header add up to its size: only its content is damaged;
2. at the next sound record that an entry of a consume queue names (`RecordBorder`);
3. at the next state record that is sealed with the store's key;
4. at the start of the next segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.spi import STATE_TOPIC
from sparrow.wire import columns, record
from sparrow.wire.record import MAGIC_BLANK

_STATE_TOPIC = STATE_TOPIC.encode()
_SIZE_AND_MAGIC = Struct(">ii")
_HEAD = Struct(">iiiiiq")
"""Size, magic, checksum, queue id, flag and queue offset."""
_MAGIC_PREFIX = b"\xda\xa3\x20"
"""The common prefix of both magic numbers."""
_CHUNK_BYTES = 32 << 20
"""How much is checked at a time: more than the largest record."""
_SALVAGE_BYTES = 32 << 20
"""How far after damage a sealed state record is searched for."""

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


class RecordBorder(NamedTuple):
    """Where a record starts and how long it is, as an entry of a consume queue says."""

    physical_offset: int
    size: int
    queue: Queue
    queue_offset: int


class StateCheck(Protocol):
    """Tells the store's own state records from others."""

    def is_accepted(self, message: StoredMessage) -> bool:
        """Return whether a state record that was found at its place in the log is the store's own."""

    def is_sealed(self, message: StoredMessage) -> bool:
        """Return whether a state record is genuine, wherever it was found."""


class LogScan:
    """Iterates over sound records from `start` on; then `end` is the end of the log, and `damage` was skipped."""

    def __init__(
        self,
        segments: Sequence[Segment],
        start: int,
        *,
        torn_from: int = _NEVER,
        borders: Callable[[int, int], Iterable[RecordBorder]] = lambda _after, _before: (),
        state_check: StateCheck | None = None,
    ) -> None:
        """From `torn_from` on, zeros mean an interrupted append, not damage: the log ends there.

        `borders` returns the known borders between two physical offsets, ascending.
        """
        self.end = start
        self._torn_from = torn_from
        self._borders, self._state_check = borders, state_check
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
            accepted = self._accepted(segment, starts[:count])
            if accepted:
                self._reached(segment, at)
                last = int(starts[accepted - 1])
                at = last + int(_SIZE_AND_MAGIC.unpack_from(segment.view, last)[0])
                self.end = segment.base + at
                yield SoundRecords(segment, starts[:accepted], self.end)
                if accepted == len(starts):
                    continue
            # No sound record here: the rest of a full segment, damage, or the end of the log.
            if _is_blank(segment, at):
                if self.end == segment.base + at:
                    self.end = segment.end
                return
            following = None
            if not self._is_torn(segment, at):
                following = self.next_known(segment, at, trusts_lengths=accepted == count)
            if following is None:
                return
            at = following

    def _accepted(self, segment: Segment, starts: Starts) -> int:
        """Return how many of the sound records come before the first forged state record."""
        if self._state_check is not None and len(starts):
            is_state = columns.are_of_topic(segment.view, starts, _STATE_TOPIC)
            for row in np.flatnonzero(is_state).tolist():
                if not self._state_check.is_accepted(record.decode(segment.view, int(starts[row]), expand=False)):
                    return int(row)
        return len(starts)

    def _is_torn(self, segment: Segment, at: int) -> bool:
        return segment.base + at >= self._torn_from and segment.view[at : at + 8] == bytes(8)

    def _reached(self, segment: Segment, at: int) -> None:
        """Record damage between the last sound record and the one that starts here."""
        if segment.base + at > self.end:
            self.damage.append(DamagedRange(self.end, segment.base + at))

    def next_known(self, segment: Segment, at: int, *, trusts_lengths: bool) -> int | None:
        """Return where a record is known to start after the unsound one at `at`; None if that is not in this segment.

        `trusts_lengths` is false for a forged state record, whose lengths say nothing.
        """
        if trusts_lengths:
            end = columns.stated_end(segment.view, at)
            if end is not None:
                return end
        for border in self._borders(segment.base + at, segment.end):
            if is_record(segment, border):
                return border.physical_offset - segment.base
        return self._next_sealed(segment, at)

    def _next_sealed(self, segment: Segment, after: int) -> int | None:
        """Return where the next sealed state record starts; None if there is none near."""
        if self._state_check is None:
            return None
        for at in find_candidates(segment, after + 1):
            is_valid = columns.find_valid(segment.view, [at], base=segment.base, topic=_STATE_TOPIC)[0]
            if is_valid and self._state_check.is_sealed(record.decode(segment.view, at, expand=False)):
                return at
        return None


def find_candidates(segment: Segment, start: int) -> Iterator[int]:
    """Yield where bytes look like the start of a record of this place. They may lie in the body of another record."""
    # Not up to the end of the mapping: there `find` reads a byte too far before Python 3.11.5, and may crash.
    end = segment.size - record.RECORD_BYTES_MIN + 4 + len(_MAGIC_PREFIX)
    mapping, view, stop = segment.mapping, segment.view, min(end, start + _SALVAGE_BYTES)
    at = mapping.find(_MAGIC_PREFIX, start + 4, stop)
    while at >= 0:
        place_at = at - 4 + record.PHYSICAL_OFFSET_POSITION
        if int.from_bytes(view[place_at : place_at + 8], "big") == segment.base + at - 4:
            yield at - 4
        at = mapping.find(_MAGIC_PREFIX, at + 1, stop)


def _is_blank(segment: Segment, at: int) -> bool:
    rest = segment.size - at
    return rest == 0 or (rest >= 8 and _SIZE_AND_MAGIC.unpack_from(segment.view, at) == (rest, MAGIC_BLANK))


def is_record(segment: Segment, border: RecordBorder) -> bool:
    """Return whether the log has the sound record that a queue's entry names."""
    at = border.physical_offset - segment.base
    if not columns.find_valid(segment.view, [at], base=segment.base, topic=border.queue.topic.encode())[0]:
        return False
    size, _magic, _crc, queue_id, _flag, queue_offset = _HEAD.unpack_from(segment.view, at)
    return (size, queue_id, queue_offset) == (border.size, border.queue.id, border.queue_offset)

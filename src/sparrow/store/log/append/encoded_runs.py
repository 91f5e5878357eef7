"""Runs of encoded records on their way into the log: looked at before the lock is taken, laid down under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparrow.model.errors import ProtocolError, Refused, TooLarge
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.wire import columns, record

Ints = npt.NDArray[np.int64]


class EncodedRun(NamedTuple):
    """Records for one queue that may be appended as they are: what they are filed under is known."""

    queue: ConsumeQueue
    data: memoryview
    starts: Ints
    entries: npt.NDArray[Any]
    """What the queue is to hold, but for the places."""
    keys: columns.RecordKeys | None
    """None: the key index reads them from the log."""


class RunPiece(NamedTuple):
    """Rows of a run that go into one segment."""

    run: EncodedRun
    first: int
    stop: int


def parse_run(
    queue: ConsumeQueue,
    data: memoryview,
    sizes: npt.ArrayLike,
    *,
    store_host_bytes: int,
    verify_crc: bool,
    keeps_keys: bool = True,
) -> EncodedRun:
    """The run, if `wire.columns.encode` could have laid it out; else `Refused`."""
    row_sizes = np.asarray(sizes, np.int64)
    if len(row_sizes) == 0 or int(row_sizes.sum()) != len(data) or int(row_sizes.min()) < record.RECORD_BYTES_MIN:
        raise Refused("the sizes of the records do not add up to their bytes")
    starts = columns.starts_from_sizes(row_sizes)
    try:
        run = columns.LogRecords(data, starts)
        run.verify(topic=queue.topic_bytes, store_host_bytes=store_host_bytes, verify_crc=verify_crc)
    except ProtocolError as cause:
        raise Refused(f"the run of records is refused: {cause}") from cause
    entries = np.empty(len(starts), columns.QUEUE_ENTRY_DTYPE)
    entries["size"], entries["tags_code"] = row_sizes, run.tags_codes()
    return EncodedRun(queue, data, starts, entries, run.keys() if keeps_keys else None)


def check_body_sizes(run: EncodedRun, bytes_max: int) -> None:
    """`TooLarge` if a message is larger than those that come one by one may be."""
    sizes = run.entries["size"]
    for row in np.flatnonzero(sizes > bytes_max).tolist():  # few, if any: their headers weigh something, too
        start = int(run.starts[row])
        body_bytes = len(record.draft_from_record(run.data[start : start + int(sizes[row])]).body)
        if body_bytes > bytes_max:
            raise TooLarge("the body", body_bytes, bytes_max)


def plan_pieces(runs: Sequence[EncodedRun], room: int, segment_room: int) -> tuple[list[RunPiece], int, int]:
    """How runs are cut to fill segments: `room` is left in the active one, `segment_room` is in a new one.

    The pieces, how many new segments they need, and what room is left in the last.
    """
    if sum(len(run.data) for run in runs) <= room:  # as it is nearly always
        return [RunPiece(run, 0, len(run.starts)) for run in runs], 0, room - sum(len(run.data) for run in runs)
    pieces, segments = [], 0
    for run in runs:
        for piece, taken in _cut(run, room, segment_room):
            if taken > room:
                segments, room = segments + 1, segment_room
            room -= taken
            pieces.append(piece)
    return pieces, segments, room


def _cut(run: EncodedRun, room: int, segment_room: int) -> Iterator[tuple[RunPiece, int]]:
    ends = run.starts + run.entries["size"]
    first, count = 0, len(ends)
    while first < count:
        before = int(run.starts[first])
        stop = int(np.searchsorted(ends, before + room, side="right"))
        if stop == first:
            room = segment_room
            stop = int(np.searchsorted(ends, before + room, side="right"))
        if stop == first:
            raise TooLarge("the message", int(run.entries["size"][first]), segment_room)
        yield RunPiece(run, first, stop), int(ends[stop - 1]) - before
        # What does not fit goes into a new segment.
        first, room = stop, segment_room

"""Runs of encoded records that are about to be appended: parsed before the writer's lock is taken, written under it."""

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
    """Checked records for one queue, with their queue entries and keys."""

    queue: ConsumeQueue
    data: memoryview
    starts: Ints
    entries: npt.NDArray[Any]
    """Entries of the consume queue; physical offsets are filled in when the run is written."""
    keys: columns.RecordKeys | None
    """None: the key index reads them from the log later."""


class RunPiece(NamedTuple):
    """Records of a run that go into one segment."""

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
    """Parse and check records; `Refused` unless `wire.columns.encode` could have laid them out."""
    row_sizes = np.asarray(sizes, np.int64)
    if len(row_sizes) == 0 or int(row_sizes.sum()) != len(data) or int(row_sizes.min()) < record.RECORD_BYTES_MIN:
        raise Refused(f"the sizes of the records do not add up to the {len(data)} bytes sent")
    starts = columns.starts_from_sizes(row_sizes)
    try:
        run = columns.LogRecords.locate(data, starts)
        run.verify(topic=queue.topic_bytes, store_host_bytes=store_host_bytes, verify_crc=verify_crc)
    except ProtocolError as cause:
        raise Refused(f"the run of records is refused: {cause}") from cause
    entries = np.empty(len(starts), columns.QUEUE_ENTRY_DTYPE)
    entries["size"], entries["tags_code"] = row_sizes, run.tags_codes()
    return EncodedRun(queue, data, starts, entries, run.keys() if keeps_keys else None)


def check_body_sizes(run: EncodedRun, bytes_max: int) -> None:
    """Raise `TooLarge` if a body exceeds `bytes_max`, which also limits single messages."""
    sizes = run.entries["size"]
    for row in np.flatnonzero(sizes > bytes_max).tolist():  # candidates only: a size includes the header
        start = int(run.starts[row])
        body_bytes = len(record.draft_from_record(run.data[start : start + int(sizes[row])]).body)
        if body_bytes > bytes_max:
            raise TooLarge("the body", body_bytes, bytes_max)


def plan_pieces(runs: Sequence[EncodedRun], free: int, segment_free: int) -> tuple[list[RunPiece], int, int]:
    """Cut runs into pieces that fill segments; return the pieces, the new segments needed, and the bytes left free.

    `free` is the number of free bytes in the active segment, `segment_free` in a new one.
    """
    if sum(len(run.data) for run in runs) <= free:  # the usual case
        return [RunPiece(run, 0, len(run.starts)) for run in runs], 0, free - sum(len(run.data) for run in runs)
    pieces, segments = [], 0
    for run in runs:
        for piece, taken in _cut(run, free, segment_free):
            if taken > free:
                segments, free = segments + 1, segment_free
            free -= taken
            pieces.append(piece)
    return pieces, segments, free


def _cut(run: EncodedRun, free: int, segment_free: int) -> Iterator[tuple[RunPiece, int]]:
    ends = run.starts + run.entries["size"]
    first, count = 0, len(ends)
    while first < count:
        before = int(run.starts[first])
        stop = int(np.searchsorted(ends, before + free, side="right"))
        if stop == first:
            free = segment_free
            stop = int(np.searchsorted(ends, before + free, side="right"))
        if stop == first:
            raise TooLarge("the message", int(run.entries["size"][first]), segment_free)
        yield RunPiece(run, first, stop), int(ends[stop - 1]) - before
        # The rest goes into a new segment.
        first, free = stop, segment_free

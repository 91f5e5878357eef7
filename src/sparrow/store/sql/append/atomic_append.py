"""Atomic appends: messages for any number of lanes, in one transaction with their entry in the ledger.

1. The row of the scope in the ledger is locked first: of two processes that append the same number, one waits and then
   finds it done.
2. Lanes are then locked in the order of their numbers. Ordinary appends lock one lane each, and all atomic appends use
   the same order, so there are no deadlocks.
3. Records become rows chunk by chunk, in a thread: neither memory nor the event loop has to handle all at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparrow.model.errors import Busy, ProtocolError, Refused, TooLarge
from sparrow.model.message import Draft
from sparrow.store.sql.append.bulk_insert import insert_rows
from sparrow.store.sql.append.insert import take_ids
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.drivers.errors import LockConflict, MissingPartition, StoreDatabaseUnreachable
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.retries import TRIES_MAX, pause
from sparrow.store.sql.row_codec import BODY_BYTES_MAX, NewRow, row_of_draft
from sparrow.store.sql.state.catalog import StoreCatalog
from sparrow.store.sql.statements.state import ledger as statements
from sparrow.store.sql.upserts import insert_if_absent
from sparrow.wire import columns, record
from sparrow.wire.queue_batches import QueueBatch

_CHUNK_ROWS, _CHUNK_BYTES = 2000, 4 << 20
"""Messages that are held as rows at one time."""
_NOT_REACHED = -1
"""In the ledger: the scope has a row, but no number yet."""


class LaneRecords(NamedTuple):
    """Checked records for one lane."""

    lane: Lane
    data: memoryview
    starts: Sequence[int]
    sizes: Sequence[int]


def check_records(
    lane: Lane,
    records: QueueBatch,
    *,
    check: Callable[[Draft], Draft],
    packet_bytes_max: int,
    body_bytes_max: int,
    verify_crc: bool,
) -> LaneRecords:
    """Check that all records may be stored (`Refused`, `TooLarge`). Slow for many: call it in a thread."""
    sizes = np.asarray(records.sizes, np.int64)
    data = memoryview(records.data).cast("B")
    if int(sizes.sum()) != len(data) or (len(sizes) and int(sizes.min()) < record.RECORD_BYTES_MIN):
        raise Refused("the sizes of the records do not add up to their bytes")
    starts = columns.starts_from_sizes(sizes)
    if len(sizes):
        try:
            parsed = columns.LogRecords.locate(data, starts)
            parsed.verify(topic=records.queue.topic.encode(), store_host_bytes=8, verify_crc=verify_crc)
        except ProtocolError as cause:
            raise Refused(f"the records cannot be stored: {cause}") from cause
    for index in np.flatnonzero(sizes > min(packet_bytes_max, body_bytes_max, BODY_BYTES_MAX)).tolist():
        draft = check(record.draft_from_record(data[int(starts[index]) : int(starts[index]) + int(sizes[index])]))
        if int(sizes[index]) > packet_bytes_max or len(draft.body) > BODY_BYTES_MAX:
            raise TooLarge("the message", int(sizes[index]), min(packet_bytes_max, BODY_BYTES_MAX))
    return LaneRecords(lane, data, starts.tolist(), sizes.tolist())


def count_by_lane(records: Sequence[LaneRecords]) -> dict[Lane, int]:
    """Count the records for each lane."""
    counts: dict[Lane, int] = {}
    for part in records:
        counts[part.lane] = counts.get(part.lane, 0) + len(part.sizes)
    return counts


class LaneEnd(NamedTuple):
    """The next id of a lane after an atomic append."""

    lane: Lane
    next_id: int


async def append_atomically(
    database: StoreDatabase, scope: str, number: int, records: Sequence[LaneRecords], *, token: int, now_ms: int
) -> list[LaneEnd] | None:
    """Append in one transaction; return None, with nothing done, if the scope has reached the number already."""
    if not await database.fetch(statements.SELECT_SCOPE, scope=scope):  # a row to lock
        await insert_if_absent(database, "hermes_ledger", scope=scope, reached=_NOT_REACHED, at=now_ms)
    async with database.transaction() as session:
        if not await session.execute(statements.ADVANCE_SCOPE, number=number, now=now_ms, scope=scope):
            return None
        counts = count_by_lane(records)
        next_ids, times = {}, {}
        for lane in sorted(counts, key=lambda each: each.number):
            next_ids[lane], times[lane] = await take_ids(session, lane, counts[lane], now_ms)
        for part in records:
            lane = part.lane
            next_ids[lane] = await _insert(session, database, part, next_ids[lane], times[lane], token)
    return [LaneEnd(lane, next_id) for lane, next_id in next_ids.items()]


async def append_with_retries(
    database: StoreDatabase,
    catalog: StoreCatalog,
    scope: str,
    number: int,
    records: Sequence[LaneRecords],
    *,
    token: int,
    now_ms: Callable[[], int],
    wait_s: float,
) -> tuple[list[LaneEnd] | None, bool]:
    """Append atomically; repeat after lock conflicts, and for `wait_s` while the database is unreachable.

    Return the ends of the lanes as `append_atomically` does, and whether a try whose answer was lost may be committed.
    """
    may_be_done, tries = False, 0
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            ends = await append_atomically(database, scope, number, records, token=token, now_ms=now_ms())
            return ends, may_be_done
        except StoreDatabaseUnreachable:
            may_be_done = True
            if asyncio.get_running_loop().time() > deadline:
                raise
            await pause(0.01, 0.1)
        except (LockConflict, MissingPartition) as cause:
            tries += 1
            if tries > TRIES_MAX:
                raise Busy(f"the atomic append met lock conflicts {tries} times; retry later ({cause})") from cause
            if isinstance(cause, LockConflict):
                await pause(0.01, 0.1)
                continue
            for lane, count in count_by_lane(records).items():
                await catalog.ensure_partitions(lane, count)


async def ledger_position(database: StoreDatabase, scope: str) -> int | None:
    """Return the number that a scope has reached, if any."""
    found = await database.fetch(statements.SELECT_SCOPE, scope=scope)
    return int(found[0][0]) if found and found[0][0] != _NOT_REACHED else None


async def _insert(
    session: SqlSession, database: StoreDatabase, records: LaneRecords, next_id: int, store_ms: int, token: int
) -> int:
    for chunk in _chunks(records):
        rows = await asyncio.to_thread(_rows_of, records, chunk, token)
        await insert_rows(session, database, records.lane, next_id, rows, store_ms)
        next_id += len(rows)
    return next_id


def _chunks(records: LaneRecords) -> Iterator[range]:
    first = size = 0
    for index, record_bytes in enumerate(records.sizes):
        size += record_bytes
        if index > first and (index - first == _CHUNK_ROWS or size > _CHUNK_BYTES):
            yield range(first, index)
            first, size = index, record_bytes
    if first < len(records.sizes):
        yield range(first, len(records.sizes))


def _rows_of(records: LaneRecords, chunk: range, token: int) -> list[NewRow]:
    data, starts, sizes = records.data, records.starts, records.sizes
    return [
        row_of_draft(record.draft_from_record(data[starts[index] : starts[index] + sizes[index]]), token)
        for index in chunk
    ]

"""Groups: messages for any number of lanes, in one transaction with the ledger's word that they are there.

1. The ledger's row is locked first: of two that append the same group, one waits, and finds it done.
2. Lanes are then numbered in the order of their own numbers. Ordinary appends lock one lane each, and two groups lock
   theirs in the same order: nobody waits in a circle.
3. Messages become rows a chunk at a time, in a thread: neither memory nor the event loop has to take all at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparrow.model.errors import ProtocolError, Refused, TooLarge
from sparrow.model.message import Draft
from sparrow.store.spi import QueueRecords
from sparrow.store.sql.append.bulk_insert import insert_rows
from sparrow.store.sql.append.insert import take_ids
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import BODY_BYTES_MAX, NewRow, row_of_draft
from sparrow.store.sql.state.catalog import insert_if_absent
from sparrow.wire import columns, record

_CHUNK_ROWS, _CHUNK_BYTES = 2000, 4 << 20
"""Messages that are rows at one time."""
_NOWHERE = -1
"""How far a scope is that has a row, and nothing more."""


class LaneRecords(NamedTuple):
    """Records for one lane, known to be sound."""

    lane: Lane
    data: memoryview
    starts: Sequence[int]
    sizes: Sequence[int]


def check_records(
    lane: Lane,
    portion: QueueRecords,
    *,
    check: Callable[[Draft], Draft],
    packet_bytes_max: int,
    body_bytes_max: int,
    verify_crc: bool,
) -> LaneRecords:
    """The portion, if all of it may be stored. May take its time."""
    sizes = np.asarray(portion.sizes, np.int64)
    data = memoryview(portion.data).cast("B")
    if int(sizes.sum()) != len(data) or (len(sizes) and int(sizes.min()) < record.RECORD_BYTES_MIN):
        raise Refused("the sizes of the records do not add up to their bytes")
    starts = columns.starts_from_sizes(sizes)
    if len(sizes):
        try:
            run = columns.LogRecords(data, starts)
            run.verify(topic=portion.queue.topic.encode(), store_host_bytes=8, verify_crc=verify_crc)
        except ProtocolError as cause:
            raise Refused(f"the run of records is refused: {cause}") from cause
    for row in np.flatnonzero(sizes > min(packet_bytes_max, body_bytes_max, BODY_BYTES_MAX)).tolist():
        draft = check(record.draft_from_record(data[int(starts[row]) : int(starts[row]) + int(sizes[row])]))
        if int(sizes[row]) > packet_bytes_max or len(draft.body) > BODY_BYTES_MAX:
            raise TooLarge("the message", int(sizes[row]), min(packet_bytes_max, BODY_BYTES_MAX))
    return LaneRecords(lane, data, starts.tolist(), sizes.tolist())


class LaneEnd(NamedTuple):
    """How far a lane reaches with the group."""

    lane: Lane
    next_id: int


async def append_atomically(
    database: StoreDatabase, scope: str, number: int, portions: Sequence[LaneRecords], *, token: int, now_ms: int
) -> list[LaneEnd] | None:
    """Do it all in one transaction; None, and nothing done, if the scope has got there before."""
    if not await database.fetch("SELECT 1 FROM hermes_ledger WHERE scope = :scope", scope=scope):
        await insert_if_absent(database, "hermes_ledger", scope=scope, reached=_NOWHERE, at=now_ms)  # something to lock
    async with database.transaction() as session:
        noted = await session.execute(
            "UPDATE hermes_ledger SET reached = :number, at = :now WHERE scope = :scope AND reached < :number",
            number=number,
            now=now_ms,
            scope=scope,
        )
        if not noted:
            return None
        counts: dict[Lane, int] = {}
        for portion in portions:
            counts[portion.lane] = counts.get(portion.lane, 0) + len(portion.sizes)
        next_ids, times = {}, {}
        for lane in sorted(counts, key=lambda each: each.number):
            next_ids[lane], times[lane] = await take_ids(session, lane, counts[lane], now_ms)
        for portion in portions:
            lane = portion.lane
            next_ids[lane] = await _insert(session, database, portion, next_ids[lane], times[lane], token)
    return [LaneEnd(lane, next_id) for lane, next_id in next_ids.items()]


async def ledger_position(database: StoreDatabase, scope: str) -> int | None:
    """How far a scope has got."""
    found = await database.fetch("SELECT reached FROM hermes_ledger WHERE scope = :scope", scope=scope)
    return int(found[0][0]) if found and found[0][0] != _NOWHERE else None


async def _insert(
    session: SqlSession, database: StoreDatabase, portion: LaneRecords, next_id: int, store_ms: int, token: int
) -> int:
    for rows in _chunks(portion):
        entries = await asyncio.to_thread(_entries, portion, rows, token)
        await insert_rows(session, database, portion.lane, next_id, entries, store_ms)
        next_id += len(entries)
    return next_id


def _chunks(portion: LaneRecords) -> Iterator[range]:
    first = size = 0
    for row, record_bytes in enumerate(portion.sizes):
        size += record_bytes
        if row > first and (row - first == _CHUNK_ROWS or size > _CHUNK_BYTES):
            yield range(first, row)
            first, size = row, record_bytes
    if first < len(portion.sizes):
        yield range(first, len(portion.sizes))


def _entries(portion: LaneRecords, rows: range, token: int) -> list[NewRow]:
    data, starts, sizes = portion.data, portion.starts, portion.sizes
    return [row_of_draft(record.draft_from_record(data[starts[row] : starts[row] + sizes[row]]), token) for row in rows]

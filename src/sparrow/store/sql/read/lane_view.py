"""Reading a lane: its visible bounds, its newest messages from memory, older ones from the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparrow.model.queue import Queue, QueueBounds, QueueOffset
from sparrow.store.spi import AtEnd, Moved, ReadResult, Slice
from sparrow.store.sql.append.batch_ids import AssignedIds
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.read.tail_cache import TaggedRecord, TailCache
from sparrow.store.sql.row_codec import MESSAGE_COLUMNS, RECORD_COLUMNS, NewRow, RowRecordEncoder, tags_code_of
from sparrow.store.sql.statements import messages as statements

_EXAMINED_MIN = 800
"""Messages that a read with a tag filter examines at least: a rare tag would cost many reads otherwise."""
MESSAGES_READ_MAX = 10_000
"""Messages of one read: rows become records on the event loop, one after the other."""


class LaneView:
    """What this process knows of a lane. It may lag behind the database, but never shows what a crash could undo."""

    def __init__(self, lane: Lane, queue: Queue, store_host: bytes) -> None:
        self.lane, self.queue = lane, queue
        self.first_id, self.next_id = 1, 1
        self.is_known = False
        """Whether the bounds were read from the database."""
        self.records = RowRecordEncoder(lane, queue.topic, queue.id, store_host)
        self.tail = TailCache(self.records.encode_all)
        self._mean_bytes = 1
        """The mean size of the records of the last read."""

    @property
    def bounds(self) -> QueueBounds:
        """The bounds as offsets."""
        return QueueBounds(QueueOffset(self.first_id - 1), QueueOffset(self.next_id - 1))

    def advance(self, next_id: int, first_id: int | None = None) -> bool:
        """Show readers the ids up to `next_id`; return whether that is more than before."""
        if first_id is not None:
            self.first_id = max(self.first_id, first_id)
        self.is_known = True
        if next_id <= self.next_id:
            return False
        self.next_id = next_id
        return True

    def forget(self) -> None:
        """Drop everything after a restart of the server, which may have lost commits that it had shown."""
        self.next_id = self.first_id = 1
        self.is_known = False
        self.tail.clear()

    def cache_new(self, ids: AssignedIds, rows: Sequence[NewRow]) -> None:
        """Cache messages that this process has just stored."""
        self.tail.add(ids.base_id - 1, rows, [ids.store_ms] * len(rows))

    def cache_rows(self, rows: Sequence[Any]) -> None:
        """Cache rows that were just read for other readers."""
        if rows:
            rows = _before_hole(rows)
            cached = [NewRow(row[1], row[2], row[3], row[4], row[6]) for row in rows]
            self.tail.add(rows[0][0] - 1, cached, [row[5] for row in rows])

    def read(
        self,
        offset: int,
        *,
        count_max: int = 32,
        bytes_max: int = 256 * 1024,
        tags_codes: frozenset[int] | None = None,
    ) -> ReadResult | None:
        """Read from memory; None if that needs the database."""
        if not self.is_known or offset >= self.next_id:
            return None
        bounds = self.bounds
        if offset == bounds.end:
            return AtEnd(bounds)
        if offset < bounds.first:
            return Moved(bounds.first, bounds)
        if not self.tail.first <= offset < self.tail.end:
            return None
        count_max = min(count_max, MESSAGES_READ_MAX)
        examined = count_max if tags_codes is None else max(count_max, _EXAMINED_MIN)
        examined = min(examined, bounds.end - offset)
        return _slice(self.tail.records(offset, examined), offset, bounds, count_max, bytes_max, tags_codes)

    async def read_rows(
        self,
        database: StoreDatabase,
        offset: int,
        *,
        count_max: int = 32,
        bytes_max: int = 256 * 1024,
        tags_codes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Read from the table; `offset` is inside the bounds."""
        count_max = min(count_max, MESSAGES_READ_MAX)
        examined = count_max if tags_codes is None else max(count_max, _EXAMINED_MIN)
        # Fetch about as many rows as fit into the answer, judged by the size of the last ones.
        fits = max(1, 2 * bytes_max // self._mean_bytes)
        found = await self.rows(database, offset, examined if tags_codes else min(examined, fits), RECORD_COLUMNS)
        bounds = self.bounds
        if not found:  # deleted by retention during the query
            return Moved(bounds.end, bounds) if offset < bounds.end else AtEnd(bounds)
        rows = _before_hole(found)
        matching = rows if tags_codes is None else [row for row in rows if tags_code_of(row[4]) in tags_codes]
        data, sizes = self.records.encode_all(matching[:count_max])
        if sizes:
            self._mean_bytes = max(1, len(data) // len(sizes))
        count = _fitting(sizes, bytes_max) if len(data) > bytes_max else len(sizes)
        next_offset = matching[count][0] - 1 if count < len(matching) else rows[-1][0]
        buffer = memoryview(data)[: sum(sizes[:count])]
        return Slice([buffer] if count else [], sizes[:count], QueueOffset(next_offset), bounds)

    async def rows(self, database: StoreDatabase, offset: int, count: int, columns: str = MESSAGE_COLUMNS) -> list[Any]:
        """Fetch rows from an offset on, as far as readers may see."""
        return await database.fetch(
            statements.select_after(self.lane.table, columns),
            after=offset,
            before=self.next_id,
            count=count,
        )


def _before_hole(rows: Sequence[Any]) -> Sequence[Any]:
    """Return the rows before the first missing id. Ids are dense; where one is lost, the next read starts after it."""
    first = rows[0][0]
    if rows[-1][0] - first == len(rows) - 1:
        return rows
    return [row for at, row in enumerate(rows) if row[0] == first + at]


def _fitting(sizes: Sequence[int], bytes_max: int) -> int:
    """Return how many of the records fit into an answer; the first always does."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > bytes_max:
            return count
    return len(sizes)


def _slice(
    found: list[TaggedRecord],
    offset: int,
    bounds: QueueBounds,
    count_max: int,
    bytes_max: int,
    tags_codes: frozenset[int] | None,
) -> Slice:
    """Select records from the tail."""
    end = offset + len(found)
    matching: Sequence[int] = range(offset, end)
    if tags_codes is not None:
        matching = [at for at, (_, tags) in zip(matching, found, strict=True) if tags in tags_codes]
        found = [found[at - offset] for at in matching[:count_max]]
    sizes = [len(record) for record, _ in found]
    count = _fitting(sizes, bytes_max) if sum(sizes) > bytes_max else len(sizes)
    next_offset = matching[count] if count < len(matching) else end
    return Slice([record for record, _ in found[:count]], sizes[:count], QueueOffset(next_offset), bounds)

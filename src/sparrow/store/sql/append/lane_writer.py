"""Appends to one lane, one transaction at a time.

Transactions of one lane cannot overlap, because each locks the lane's row. So while one runs, sends are gathered, and
the next transaction stores all of them: the more senders, the larger the transactions.

1. A transaction is retried until it is known to be committed or its senders have waited long enough. Where its answer
   can be lost with a connection, it has a batch id of its own, so that it is not repeated if it was committed.
2. A send that succeeded is in the database. A send that failed with `StoreDatabaseUnreachable` may be, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Busy, Closed, Refused, SparrowError, TooLarge
from sparrow.model.errors.base import by_limit
from sparrow.store.sql.append.batch_ids import AssignedIds, BatchId
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import (
    DatabaseRefused,
    DuplicateKey,
    LockConflict,
    MissingPartition,
    StoreDatabaseUnreachable,
)
from sparrow.store.sql.lanes import Lane, split_physical_offset
from sparrow.store.sql.retries import TRIES_MAX, pause
from sparrow.store.sql.row_codec import BODY_BYTES_MAX, NewRow
from sparrow.store.sql.state.catalog import StoreCatalog
from sparrow.store.sql.statements import batches as statements

log = logging.getLogger(__name__)

TRANSACTION_ROWS_MAX, TRANSACTION_BYTES_MAX = 1000, 1 << 20
"""Limits of one transaction."""
_WAITING_ROWS_MAX = 50_000
KEYS_MAX = 50_000
"""Keys of one append beside the first of each message: more would hold the event loop while statements are made."""
_BATCH_IDS_KEPT = 1000
"""The writer deletes its own used batch ids this often: with small batches they would outnumber the messages."""
_ROW_BYTES = 128
"""An upper limit for what a row takes beside body and properties."""
_KEY_BYTES = 64
"""What a key takes beside that, roughly."""


class _Job(NamedTuple):
    """A send that waits for its transaction."""

    rows: Sequence[NewRow]
    sequence: tuple[int, int] | None
    """The id of an idempotent producer, and the number of the send."""
    bytes: int
    deadline: float
    ids: asyncio.Future[AssignedIds]


class LaneWriter:
    """All appends of this process to one lane."""

    def __init__(
        self,
        lane: Lane,
        database: StoreDatabase,
        catalog: StoreCatalog,
        *,
        writer_id: int,
        wait_s: float,
        now_ms: Callable[[], int],
        on_stored: Callable[[Lane, AssignedIds, Sequence[NewRow]], None],
    ) -> None:
        self._lane, self._database, self._catalog = lane, database, catalog
        self._writer_id, self._wait_s, self._now_ms, self._on_stored = writer_id, wait_s, now_ms, on_stored
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[_Job] = deque()
        self._waiting_rows = 0
        self._sequence = 0
        self._work: asyncio.Task[None] | None = None
        self._is_closed = False
        self._failures = LogIntervals()

    def append(self, rows: Sequence[NewRow], sequence: tuple[int, int] | None = None) -> asyncio.Future[AssignedIds]:
        """Append rows; the future has their ids once they are committed."""
        if self._is_closed:
            raise Closed(f"the store {self._database.display_url}")
        size = self._size(rows)
        if self._waiting_rows + len(rows) > _WAITING_ROWS_MAX:
            raise by_limit(
                "database_backlog",
                Busy(f"{self._waiting_rows} messages already wait for the database; send more slowly or retry later"),
            )
        deadline = self._loop.time() + self._wait_s
        job = _Job(rows, sequence, size, deadline, self._loop.create_future())
        self._jobs.append(job)
        self._waiting_rows += len(rows)
        if self._work is None:
            self._work = self._loop.create_task(self._write())
        return job.ids

    def _size(self, rows: Sequence[NewRow]) -> int:
        keys = sum([len(row.extra_keys) for row in rows])
        if keys > KEYS_MAX:
            raise by_limit(
                "batch_keys",
                Refused(f"the messages have {keys} keys, and one request may have {KEYS_MAX}: send fewer at a time"),
            )
        total = sum([len(row.body) + len(row.properties) for row in rows]) + _ROW_BYTES * len(rows) + _KEY_BYTES * keys
        if total > BODY_BYTES_MAX and (largest := max(len(row.body) for row in rows)) > BODY_BYTES_MAX:
            raise TooLarge("the message", largest, BODY_BYTES_MAX)
        if total > self._database.packet_bytes_max:
            raise TooLarge("the message", total, self._database.packet_bytes_max)
        return total

    async def close(self) -> None:
        """Wait until all accepted sends are stored or have failed."""
        self._is_closed = True
        while self._work is not None:
            await asyncio.wait({self._work})

    async def _write(self) -> None:
        try:
            while self._jobs:
                jobs = self._take_jobs()
                try:
                    await self._store(jobs)
                except Exception as failure:  # senders must get an answer whatever it is
                    for job in jobs:
                        if not job.ids.done():
                            job.ids.set_exception(failure)
        finally:
            self._work = None

    def _take_jobs(self) -> list[_Job]:
        taken: list[_Job] = []
        sequences: set[tuple[int, int]] = set()
        row_count = size = 0
        limit = min(TRANSACTION_BYTES_MAX, self._database.packet_bytes_max)
        while self._jobs:
            job = self._jobs[0]
            if taken and (row_count + len(job.rows) > TRANSACTION_ROWS_MAX or size + job.bytes > limit):
                break
            if job.sequence is not None:
                if job.sequence in sequences:  # a repeat of the other: the next transaction finds that stored
                    break
                sequences.add(job.sequence)
            taken.append(self._jobs.popleft())
            row_count += len(job.rows)
            size += job.bytes
        self._waiting_rows -= row_count
        return taken

    async def _store(self, jobs: list[_Job]) -> None:
        while jobs:
            self._sequence += 1
            rows = [row for job in jobs for row in job.rows]
            batch_ids, first = [], 0
            if self._database.may_lose_answers:
                batch_ids.append(BatchId(self._writer_id, self._sequence, 0, len(rows)))
            for job in jobs:
                if job.sequence is not None:
                    batch_ids.append(BatchId(*job.sequence, first, len(job.rows), is_for_all_lanes=True))
                first += len(job.rows)
            ids = await self._append_with_retries(rows, batch_ids, max(job.deadline for job in jobs))
            if ids is None:
                jobs = await self._complete_repeats(jobs)
                continue
            self._on_stored(self._lane, ids, rows)
            next_id = ids.base_id
            for job in jobs:
                if not job.ids.done():
                    job.ids.set_result(ids._replace(base_id=next_id))
                next_id += len(job.rows)
            if self._sequence % _BATCH_IDS_KEPT == 0 and self._database.may_lose_answers:
                await self._delete_used_batch_ids()
            return

    async def _delete_used_batch_ids(self) -> None:
        """Delete this writer's used batch ids; retention keeps those of producers for a day."""
        try:
            await self._database.execute(
                statements.DELETE_USED, lane=self._lane.number, producer=self._writer_id, seq=self._sequence
            )
        except (LockConflict, SparrowError) as cause:  # the next time does it, or retention
            log.info("used batch ids are not deleted: %(error)s; the next time deletes them", {"error": cause})

    async def _append_with_retries(
        self, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], deadline: float
    ) -> AssignedIds | None:
        """Append, with retries; return None if the send of an idempotent producer among them is stored already."""
        conflicts = 0
        while True:
            try:
                ids = await self._append(rows, batch_ids)
                if self._failures.end("append"):
                    log.info("messages are appended to %(table)s again", {"table": self._lane.table})
                return ids
            except DuplicateKey as cause:
                stored = await self._find_stored(batch_ids, deadline) if batch_ids else {}
                if (ours := stored.get((self._writer_id, self._sequence))) is not None:
                    return ours
                if not stored:
                    raise DatabaseRefused(
                        self._database.display_url,
                        f"table {self._lane.table} has rows that Sparrow did not write ({cause});"
                        " list them with `sparrow store check`",
                    ) from cause
                return None
            except (LockConflict, MissingPartition) as cause:
                conflicts += 1
                if conflicts > TRIES_MAX:
                    raise Busy(
                        f"another transaction keeps lane {self._lane.number} ({self._lane.table}) locked"
                    ) from cause
                await pause(0.005, 0.05)
            except StoreDatabaseUnreachable as cause:
                if self._loop.time() > deadline:
                    raise
                if self._failures.is_due("append", type(cause)):
                    log.warning(
                        "the connection to the database is lost: %(error)s; the append to %(table)s is retried",
                        {"error": cause, "table": self._lane.table},
                    )
                await pause(0.05, 0.2)

    async def _append(self, rows: Sequence[NewRow], batch_ids: Sequence[BatchId]) -> AssignedIds:
        try:
            return await self._database.append(self._lane, rows, batch_ids, self._now_ms())
        except MissingPartition:
            await self._catalog.ensure_partitions(self._lane, len(rows))
            return await self._database.append(self._lane, rows, batch_ids, self._now_ms())

    async def _find_stored(self, batch_ids: Sequence[BatchId], deadline: float) -> dict[tuple[int, int], AssignedIds]:
        """Return the ids of those of the batches that are stored, by producer and sequence."""
        select = statements.select_stored((batch.producer, batch.seq) for batch in batch_ids)
        while True:
            try:
                found = await self._database.fetch(select, lane=self._lane.number)
                return {
                    (producer, seq): AssignedIds(base_id, at, lane) if lane else _ids_in_any_lane(base_id, at)
                    for lane, producer, seq, base_id, at in found
                }
            except (LockConflict, StoreDatabaseUnreachable) as cause:
                if self._loop.time() > deadline:
                    raise StoreDatabaseUnreachable(self._database.display_url, str(cause)) from cause
                await pause(0.05, 0.2)

    async def _complete_repeats(self, jobs: list[_Job]) -> list[_Job]:
        """Complete the sends that are stored already with their ids; return the others."""
        batch_ids = [
            BatchId(*job.sequence, 0, len(job.rows), is_for_all_lanes=True) for job in jobs if job.sequence is not None
        ]
        stored = await self._find_stored(batch_ids, max(job.deadline for job in jobs))
        remaining = []
        for job in jobs:
            if job.sequence is not None and (ids := stored.get(job.sequence)) is not None:
                if not job.ids.done():
                    job.ids.set_result(ids)
            else:
                remaining.append(job)
        return remaining


def _ids_in_any_lane(physical_offset: int, store_ms: int) -> AssignedIds:
    lane, base_id = split_physical_offset(physical_offset)
    return AssignedIds(base_id, store_ms, lane)

"""Appends to one lane, one transaction at a time.

Transactions of one lane cannot overlap: its row is locked. So while one is under way, what arrives is gathered, and the
next transaction takes all of it: the more senders, the larger the batches.

1. A transaction is tried until it is known to be done or its senders have waited long enough. It carries a ticket of
   its own, so that one which was done before the connection broke is not done again.
2. A sender that was told "stored" has its message in the database. One that was told "lost" may have it, too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparrow.model.errors import Busy, Closed, SparrowError, TooLarge
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
from sparrow.store.sql.row_codec import BODY_BYTES_MAX, NewRow
from sparrow.store.sql.state.catalog import StoreCatalog

log = logging.getLogger(__name__)

TRANSACTION_ROWS_MAX, TRANSACTION_BYTES_MAX = 1000, 1 << 20
"""Of one transaction."""
_WAITING_ROWS_MAX = 50_000
_CONFLICTS_MAX = 20
_TICKETS_KEPT = 1000
"""A ticket a transaction would soon be more rows than there are messages."""
_ROW_BYTES = 128
"""What a row takes beside body, key and properties: more than enough."""


class _Job(NamedTuple):
    entries: Sequence[NewRow]
    ticket: tuple[int, int] | None
    """Of an idempotent producer: who, and which of its sends."""
    bytes: int
    deadline: float
    placed: asyncio.Future[AssignedIds]


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

    def append(self, entries: Sequence[NewRow], ticket: tuple[int, int] | None = None) -> asyncio.Future[AssignedIds]:
        """Where the entries came to lie, once they do."""
        if self._is_closed:
            raise Closed(f"the store {self._database.display_url}")
        size = self._size(entries)
        if self._waiting_rows + len(entries) > _WAITING_ROWS_MAX:
            raise Busy(f"{self._waiting_rows} messages wait for the database already")
        deadline = self._loop.time() + self._wait_s
        job = _Job(entries, ticket, size, deadline, self._loop.create_future())
        self._jobs.append(job)
        self._waiting_rows += len(entries)
        if self._work is None:
            self._work = self._loop.create_task(self._write())
        return job.placed

    def _size(self, entries: Sequence[NewRow]) -> int:
        total = sum([len(entry.body) + len(entry.properties) for entry in entries]) + _ROW_BYTES * len(entries)
        if total > BODY_BYTES_MAX and (largest := max(len(entry.body) for entry in entries)) > BODY_BYTES_MAX:
            raise TooLarge("the message", largest, BODY_BYTES_MAX)
        if total > self._database.packet_bytes_max:
            raise TooLarge("the message", total, self._database.packet_bytes_max)
        return total

    async def close(self) -> None:
        """Done when everything that was taken is stored, or known to be not."""
        self._is_closed = True
        while self._work is not None:
            await asyncio.wait({self._work})

    async def _write(self) -> None:
        try:
            while self._jobs:
                jobs = self._take()
                try:
                    await self._store(jobs)
                except Exception as failure:  # whatever it is, senders must hear of it
                    for job in jobs:
                        if not job.placed.done():
                            job.placed.set_exception(failure)
        finally:
            self._work = None

    def _take(self) -> list[_Job]:
        taken: list[_Job] = []
        tickets: set[tuple[int, int]] = set()
        rows = size = 0
        limit = min(TRANSACTION_BYTES_MAX, self._database.packet_bytes_max)
        while self._jobs:
            job = self._jobs[0]
            if taken and (rows + len(job.entries) > TRANSACTION_ROWS_MAX or size + job.bytes > limit):
                break
            if job.ticket is not None:
                if job.ticket in tickets:  # the same again: it finds the first in the database, next time
                    break
                tickets.add(job.ticket)
            taken.append(self._jobs.popleft())
            rows += len(job.entries)
            size += job.bytes
        self._waiting_rows -= rows
        return taken

    async def _store(self, jobs: list[_Job]) -> None:
        while jobs:
            self._sequence += 1
            entries = [entry for job in jobs for entry in job.entries]
            tickets, at = [BatchId(self._writer_id, self._sequence, 0, len(entries))], 0
            for job in jobs:
                if job.ticket is not None:
                    tickets.append(BatchId(*job.ticket, at, len(job.entries), is_for_all_lanes=True))
                at += len(job.entries)
            placed = await self._tried(entries, tickets, max(job.deadline for job in jobs))
            if placed is None:
                jobs = await self._without_repeats(jobs)
                continue
            self._on_stored(self._lane, placed, entries)
            at = placed.base_id
            for job in jobs:
                if not job.placed.done():
                    job.placed.set_result(placed._replace(base_id=at))
                at += len(job.entries)
            if self._sequence % _TICKETS_KEPT == 0:
                await self._forget_tickets()
            return

    async def _forget_tickets(self) -> None:
        """Ours are of no use once the next transaction has begun; those of producers are kept for a day."""
        try:
            await self._database.execute(
                "DELETE FROM hermes_batch WHERE lane = :lane AND producer = :producer AND seq < :seq",
                lane=self._lane.number,
                producer=self._writer_id,
                seq=self._sequence,
            )
        except (LockConflict, SparrowError) as cause:  # the next time, or whoever tidies up
            log.info("used tickets are not deleted yet", extra={"cause": str(cause)})

    async def _tried(
        self, entries: Sequence[NewRow], tickets: Sequence[BatchId], deadline: float
    ) -> AssignedIds | None:
        """None: one of the producers' tickets is used up."""
        conflicts = 0
        while True:
            try:
                return await self._append(entries, tickets)
            except DuplicateKey as cause:
                known = await self._known(tickets, deadline)
                if (ours := known.get(tickets[0][:2])) is not None:
                    return ours
                if not known:
                    raise DatabaseRefused(
                        self._database.display_url,
                        f"table {self._lane.table} holds rows that the platform did not write ({cause});"
                        " `sparrow store check` names them",
                    ) from cause
                return None
            except (LockConflict, MissingPartition) as cause:
                conflicts += 1
                if conflicts > _CONFLICTS_MAX:
                    raise Busy(f"the lane of {self._lane.table} is locked by somebody else") from cause
                await asyncio.sleep(random.uniform(0.005, 0.05))
            except StoreDatabaseUnreachable as cause:
                if self._loop.time() > deadline:
                    raise
                log.warning("the database was lost, trying again", extra={"cause": str(cause)})
                await asyncio.sleep(random.uniform(0.05, 0.2))

    async def _append(self, entries: Sequence[NewRow], tickets: Sequence[BatchId]) -> AssignedIds:
        try:
            return await self._database.append(self._lane, entries, tickets, self._now_ms())
        except MissingPartition:
            await self._catalog.ensure_partitions(self._lane, len(entries))
            return await self._database.append(self._lane, entries, tickets, self._now_ms())

    async def _known(self, tickets: Sequence[BatchId], deadline: float) -> dict[tuple[int, int], AssignedIds]:
        """Where what these tickets stand for was stored before."""
        places = " OR ".join(f"(producer = {ticket.producer} AND seq = {ticket.seq})" for ticket in tickets)
        while True:
            try:
                found = await self._database.fetch(
                    "SELECT lane, producer, seq, base_id, at FROM hermes_batch"
                    f" WHERE lane IN (0, :lane) AND ({places})",
                    lane=self._lane.number,
                )
                return {
                    (producer, seq): AssignedIds(base_id, at, lane) if lane else _anywhere(base_id, at)
                    for lane, producer, seq, base_id, at in found
                }
            except (LockConflict, StoreDatabaseUnreachable) as cause:
                if self._loop.time() > deadline:
                    raise StoreDatabaseUnreachable(self._database.display_url, str(cause)) from cause
                await asyncio.sleep(random.uniform(0.05, 0.2))

    async def _without_repeats(self, jobs: list[_Job]) -> list[_Job]:
        """Answer those that were stored before with where that is; the others remain."""
        tickets = [
            BatchId(*job.ticket, 0, len(job.entries), is_for_all_lanes=True) for job in jobs if job.ticket is not None
        ]
        known = await self._known(tickets, max(job.deadline for job in jobs))
        remain = []
        for job in jobs:
            if job.ticket is not None and (placed := known.get(job.ticket)) is not None:
                if not job.placed.done():
                    job.placed.set_result(placed)
            else:
                remain.append(job)
        return remain


def _anywhere(place: int, at: int) -> AssignedIds:
    lane, base_id = split_physical_offset(place)
    return AssignedIds(base_id, at, lane)

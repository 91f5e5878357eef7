"""Committed offsets: how far each group has read each queue.

A queue's offset is the next one to read; the table holds the id of the last message consumed, which is the same number.
A commit takes effect at once in this process and is written together with others a few times a second; commits that a
crash loses are read again. Each row carries an epoch: a process that holds an older lease than the row has seen changes
nothing.

A commit that could not be written at once may have been overtaken by one that another broker received. It then moves
the group forward or does nothing. Only a rewind is applied however late, unless another broker has taken over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Refused, SparrowError, Unavailable
from sparrow.model.priority import Priority
from sparrow.model.queue import Queue, QueueOffset
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused, LockConflict, StoreDatabaseUnreachable
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.state.catalog import StoreCatalog
from sparrow.store.sql.statements import upsert
from sparrow.store.sql.statements.state import offsets as statements

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1
FRESH_COMMIT_S = 5 * FLUSH_INTERVAL_S
"""An older commit may be outdated: the process paused or the database was away, and clients may use another broker."""
FENCED_RETRY_S = 2.0
"""How long a commit is retried whose row has a newer epoch than this process knows."""
_RETRY_S = 1.0

_Key = tuple[str, Queue]
"""A group and a queue."""


class CommitFenced(Refused):
    """Another process has taken over the group since the lease's epoch."""

    def __init__(self, group: str, epoch: int) -> None:
        super().__init__(group, epoch)
        self.group, self.epoch = group, epoch

    def __str__(self) -> str:
        return (
            f"group {self.group!r} was taken over by another broker: epoch {self.epoch} is outdated. "
            "Read the committed offset again before committing."
        )


class _RowKey(NamedTuple):
    """Identifies a row of an offset table."""

    table: str
    group: str
    priority: str


class _Commit(NamedTuple):
    """A commit that is not written yet."""

    offset: QueueOffset
    committed_at: float
    is_rewind: bool
    lane: int
    """The lane's number when it was committed: a topic that is deleted and created again has other lanes."""
    is_contested: bool = False
    """Whether the row has a newer epoch."""

    @property
    def age_s(self) -> float:
        """Seconds since the commit."""
        # Not the loop's clock: uvloop's stands still during an iteration, in which the process may have paused.
        return time.monotonic() - self.committed_at

    @property
    def may_be_outdated(self) -> bool:
        """Whether another broker may have received a newer commit."""
        return self.is_contested or (self.age_s > FRESH_COMMIT_S and not self.is_rewind)


class CommittedOffsets:
    """The committed offsets of all groups."""

    def __init__(
        self, database: StoreDatabase, catalog: StoreCatalog, *, epoch: Callable[[], int], now_ms: Callable[[], int]
    ) -> None:
        self._database, self._catalog, self._epoch, self._now_ms = database, catalog, epoch, now_ms
        self._known: dict[_Key, QueueOffset] = {}
        self._arrivals = count(1)
        self._newest_arrival: dict[_Key, int] = {}
        """The number of the newest commit that has taken effect."""
        self._unsaved: dict[_Key, _Commit] = {}
        self._saving: dict[_Key, _Commit] = {}
        """Being written at this moment."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_lock = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()
        self._failures = LogIntervals()

    def committed_nowait(self, group: str, queue: Queue) -> QueueOffset | None:
        """Return the offset as this process knows it, without a query."""
        return self._known.get((group, queue))

    async def commit(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Commit an offset and return the previous one. It takes effect at once and is saved with the next flush."""
        arrival = next(self._arrivals)
        if self.committed_nowait(group, queue) is None:
            await self.committed(group, queue)
            if self._newest_arrival.get((group, queue), 0) > arrival:  # a later commit has overtaken it in the query
                return self.committed_nowait(group, queue)
        return self._commit(group, queue, offset, arrival)

    def commit_nowait(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Commit an offset and return the previous one as far as this process knows it."""
        return self._commit(group, queue, offset, next(self._arrivals))

    async def commit_if(self, group: str, queue: Queue, offset: int, *, expected: int | None) -> bool:
        """Commit an offset if the committed one is the expected one, and return whether it was. It is saved then."""
        if await self.committed(group, queue) != expected:
            return False
        self.commit_nowait(group, queue, offset)
        if (group, queue) in await self.flush():
            raise Unavailable(f"the offset of group {group!r} could not be saved: the broker is no longer the leader")
        return True

    def _commit(self, group: str, queue: Queue, offset: int, arrival: int) -> QueueOffset | None:
        lane = self._catalog.lane(queue)
        if offset < 0:
            raise Refused(f"{offset} is not an offset: offsets start at 0")
        before = self._known.get((group, queue))
        # An unchanged offset is written, too: another broker may have received another commit meanwhile.
        self._known[group, queue] = QueueOffset(offset)
        self._newest_arrival[group, queue] = arrival
        self._unsaved[group, queue] = _Commit(
            QueueOffset(offset), time.monotonic(), before is not None and offset < before, lane.number
        )
        self._flush_in(FLUSH_INTERVAL_S)
        return before

    def _flush_in(self, seconds: float) -> None:
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(seconds, self._start_flush)

    def _start_flush(self) -> None:
        self._flush_timer = None
        task = asyncio.get_running_loop().create_task(self._flush_or_retry())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush_or_retry(self) -> None:
        try:
            await self.flush()
        except Exception as cause:
            is_bug = not isinstance(cause, (SparrowError, LockConflict))
            if self._failures.is_due("flush", type(cause)):
                log.warning(
                    "%(count)s committed offsets cannot be saved: %(error)s; retrying",
                    {"count": len(self._unsaved), "error": cause},
                    exc_info=cause if is_bug else None,
                )
            self._flush_in(_RETRY_S)
        else:
            if self._failures.end("flush"):
                log.info("committed offsets are saved again")

    async def flush(self) -> list[_Key]:
        """Write everything committed so far to the database; return what could not be, because another broker leads."""
        async with self._flush_lock:
            unsaved, self._unsaved = self._unsaved, {}
            self._saving = unsaved
            epoch = self._epoch()
            rows = {}
            for key, commit in unsaved.items():
                lane = self._catalog.lanes.get(key[1])
                if lane is not None and lane.number == commit.lane:  # else the topic is gone, and its offsets with it
                    rows[_row_key(lane, key[0])] = key, commit
            fenced: list[_Key] = []
            try:
                if rows:
                    async with self._database.transaction() as session:
                        for row in sorted(rows):  # the same order in every process: no deadlocks
                            key, commit = rows[row]
                            if not await self._save(session, row, commit, epoch):
                                fenced.append(key)
            except BaseException as cause:
                self._unsaved = {**unsaved, **self._unsaved}
                if isinstance(cause, DatabaseRefused):  # most likely another broker has deleted the topic
                    await self._catalog.refresh()
                raise
            finally:
                self._saving = {}
            for key in fenced:
                self._retry_fenced(key, unsaved[key], epoch)
            return fenced

    def _retry_fenced(self, key: _Key, commit: _Commit, epoch: int) -> None:
        if key in self._unsaved:  # a newer commit replaces it
            return
        if commit.age_s < FENCED_RETRY_S:  # the leader has changed; this process learns the new epoch within a second
            self._unsaved[key] = commit._replace(is_contested=True)
            self._flush_in(FLUSH_INTERVAL_S)
            return
        log.warning(
            "the commit of offset %(offset)s by group %(group)s is dropped: another broker leads since epoch %(epoch)s",
            {"offset": commit.offset, "group": key[0], "epoch": epoch},
        )
        self._forget_key(key)

    def _forget_key(self, key: _Key) -> None:
        self._known.pop(key, None)
        self._newest_arrival.pop(key, None)

    async def _save(self, session: SqlSession, row: _RowKey, commit: _Commit, epoch: int) -> bool:
        """Write a commit; return False if the row has a newer epoch or overtakes an outdated commit."""
        now_ms = self._now_ms()
        set_offset = statements.set_offset_forward if commit.may_be_outdated else statements.set_offset
        update = set_offset(row.table)
        key = {"group_id": row.group, "priority": row.priority}
        values = {**key, "offset": commit.offset, "epoch": epoch}
        if await session.execute(update, **values, now=now_ms):
            return True
        inserted = {**values, "updated_at": now_ms}
        insert = upsert.insert_if_absent(self._database.dialect, row.table, inserted)
        if await session.execute(insert, **inserted):
            return True
        # The row exists after all: it has a newer epoch, or another broker has just inserted it.
        return await session.execute(update, **values, now=now_ms) > 0

    async def committed(self, group: str, queue: Queue) -> QueueOffset | None:
        """Return the offset in the database, or a commit of this process that is newer."""
        key = group, queue
        if (pending := self._pending(key)) is not None and not pending.may_be_outdated:
            return pending.offset
        lane = self._catalog.lanes.get(queue)
        if lane is None:
            return None
        row, before = _row_key(lane, group), self._known.get(key)
        found = await self._database.fetch(statements.select_offset(row.table), group_id=group, priority=row.priority)
        saved = QueueOffset(found[0][0]) if found else None
        if (pending := self._pending(key)) is not None:  # perhaps committed during the query
            is_newest = saved is None or pending.offset > saved or not pending.may_be_outdated
            return pending.offset if is_newest else saved
        if (known := self._known.get(key)) is not None and known != before:  # committed and saved during the query
            return known
        if saved is not None:
            self._known[key] = saved
        return saved

    def _pending(self, key: _Key) -> _Commit | None:
        return self._unsaved.get(key) or self._saving.get(key)

    async def commit_with_epoch(self, group: str, lane: Lane, offset: int, epoch: int) -> None:
        """Move the group forward, never back, under an epoch; raise `CommitFenced` if the row has a newer one."""
        row = _row_key(lane, group)
        updated = await self._database.execute(
            statements.raise_offset(self._database.dialect, row.table),
            offset=offset,
            epoch=epoch,
            now=self._now_ms(),
            group_id=group,
            priority=row.priority,
        )
        if not updated:
            raise CommitFenced(group, epoch)

    async def all(self) -> dict[tuple[str, str], dict[int, QueueOffset]]:
        """Return all committed offsets: (topic, group) to queue id to the offset to read next."""
        found: dict[tuple[str, str], dict[int, QueueOffset]] = defaultdict(dict)
        pending = {**self._saving, **self._unsaved}  # may be saved after the query of their table
        queues = {
            (table_name("offset", lane.topic, lane.part), lane.priority): Queue(*queue)
            for queue, lane in self._catalog.lanes.items()
        }
        for table in sorted({table for table, _ in queues}):
            for group, offset, word in await self._database.fetch(statements.select_offsets(table)):
                queue = queues.get((table, Priority[word.upper()]))
                if queue is not None:
                    found[queue.topic, group][queue.id] = QueueOffset(offset)
        for (group, queue), commit in {**pending, **self._saving, **self._unsaved}.items():
            found[queue.topic, group][queue.id] = commit.offset
        return dict(found)

    async def forget_group(self, group: str) -> None:
        """Delete all committed offsets of a group, and its offsets in the resend tables."""
        await self.flush()
        for key in [key for key in self._known if key[0] == group]:
            self._forget_key(key)
        tables = {table_name("offset", lane.topic, lane.part) for lane in self._catalog.lanes.values()}
        tables |= {table_name("resend_offset", lane.topic, lane.part) for lane in self._catalog.resend_lanes.values()}
        for table in tables:
            await self._database.execute(statements.delete_group(table), group_id=group)

    def forget_topic(self, topic: str) -> None:
        """Drop what this process knows about a topic that is being deleted."""
        for key in [key for key in self._known if key[1].topic == topic]:
            self._forget_key(key)
            self._unsaved.pop(key, None)

    def forget(self) -> None:
        """Drop what was read from a server that may have lost it; keep commits that are not saved."""
        self._known = {key: commit.offset for key, commit in {**self._saving, **self._unsaved}.items()}
        self._newest_arrival = {key: number for key, number in self._newest_arrival.items() if key in self._known}

    async def close(self) -> None:
        if self._flushes:
            await asyncio.wait(self._flushes)
        try:
            await self.flush()
        except (StoreDatabaseUnreachable, LockConflict) as cause:  # their messages are read again
            log.warning(
                "%(count)s committed offsets are not saved: %(error)s; their messages are delivered again",
                {"count": len(self._unsaved), "error": cause},
            )
        if self._flush_timer is not None:
            self._flush_timer.cancel()


def _row_key(lane: Lane, group: str) -> _RowKey:
    return _RowKey(table_name("offset", lane.topic, lane.part), group, lane.priority.label)

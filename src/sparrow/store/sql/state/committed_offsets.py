"""How far each group has read each queue.

A queue's offset is the next to be read; the table keeps the id of the last message consumed, which is the same number.
Commits count at once here and reach the database together, a few times a second: what a crash loses of them is read
again. The rows carry an epoch: whoever holds an older lease than the row has seen changes nothing.

A commit that could not be saved at once may have been overtaken by one that another broker took: it moves the group on
or does nothing. Only one that was meant to set the group back does so however late, if nobody has taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from sparrow.model.errors import Refused, SparrowError
from sparrow.model.priority import Priority
from sparrow.model.queue import Queue, QueueOffset
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused, LockConflict, StoreDatabaseUnreachable
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.state.catalog import StoreCatalog, insert_if_absent_sql

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1
FRESH_COMMIT_S = 5 * FLUSH_INTERVAL_S
"""After this a commit is old: the process stood still, or the database was away, and clients may be elsewhere."""
FENCED_RETRY_S = 2.0
"""So long a commit is tried again whose row has seen a newer epoch than is known here."""


class CommitFenced(Refused):
    """Somebody else has taken over since."""

    def __init__(self, group: str, epoch: int) -> None:
        super().__init__(group, epoch)
        self.group, self.epoch = group, epoch

    def __str__(self) -> str:
        return f"group {self.group!r} has been taken over: epoch {self.epoch} is no longer the newest; open it again"


class _Place(NamedTuple):
    """A row of an offset table."""

    table: str
    group: str
    priority: str


class _Unsaved(NamedTuple):
    offset: QueueOffset
    said_at: float
    is_rewind: bool
    lane: int
    """Of the topic as it was: one that is made again has others."""
    is_contested: bool = False
    """The row has seen a newer epoch."""

    @property
    def age_s(self) -> float:
        return asyncio.get_running_loop().time() - self.said_at

    @property
    def may_be_overtaken(self) -> bool:
        return self.is_contested or (self.age_s > FRESH_COMMIT_S and not self.is_rewind)


class CommittedOffsets:
    """The committed offsets of all groups."""

    def __init__(
        self, database: StoreDatabase, catalog: StoreCatalog, *, epoch: Callable[[], int], now_ms: Callable[[], int]
    ) -> None:
        self._database, self._catalog, self._epoch, self._now_ms = database, catalog, epoch, now_ms
        self._known: dict[tuple[str, Queue], QueueOffset] = {}
        self._unsaved: dict[tuple[str, Queue], _Unsaved] = {}
        self._saving: dict[tuple[str, Queue], _Unsaved] = {}
        """On their way to the database at this moment."""
        self._flushing: asyncio.TimerHandle | None = None
        self._flush_lock = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()

    def committed_nowait(self, group: str, queue: Queue) -> QueueOffset | None:
        """Return the offset as this process knows it, without a query."""
        return self._known.get((group, queue))

    async def commit(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Commit an offset and return the previous one. It takes effect at once and is saved with the next flush."""
        if self.committed_nowait(group, queue) is None:
            await self.committed(group, queue)
        return self.commit_nowait(group, queue, offset)

    def commit_nowait(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Commit an offset and return the previous one as far as this process knows it."""
        lane = self._catalog.lane(queue)
        if offset < 0:
            raise Refused(f"{offset} is no offset: they start at 0")
        before = self._known.get((group, queue))
        # Also one that is known already: another broker may have been told something else meanwhile.
        self._known[group, queue] = QueueOffset(offset)
        self._unsaved[group, queue] = _Unsaved(
            QueueOffset(offset), asyncio.get_running_loop().time(), before is not None and offset < before, lane.number
        )
        self._flush_in(FLUSH_INTERVAL_S)
        return before

    def _flush_in(self, seconds: float) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(seconds, self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushing = None
        work = asyncio.get_running_loop().create_task(self._flush_or_again())
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    async def _flush_or_again(self) -> None:
        try:
            await self.flush()
        except Exception as cause:
            ours = not isinstance(cause, (SparrowError, LockConflict))
            log.warning(
                "offsets could not be saved, trying again",
                extra={"cause": str(cause)},
                exc_info=cause if ours else None,
            )
            self._flush_in(1)

    async def flush(self) -> None:
        """Everything committed is in the database when this returns."""
        async with self._flush_lock:
            unsaved, self._unsaved = self._unsaved, {}
            self._saving = unsaved
            epoch = self._epoch()
            rows = {}
            for key, commit in unsaved.items():
                lane = self._catalog.lanes.get(key[1])
                if lane is not None and lane.number == commit.lane:  # else its topic is gone, and the offset with it
                    rows[_place(lane, key[0])] = key, commit
            fenced: list[tuple[str, Queue]] = []
            try:
                if rows:
                    async with self._database.transaction() as session:
                        for place in sorted(rows):  # the same order everywhere: no deadlocks
                            key, commit = rows[place]
                            if not await self._save(session, place, commit, epoch):
                                fenced.append(key)
            except BaseException as cause:
                self._unsaved = {**unsaved, **self._unsaved}
                if isinstance(cause, DatabaseRefused):  # a topic that another broker has deleted, most likely
                    await self._catalog.refresh()
                raise
            finally:
                self._saving = {}
            for key in fenced:
                self._fenced(key, unsaved[key], epoch)

    def _fenced(self, key: tuple[str, Queue], commit: _Unsaved, epoch: int) -> None:
        if key in self._unsaved:  # there is a newer one
            return
        if commit.age_s < FENCED_RETRY_S:  # who leads has changed, and we shall hear of it any moment
            self._unsaved[key] = commit._replace(is_contested=True)
            self._flush_in(FLUSH_INTERVAL_S)
            return
        log.warning("a commit came too late", extra={"group": key[0], "offset": commit.offset, "epoch": epoch})
        self._known.pop(key, None)

    async def _save(self, session: SqlSession, place: _Place, commit: _Unsaved, epoch: int) -> bool:
        """Whether the row took it: not if it has seen a newer epoch or, of one that comes late, a greater offset."""
        words = {"group_id": place.group, "priority": place.priority, "offset": commit.offset, "epoch": epoch}
        words["now"] = self._now_ms()
        update = (
            f'UPDATE "{place.table}" SET "offset" = :offset, epoch = :epoch, updated_at = :now'
            " WHERE group_id = :group_id AND priority = :priority AND epoch <= :epoch"
        )
        if commit.may_be_overtaken:
            update += ' AND "offset" <= :offset'
        if await session.execute(update, **words):
            return True
        row = {name: words[name] for name in ("group_id", "priority", "offset", "epoch")} | {"updated_at": words["now"]}
        if await session.execute(insert_if_absent_sql(self._database.dialect, place.table, row), **row):
            return True
        # It is there after all: it has seen a newer epoch, or another broker made it a moment ago.
        return await session.execute(update, **words) > 0

    async def committed(self, group: str, queue: Queue) -> QueueOffset | None:
        """As the database knows it, but for what is on its way there."""
        key = group, queue
        if (unsaved := self._on_its_way(key)) is not None and not unsaved.may_be_overtaken:
            return unsaved.offset
        lane = self._catalog.lanes.get(queue)
        if lane is None:
            return None
        place, before = _place(lane, group), self._known.get(key)
        found = await self._database.fetch(
            f'SELECT "offset" FROM "{place.table}" WHERE group_id = :group_id AND priority = :priority',
            group_id=group,
            priority=place.priority,
        )
        saved = QueueOffset(found[0][0]) if found else None
        if (unsaved := self._on_its_way(key)) is not None:  # perhaps said while we asked
            is_newest = saved is None or unsaved.offset > saved or not unsaved.may_be_overtaken
            return unsaved.offset if is_newest else saved
        if (known := self._known.get(key)) is not None and known != before:  # said and saved while we asked
            return known
        if saved is not None:
            self._known[key] = saved
        return saved

    def _on_its_way(self, key: tuple[str, Queue]) -> _Unsaved | None:
        return self._unsaved.get(key) or self._saving.get(key)

    async def commit_with_epoch(self, group: str, lane: Lane, offset: int, epoch: int) -> None:
        """Move on, never back, and only with the newest epoch: `CommitFenced` otherwise."""
        greatest = "MAX" if self._database.dialect == "sqlite" else "GREATEST"
        place = _place(lane, group)
        changed = await self._database.execute(
            f'UPDATE "{place.table}" SET "offset" = {greatest}("offset", :offset), epoch = :epoch, updated_at = :now'
            " WHERE group_id = :group_id AND priority = :priority AND epoch <= :epoch",
            offset=offset,
            epoch=epoch,
            now=self._now_ms(),
            group_id=group,
            priority=place.priority,
        )
        if not changed:
            raise CommitFenced(group, epoch)

    async def all(self) -> dict[tuple[str, str], dict[int, QueueOffset]]:
        """(topic, group) to queue id to the offset to be read next."""
        found: dict[tuple[str, str], dict[int, QueueOffset]] = defaultdict(dict)
        saving = {**self._saving, **self._unsaved}  # may be saved after its table was read
        by_place = {
            (table_name("offset", lane.topic, lane.part), lane.priority): Queue(*queue)
            for queue, lane in self._catalog.lanes.items()
        }
        for name in sorted({name for name, _ in by_place}):
            for group, offset, word in await self._database.fetch(f'SELECT group_id, "offset", priority FROM "{name}"'):
                queue = by_place.get((name, Priority[word.upper()]))
                if queue is not None:
                    found[queue.topic, group][queue.id] = QueueOffset(offset)
        for (group, queue), unsaved in {**saving, **self._saving, **self._unsaved}.items():
            found[queue.topic, group][queue.id] = unsaved.offset
        return dict(found)

    async def forget_group(self, group: str) -> None:
        """Whatever it has committed, anywhere, and how far it is in what was to be sent to it again."""
        await self.flush()
        for key in [key for key in self._known if key[0] == group]:
            del self._known[key]
        names = {table_name("offset", lane.topic, lane.part) for lane in self._catalog.lanes.values()}
        names |= {table_name("resend_offset", lane.topic, lane.part) for lane in self._catalog.resend_lanes.values()}
        for name in names:
            await self._database.execute(f'DELETE FROM "{name}" WHERE group_id = :group_id', group_id=group)

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self._known if key[1].topic == topic]:
            del self._known[key]
            self._unsaved.pop(key, None)

    def forget(self) -> None:
        """What was read from a server that may have lost it."""
        self._known = {key: unsaved.offset for key, unsaved in {**self._saving, **self._unsaved}.items()}

    async def close(self) -> None:
        if self._work:
            await asyncio.wait(self._work)
        try:
            await self.flush()
        except (StoreDatabaseUnreachable, LockConflict) as cause:  # what they stand for is read again
            log.warning("offsets are lost", extra={"cause": str(cause), "count": len(self._unsaved)})
        if self._flushing is not None:
            self._flushing.cancel()


def _place(lane: Lane, group: str) -> _Place:
    return _Place(table_name("offset", lane.topic, lane.part), group, lane.priority.label)

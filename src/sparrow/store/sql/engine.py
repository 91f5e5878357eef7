"""The SQL store: messages in a database that any number of brokers may share.

Everything that is kept is in the database; a process that goes away leaves nothing behind that another could not go on
with. What a process holds in memory (how far a lane reaches, its newest records, commits on their way) is never
ahead of what is safe.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Unpack

from sparrow import clock
from sparrow.model.errors import Busy, Closed, Refused, SparrowError, TooLarge, UnknownTopic
from sparrow.model.message import LOOPBACK_HOST, Draft, Host
from sparrow.model.queue import PhysicalOffset, Queue, QueueBounds, QueueOffset
from sparrow.settings import SqlSettings
from sparrow.store.ledger_limits import checked_number, checked_scope
from sparrow.store.spi import (
    AppendResult,
    AtEnd,
    BrokerStore,
    EncodedAppender,
    Moved,
    QueueRecords,
    ReadLimits,
    ReadResult,
    StoreFiles,
)
from sparrow.store.sql.append import atomic_append
from sparrow.store.sql.append.batch_ids import AssignedIds
from sparrow.store.sql.append.dedup import producer_sequence_of
from sparrow.store.sql.append.insert import insert_with_ids
from sparrow.store.sql.append.lane_writer import LaneWriter
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase, open_database
from sparrow.store.sql.drivers.errors import DuplicateKey, LockConflict, MissingPartition, StoreDatabaseUnreachable
from sparrow.store.sql.lanes import Lane, split_physical_offset
from sparrow.store.sql.maintenance import retention
from sparrow.store.sql.read import search
from sparrow.store.sql.read.lane_poller import LanePoller
from sparrow.store.sql.read.lane_view import LaneView
from sparrow.store.sql.row_codec import NewRow, row_of_draft
from sparrow.store.sql.schema.table_names import is_internal_topic
from sparrow.store.sql.state.catalog import CatalogHooks, StoreCatalog
from sparrow.store.sql.state.committed_offsets import CommittedOffsets
from sparrow.store.sql.state.leases import Leases
from sparrow.store.sql.state.marks import SqlMarks
from sparrow.store.sql.state.resend_ranges import ResendRanges
from sparrow.store.sql.state.tokens import SqlTokens
from sparrow.wire import record
from sparrow.wire.properties import PROPERTIES_BYTES_MAX

_NOTHING = QueueBounds(QueueOffset(0), QueueOffset(0))
_TRIES_MAX = 20


class _NothingToChange(Exception):
    """Roll back: what was to be done has been done."""


class SqlStore:
    """A database, open."""

    assigns_offsets_at_once = False
    deduplicates_sends = True
    remembers_tokens = True
    records_store_host = False
    all_topics_have_lanes = True
    encoded_appender: EncodedAppender | None = None
    files: StoreFiles | None = None

    def __init__(
        self,
        database: StoreDatabase,
        settings: SqlSettings,
        *,
        owner: str,
        store_host: Host,
        on_growth: Callable[[Queue, QueueOffset], None],
        awaited_queues: Callable[[], Collection[Queue]],
        now_ms: Callable[[], int],
    ) -> None:
        self.database, self.settings = database, settings
        self.catalog = StoreCatalog(
            database,
            partition_rows=settings.partition_rows,
            now_ms=now_ms,
            hooks=CatalogHooks(self._see_lanes, self._before_topic_delete, self._forget_offsets),
        )
        self.catalog.reload = self._refresh
        self.tokens, self.marks = SqlTokens(database), SqlMarks(database)
        self.leases = Leases(database, owner, settings.lease_ms)
        self.resend_ranges = ResendRanges(database, self.catalog, now_ms=now_ms)
        self.epoch = 0
        """With which offsets are committed: of the lease of whoever leads, as far as is known here."""
        self.offsets = CommittedOffsets(database, self.catalog, epoch=lambda: self.epoch, now_ms=now_ms)
        self.on_refresh: Callable[[], None] = lambda: None
        """Told when topics and groups were read again."""
        self.on_restart: Callable[[], None] = lambda: None
        """Told when the server was started anew: positions in memory may point at what is no longer there."""
        self._now_ms, self._on_growth = now_ms, on_growth
        self._store_host = record.pack_host(store_host)
        self._writer_id = secrets.randbits(62)
        self._views: dict[int, LaneView] = {}
        self._writers: dict[int, LaneWriter] = {}
        self._poller = LanePoller(
            database,
            self._views,
            awaited_queues=awaited_queues,
            on_growth=on_growth,
            on_refresh=self._refresh,
            on_restart=self._restarted,
        )
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        settings: SqlSettings | None = None,
        *,
        owner: str | None = None,
        store_host: Host = LOOPBACK_HOST,
        on_growth: Callable[[Queue, QueueOffset], None] = lambda queue, end: None,
        awaited_queues: Callable[[], Collection[Queue]] = tuple,
        now_ms: Callable[[], int] = clock.now_ms,
    ) -> SqlStore:
        """Connect, and make the tables if they are not there.

        `on_growth` is told when readers may see more of a queue. `awaited_queues` says which queues somebody waits for.
        """
        settings = settings or SqlSettings()
        database = await open_database(url, connections_max=settings.connections_max)
        store = cls(
            database,
            settings,
            owner=owner or secrets.token_hex(8),
            store_host=store_host,
            on_growth=on_growth,
            awaited_queues=awaited_queues,
            now_ms=now_ms,
        )
        try:
            await _patiently(store.catalog.prepare)
            await store.tokens.all()
            store._see_lanes()
            await store._poller.poll(list(store._views.values()))
            await store._poller.start()
        except BaseException:
            await database.close()
            raise
        return store

    @property
    def message_bytes_max(self) -> int:
        return self.settings.message_bytes_max

    @property
    def written(self) -> int:
        """Behind the newest message of the newest lane: physical offsets are lanes and ids here."""
        return max((view.lane.physical_offset(view.next_id) for view in self._views.values()), default=0)

    def when_durable(self, end: int) -> asyncio.Future[None] | None:
        """What is placed is committed already."""
        return None

    # -- appending ----------------------------------------------------------------------------------------------------

    def append_nowait(self, queue: Queue, drafts: Sequence[Draft]) -> asyncio.Future[AppendResult]:
        """Append a batch; the future is done when it is in the database."""
        view = self._view(queue)
        entries = [row_of_draft(self.checked(draft), draft.token or self.catalog.anonymous_token) for draft in drafts]
        # What the platform itself moves about (a retry, a dead letter) may be a copy of what was sent once.
        ticket = None if is_internal_topic(queue.topic) else producer_sequence_of(drafts)
        placed = self._writer(view.lane).append(entries, ticket)
        appended: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()

        def done(future: asyncio.Future[AssignedIds]) -> None:
            if appended.done():
                return
            if future.cancelled():
                appended.cancel()
            elif (failure := future.exception()) is not None:
                appended.set_exception(failure)
            else:
                try:
                    appended.set_result(self._appended(future.result(), len(entries), queue.topic))
                except SparrowError as gone:
                    appended.set_exception(gone)

        placed.add_done_callback(done)
        return appended

    async def append_in_transaction(
        self, queue: Queue, entries: Sequence[NewRow], change: Callable[[SqlSession], Awaitable[bool]]
    ) -> AppendResult | None:
        """Append in one transaction with another change; None, and nothing done, if that finds nothing to change."""
        view = self._view(queue)
        tries = 0
        while True:
            try:
                async with self.database.transaction() as session:
                    if not await change(session):
                        raise _NothingToChange
                    placed = await insert_with_ids(session, view.lane, entries, self._now_ms())
            except _NothingToChange:
                return None
            except MissingPartition:
                await self.catalog.ensure_partitions(view.lane, len(entries))
            except LockConflict:
                tries += 1
                if tries > _TRIES_MAX:
                    raise
                await asyncio.sleep(random.uniform(0.005, 0.05))
            else:
                self._stored(view.lane, placed, entries)
                return self._appended(placed, len(entries), queue.topic)

    async def append_atomically(
        self, scope: str, number: int, portions: Sequence[QueueRecords], *, verify_crc: bool = True
    ) -> bool:
        """Until it is done, nobody else appends to its lanes."""
        checked_scope(scope)
        checked_number(number)
        views = {portion.queue: self._view(portion.queue) for portion in portions}
        noted = await self.ledger(scope)
        if noted is not None and noted >= number:
            return False
        of_lanes = [
            await asyncio.to_thread(
                atomic_append.check_records,
                views[portion.queue].lane,
                portion,
                check=self.checked,
                packet_bytes_max=self.database.packet_bytes_max,
                body_bytes_max=self.settings.message_bytes_max,
                verify_crc=verify_crc,
            )
            for portion in portions
        ]
        is_lost, tries = False, 0
        deadline = asyncio.get_running_loop().time() + self.settings.database_wait_ms / 1000
        while True:
            try:
                done = await atomic_append.append_atomically(
                    self.database, scope, number, of_lanes, token=self.catalog.anonymous_token, now_ms=self._now_ms()
                )
                break
            except (LockConflict, MissingPartition, StoreDatabaseUnreachable) as cause:
                tries += 1
                if isinstance(cause, StoreDatabaseUnreachable):
                    is_lost = True  # and perhaps done
                    if asyncio.get_running_loop().time() > deadline:
                        raise
                elif tries > _TRIES_MAX:
                    raise Busy(f"a group cannot be appended: somebody is always in the way ({cause})") from cause
                if isinstance(cause, MissingPartition):
                    await self._make_room(of_lanes)
                else:
                    await asyncio.sleep(random.uniform(0.01, 0.1))
        if done is None:
            if not is_lost or await self.ledger(scope) != number:
                return False
            await self._poller.poll(list(views.values()))  # it was ours, though the answer was lost
            return True
        for lane, next_id in done:
            view = self._views.get(lane.number)
            if view is not None and view.advance(next_id):
                self._on_growth(view.queue, view.bounds.end)
        return True

    async def _make_room(self, portions: Sequence[atomic_append.LaneRecords]) -> None:
        counts: dict[Lane, int] = {}
        for portion in portions:
            counts[portion.lane] = counts.get(portion.lane, 0) + len(portion.sizes)
        for lane, count in counts.items():
            await self.catalog.ensure_partitions(lane, count)

    async def ledger(self, scope: str) -> int | None:
        return await atomic_append.ledger_position(self.database, scope)

    async def retry_until_done(
        self, work: Callable[[], Awaitable[object]], was_done: Callable[[], Awaitable[bool]]
    ) -> None:
        """Do something once, however often the database goes away meanwhile; not for longer than senders wait."""
        deadline = asyncio.get_running_loop().time() + self.settings.database_wait_ms / 1000
        is_tried = False
        while True:
            try:
                if is_tried and await was_done():
                    return
                await work()
                return
            except (LockConflict, StoreDatabaseUnreachable) as cause:
                is_tried |= isinstance(cause, StoreDatabaseUnreachable)
                if asyncio.get_running_loop().time() > deadline:
                    raise cause if isinstance(cause, StoreDatabaseUnreachable) else Busy(str(cause)) from cause
                await asyncio.sleep(random.uniform(0.01, 0.1))

    async def append(self, queue: Queue, drafts: Sequence[Draft]) -> AppendResult:
        if not drafts:
            raise Refused("a batch without messages cannot be appended")
        return await self.append_nowait(queue, drafts)

    def _appended(self, placed: AssignedIds, count: int, topic: str) -> AppendResult:
        if placed.lane not in self.catalog.lanes_by_number:  # deleted while the answer was on its way
            raise UnknownTopic(topic)
        lane, queue = self.catalog.lanes_by_number[placed.lane]
        first = lane.physical_offset(placed.base_id)
        places = [PhysicalOffset(place) for place in range(first, first + count)]
        end = PhysicalOffset(first + count)
        return AppendResult(queue, QueueOffset(placed.base_id - 1), places, end, placed.store_ms)

    def checked(self, draft: Draft) -> Draft:
        """The draft itself, if a message may be like that."""
        if len(draft.body) > self.settings.message_bytes_max:
            raise TooLarge("the body", len(draft.body), self.settings.message_bytes_max)
        if len(draft.properties) > PROPERTIES_BYTES_MAX:
            raise TooLarge("the property string", len(draft.properties), PROPERTIES_BYTES_MAX)
        if not draft.properties.isascii():
            try:
                draft.properties.decode()
            except UnicodeDecodeError as cause:
                raise Refused(f"properties are not UTF-8 at byte {cause.start}") from cause
        return draft

    def _stored(self, lane: Lane, placed: AssignedIds, entries: Sequence[NewRow]) -> None:
        view = self._views.get(lane.number)
        if view is None:  # its topic was deleted meanwhile
            return
        view.cache_new(placed, entries)
        if view.advance(placed.base_id + len(entries)):
            self._on_growth(view.queue, view.bounds.end)

    def _writer(self, lane: Lane) -> LaneWriter:
        found = self._writers.get(lane.number)
        if found is None:
            found = self._writers[lane.number] = LaneWriter(
                lane,
                self.database,
                self.catalog,
                writer_id=self._writer_id,
                wait_s=self.settings.database_wait_ms / 1000,
                now_ms=self._now_ms,
                on_stored=self._stored,
            )
        return found

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_nowait(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult | None:
        """What `read` answers, if that needs no database; else None."""
        lane = self.catalog.lanes.get(queue)
        if lane is None:
            return AtEnd(_NOTHING) if offset == 0 else Moved(QueueOffset(0), _NOTHING)
        return self._view_of(lane, queue).read(offset, **limits)

    async def read(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult:
        found = self.read_nowait(queue, offset, **limits)
        if found is not None and not isinstance(found, AtEnd):
            return found
        view = self._view(queue) if queue in self.catalog.lanes else None
        if view is None:
            assert found is not None, "of an unknown queue there is nothing to ask"
            return found
        if not view.is_known or offset >= view.bounds.end:
            await self._poller.poll([view])
            bounds = view.bounds
            if offset >= bounds.end:
                return AtEnd(bounds) if offset == bounds.end else Moved(bounds.end, bounds)
        if offset < view.bounds.first:
            return Moved(view.bounds.first, view.bounds)
        return await view.read_rows(self.database, offset, **limits)

    def bounds_nowait(self, queue: Queue) -> QueueBounds:
        """As far as is known here: what others append is seen within a second."""
        lane = self.catalog.lanes.get(queue)
        return self._view_of(lane, queue).bounds if lane is not None else _NOTHING

    async def bounds(self, queue: Queue) -> QueueBounds:
        lane = self.catalog.lanes.get(queue)
        if lane is None:
            return _NOTHING
        view = self._view_of(lane, queue)
        await self._poller.poll([view])
        return view.bounds

    async def offset_at(self, queue: Queue, time_ms: int, *, upper: bool = False) -> QueueOffset:
        lane = self.catalog.lanes.get(queue)
        if lane is None:
            return QueueOffset(0)
        return await search.offset_at(self.database, lane, await self.bounds(queue), time_ms, upper=upper)

    async def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[bytes]:
        views = [view for view in self._views.values() if view.queue.topic == topic]
        await self._poller.poll(views)
        return await search.by_key(self.database, views, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    async def record_at(self, physical_offset: int) -> bytes | None:
        number, message_id = split_physical_offset(physical_offset)
        view = self._views.get(number)
        if view is None:
            return None
        if message_id >= view.next_id:
            await self._poller.poll([view])
        if not view.first_id <= message_id < view.next_id:
            return None
        rows = await view.rows(self.database, message_id - 1, 1)
        return view.records.encode_row(rows[0])[0] if rows and rows[0][0] == message_id else None

    # -- retention ----------------------------------------------------------------------------------------------------

    async def trim(self) -> int:
        """Delete what is older than it need be; how many messages went."""
        trimmed = await retention.trim(self.database, self.catalog, self.settings, self._now_ms())
        return trimmed.messages

    # -- what is known here -------------------------------------------------------------------------------------------

    def _view(self, queue: Queue) -> LaneView:
        if self._is_closed:
            raise Closed(f"the store {self.database.display_url}")
        if queue not in self.catalog.lanes and queue.topic in self.catalog.topics:
            count = self.catalog.topics[queue.topic].read_queues
            raise Refused(f"topic {queue.topic!r} has no queue {queue.id}: its queues are 0 to {count - 1}")
        return self._view_of(self.catalog.lane(queue), queue)

    def _view_of(self, lane: Lane, queue: Queue) -> LaneView:
        """Of a lane that is known: it may have become so a moment ago."""
        view = self._views.get(lane.number)
        if view is None:
            view = self._views[lane.number] = LaneView(lane, queue, self._store_host)
        return view

    async def _refresh(self) -> None:
        await self.catalog.refresh()
        self._see_lanes()
        await self.tokens.all()
        self.on_refresh()

    async def _before_topic_delete(self, name: str) -> None:
        for number in [lane.number for queue, lane in self.catalog.lanes.items() if queue[0] == name]:
            if (writer := self._writers.pop(number, None)) is not None:
                await writer.close()
        self.offsets.forget_topic(name)

    async def _forget_offsets(self, group: str) -> None:
        await self.offsets.forget_group(group)

    def _see_lanes(self) -> None:
        lanes = self.catalog.lanes_by_number
        for number in self._views.keys() - lanes.keys():
            del self._views[number]
            self._writers.pop(number, None)
        for number in lanes.keys() - self._views.keys():
            self._view_of(*lanes[number])

    async def _restarted(self) -> None:
        for view in self._views.values():
            view.forget()
        self.offsets.forget()
        await self._poller.poll(list(self._views.values()))
        self.on_restart()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for writer in list(self._writers.values()):
            await writer.close()
        await self._poller.stop()
        await self.offsets.close()
        await self.database.close()

    async def __aenter__(self) -> SqlStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _patiently(work: Callable[[], Awaitable[None]]) -> None:
    """Several processes may make the same tables at the same time."""
    for tries in range(_TRIES_MAX):
        try:
            return await work()
        except (LockConflict, DuplicateKey) as cause:
            if tries == _TRIES_MAX - 1:
                raise Busy(f"the database is being changed by others ({cause})") from cause
            await asyncio.sleep(random.uniform(0.01, 0.1))


_KEEPS_THE_SPI: type[BrokerStore] = SqlStore

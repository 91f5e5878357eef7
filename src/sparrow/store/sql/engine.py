"""`SqlStore`: a store whose messages are rows of a database that any number of brokers may share.

Everything durable is in the database: a process that dies leaves nothing that another could not continue with. What a
process holds in memory (bounds of lanes, their newest records, commits that are not saved) is never ahead of what a
crash of the server would keep.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Unpack, cast

from sparrow import clock
from sparrow.model.errors import Closed, Refused, UnknownTopic
from sparrow.model.message import LOOPBACK_HOST, Draft, Host
from sparrow.model.queue import PhysicalOffset, Queue, QueueBounds, QueueOffset
from sparrow.settings import SqlSettings
from sparrow.store.ledger_limits import checked_number, checked_scope
from sparrow.store.spi import (
    AppendResult,
    AtEnd,
    BatchAppender,
    BrokerStore,
    Moved,
    ReadLimits,
    ReadResult,
    StoreFiles,
)
from sparrow.store.sql.append import atomic_append
from sparrow.store.sql.append.batch_ids import AssignedIds
from sparrow.store.sql.append.dedup import producer_sequence_of
from sparrow.store.sql.append.futures import map_future
from sparrow.store.sql.append.insert import insert_with_change
from sparrow.store.sql.append.lane_writer import LaneWriter
from sparrow.store.sql.append.validation import checked_rows, is_large, validate_draft
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase, open_database
from sparrow.store.sql.lanes import Lane, split_physical_offset
from sparrow.store.sql.maintenance import retention
from sparrow.store.sql.read import search
from sparrow.store.sql.read.lane_poller import LanePoller
from sparrow.store.sql.read.lane_view import LaneView
from sparrow.store.sql.read.lane_views import LaneViews
from sparrow.store.sql.retries import retry_schema_change
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.schema.table_names import is_internal_topic
from sparrow.store.sql.state.catalog import CatalogHooks, StoreCatalog
from sparrow.store.sql.state.committed_offsets import CommittedOffsets
from sparrow.store.sql.state.leases import Leases
from sparrow.store.sql.state.marks import SqlMarks
from sparrow.store.sql.state.resend_ranges import ResendRanges
from sparrow.store.sql.state.token_secrets import TokenSecrets
from sparrow.store.sql.state.tokens import SqlTokens
from sparrow.wire import record
from sparrow.wire.queue_batches import QueueBatch

_EMPTY = QueueBounds(QueueOffset(0), QueueOffset(0))


class SqlStore:
    """An open database."""

    assigns_offsets_at_once = False
    deduplicates_sends = True
    remembers_tokens = True
    records_store_host = False
    all_topics_have_lanes = True
    batch_appender: BatchAppender | None = None
    files: StoreFiles | None = None

    def __init__(
        self,
        database: StoreDatabase,
        settings: SqlSettings,
        *,
        owner: str,
        store_host: Host,
        on_growth: Callable[[Queue, QueueOffset], None],
        is_awaited: Callable[[Queue], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self.database, self.settings = database, settings
        self.catalog = StoreCatalog(
            database,
            partition_rows=settings.partition_rows,
            topic_names=settings.topic_names,
            now_ms=now_ms,
            hooks=CatalogHooks(self._update_views, self._before_topic_delete, self._forget_offsets),
        )
        self.catalog.reload = self._refresh
        keys = settings.token_keys.get_secret_value() if settings.token_keys is not None else ""
        self.tokens = SqlTokens(database, self.catalog, TokenSecrets(keys, database.display_url))
        self.marks = SqlMarks(database)
        self.leases = Leases(database, owner, settings.lease_ms)
        self.resend_ranges = ResendRanges(database, self.catalog, now_ms=now_ms)
        self.epoch = 0
        """The epoch of the leader's lease, as far as this process knows it; offsets are committed under it."""
        self.offsets = CommittedOffsets(database, self.catalog, epoch=lambda: self.epoch, now_ms=now_ms)
        self.on_refresh: Callable[[], None] = lambda: None
        """Called after topics and groups were read again."""
        self.on_restart: Callable[[], None] = lambda: None
        """Called after a restart of the server: positions in memory may point at messages that it has lost."""
        self._now_ms = now_ms
        self._writer_id = secrets.randbits(62)
        self._views = LaneViews(record.pack_host(store_host), on_growth)
        self._writers: dict[int, LaneWriter] = {}
        self._poller = LanePoller(
            database,
            self._views.by_number,
            is_awaited=is_awaited,
            on_growth=on_growth,
            on_refresh=self._refresh,
            on_restart=self._handle_server_restart,
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
        is_awaited: Callable[[Queue], bool] = lambda queue: False,
        admin_tokens: Collection[str] = (),
        now_ms: Callable[[], int] = clock.now_ms,
    ) -> SqlStore:
        """Connect, and create or migrate the tables.

        `on_growth` is called when readers may see more of a queue. `is_awaited` returns whether readers wait for a
        queue; such queues are polled more often. `admin_tokens` are names in the settings that messages may refer to.
        """
        settings = settings or SqlSettings()
        database = await open_database(url, connections_max=settings.connections_max)
        try:
            store = cls(
                database,
                settings,
                owner=owner or secrets.token_hex(8),
                store_host=store_host,
                on_growth=on_growth,
                is_awaited=is_awaited,
                now_ms=now_ms,
            )
            await retry_schema_change(store.catalog.prepare)
            await store.tokens.open(admin_tokens, now_ms())
            store._update_views()
            await store._poller.poll(store._views.all())
            await store._poller.start()
        except BaseException:
            await database.close()
            raise
        return store

    @property
    def message_bytes_max(self) -> int:
        """The largest body that is accepted."""
        return self.settings.message_bytes_max

    @property
    def written(self) -> int:
        """The physical offset after the newest message of the lane with the highest number."""
        return max((view.lane.physical_offset(view.next_id) for view in self._views.all()), default=0)

    def when_durable(self, end: int) -> asyncio.Future[None] | None:
        """Return None: an append completes when it is committed, and so durable."""
        return None

    # -- appending -----------------------------------------------------------------------------------------------------

    async def append(self, queue: Queue, drafts: Sequence[Draft]) -> AppendResult:
        if not drafts:
            raise Refused("a batch must contain at least one message")
        if is_large(drafts):
            return await self._append_rows(queue, drafts, await asyncio.to_thread(self._checked_rows, drafts))
        return await self.append_nowait(queue, drafts)

    def append_nowait(self, queue: Queue, drafts: Sequence[Draft]) -> asyncio.Future[AppendResult]:
        """Append a batch; the future completes when it is committed."""
        return self._append_rows(queue, drafts, self._checked_rows(drafts))

    def _checked_rows(self, drafts: Sequence[Draft]) -> list[NewRow]:
        return checked_rows(drafts, self.catalog.anonymous_token, body_bytes_max=self.settings.message_bytes_max)

    def _append_rows(self, queue: Queue, drafts: Sequence[Draft], rows: list[NewRow]) -> asyncio.Future[AppendResult]:
        view = self._view(queue)
        # A message in a retry or dead-letter topic may be a copy: its producer's sequence number is no repeat.
        sequence = None if is_internal_topic(queue.topic) else producer_sequence_of(drafts)
        assigned = self._writer(view.lane).append(rows, sequence)
        return map_future(assigned, lambda ids: self._append_result(ids, len(rows), queue.topic))

    async def append_in_transaction(
        self, queue: Queue, rows: Sequence[NewRow], change: Callable[[SqlSession], Awaitable[bool]]
    ) -> AppendResult | None:
        """Append in one transaction with another change; if that returns False, do nothing and return None."""
        lane = self._view(queue).lane
        ids = await insert_with_change(self.database, self.catalog, lane, rows, change, now_ms=self._now_ms)
        if ids is None:
            return None
        self._views.cache_stored(lane, ids, rows)
        return self._append_result(ids, len(rows), queue.topic)

    async def append_atomically(
        self, scope: str, number: int, batches: Sequence[QueueBatch], *, verify_crc: bool = True, token: int = 0
    ) -> bool:
        """Append to several queues in one transaction. Other appends to these lanes wait until it is committed."""
        checked_scope(scope)
        checked_number(number)
        views = {records.queue: self._view(records.queue) for records in batches}
        reached = await self.ledger(scope)
        if reached is not None and reached >= number:
            return False
        check = partial(
            atomic_append.check_records,
            check=self.validate,
            packet_bytes_max=self.database.packet_bytes_max,
            body_bytes_max=self.settings.message_bytes_max,
            verify_crc=verify_crc,
        )
        checked = [await asyncio.to_thread(check, views[records.queue].lane, records) for records in batches]
        ends, may_be_done = await atomic_append.append_with_retries(
            self.database,
            self.catalog,
            scope,
            number,
            checked,
            token=token or self.catalog.anonymous_token,
            now_ms=self._now_ms,
            wait_s=self.settings.database_wait_ms / 1000,
        )
        if ends is None:
            if not may_be_done or await self.ledger(scope) != number:
                return False
            await self._poller.poll(list(views.values()))  # this append was committed although its answer was lost
            return True
        for lane, next_id in ends:
            self._views.advance(lane, next_id)
        return True

    async def ledger(self, scope: str) -> int | None:
        return await atomic_append.ledger_position(self.database, scope)

    def validate(self, draft: Draft) -> Draft:
        """Return the draft if the store accepts it (`TooLarge`, `Refused`)."""
        return validate_draft(draft, body_bytes_max=self.settings.message_bytes_max)

    def _append_result(self, ids: AssignedIds, count: int, topic: str) -> AppendResult:
        if ids.lane not in self.catalog.lanes_by_number:  # deleted while the answer was on its way
            raise UnknownTopic(topic)
        lane, queue = self.catalog.lanes_by_number[ids.lane]
        first = lane.physical_offset(ids.base_id)
        end = PhysicalOffset(first + count)
        physical_offsets = cast(Sequence[PhysicalOffset], range(first, end))
        return AppendResult(queue, QueueOffset(ids.base_id - 1), physical_offsets, end, ids.store_ms)

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
                on_stored=self._views.cache_stored,
            )
        return found

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_nowait(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult | None:
        """Return what `read` returns, if that needs no query; None otherwise."""
        lane = self.catalog.lanes.get(queue)
        if lane is None:
            return AtEnd(_EMPTY) if offset == 0 else Moved(QueueOffset(0), _EMPTY)
        return self._views.view(lane, queue).read(offset, **limits)

    async def read(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult:
        found = self.read_nowait(queue, offset, **limits)
        if found is not None and not isinstance(found, AtEnd):
            return found
        view = self._view(queue) if queue in self.catalog.lanes else None
        if view is None:
            assert found is not None, "an unknown queue is answered without a query"
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
        """Return the bounds that this process knows; appends of other brokers appear within a second."""
        lane = self.catalog.lanes.get(queue)
        return self._views.view(lane, queue).bounds if lane is not None else _EMPTY

    async def bounds(self, queue: Queue) -> QueueBounds:
        lane = self.catalog.lanes.get(queue)
        if lane is None:
            return _EMPTY
        view = self._views.view(lane, queue)
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
        views = [view for view in self._views.all() if view.queue.topic == topic]
        await self._poller.poll(views)
        return await search.by_key(self.database, views, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    async def record_at(self, physical_offset: int) -> bytes | None:
        number, message_id = split_physical_offset(physical_offset)
        view = self._views.by_number.get(number)
        if view is None:
            return None
        if message_id >= view.next_id:
            await self._poller.poll([view])
        if not view.first_id <= message_id < view.next_id:
            return None
        rows = await view.rows(self.database, message_id - 1, 1)
        return view.records.encode_row(rows[0]) if rows and rows[0][0] == message_id else None

    # -- retention -----------------------------------------------------------------------------------------------------

    async def trim(self) -> int:
        """Delete expired messages; return how many."""
        trimmed = await retention.trim(self.database, self.catalog, self.settings, self._now_ms())
        return trimmed.messages

    # -- views of lanes ------------------------------------------------------------------------------------------------

    def _view(self, queue: Queue) -> LaneView:
        if self._is_closed:
            raise Closed(f"the store {self.database.display_url}")
        if queue not in self.catalog.lanes and queue.topic in self.catalog.topics:
            count = self.catalog.topics[queue.topic].read_queues
            raise Refused(f"topic {queue.topic!r} has no queue {queue.id}: its queues are 0 to {count - 1}")
        return self._views.view(self.catalog.lane(queue), queue)

    async def _refresh(self) -> None:
        await self.catalog.refresh()
        self._update_views()
        await self.tokens.all()
        self.on_refresh()

    async def _before_topic_delete(self, name: str) -> None:
        for number in [lane.number for queue, lane in self.catalog.lanes.items() if queue[0] == name]:
            if (writer := self._writers.pop(number, None)) is not None:
                await writer.close()
        self.offsets.forget_topic(name)

    async def _forget_offsets(self, group: str) -> None:
        await self.offsets.forget_group(group)

    def _update_views(self) -> None:
        lanes = self.catalog.lanes_by_number
        for number in self._writers.keys() - lanes.keys():
            del self._writers[number]
        self._views.replace_lanes(lanes)

    async def _handle_server_restart(self) -> None:
        self._views.forget()
        self.offsets.forget()
        await self._poller.poll(self._views.all())
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


_IMPLEMENTS_SPI: type[BrokerStore] = SqlStore

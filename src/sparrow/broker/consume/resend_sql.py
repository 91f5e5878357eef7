"""Resending on a database: ranges in the resend tables become references in the retry topics of groups.

1. A request only records rows: which messages, and for which group.
2. The leader reads the rows for each group. The references of a row and the group's progress over it are one
   transaction: no row is sent twice, and none is skipped.
3. A group that is online gets only messages that match its subscription.
"""

from __future__ import annotations

import asyncio
import logging

from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.clients.subscriptions import SubscriptionFilter
from sparrow.broker.consume.references import make_reference
from sparrow.broker.pop import receipt_handles
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.model.message import Draft
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.store.spi import Moved, Slice
from sparrow.store.sql.drivers.database import SqlSession
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import row_of_draft
from sparrow.store.sql.state.resend_ranges import ResendRange
from sparrow.wire import record
from sparrow.wire.hashes import tags_code_in

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.2
_RETRY_S = 1.0
_READ_BYTES_MAX = 4 << 20


class SqlResender:
    """Records ranges to resend; delivers them to groups while this broker leads."""

    def __init__(self, store: SqlStore, topics: TopicCatalog, clients: ClientRegistry) -> None:
        self._store, self._topics, self._clients = store, topics, clients
        self._delivered_ends: dict[int, int] = {}
        """The end of each resend lane when it was last delivered to all groups."""
        self._failures = LogIntervals()

    async def request(
        self, queue: Queue, begin: int, end: int, *, group: str | None, readers: list[str], token: int
    ) -> None:
        """Record that a group, or all readers, shall get the messages from `begin` to before `end` again."""
        lane = self._store.catalog.lane(queue)
        for reader in readers:
            await self._store.resend_ranges.register_group(reader, lane)
        await self._store.resend_ranges.request(lane, group, begin + 1, end, token=token or None)

    async def run_as_leader(self) -> None:
        """Deliver requested ranges until cancelled."""
        while True:
            try:
                await self.deliver()
                if self._failures.end("resend"):
                    log.info("messages are resent again")
                await asyncio.sleep(POLL_INTERVAL_S)
            except (SparrowError, LockConflict) as error:
                if self._failures.is_due("resend", type(error)):
                    log.warning("messages cannot be resent: %(error)s; retrying", {"error": error})
                await asyncio.sleep(_RETRY_S)

    async def deliver(self) -> None:
        """Deliver the new ranges of each resend lane to each of its groups."""
        ends = await self._store.resend_ranges.lane_ends()
        catalog = self._store.catalog
        for (topic, queue_id), resend_lane in list(catalog.resend_lanes.items()):
            end = ends.get(resend_lane.number, 1)
            lane = catalog.lanes.get((topic, queue_id))
            if lane is None or end <= self._delivered_ends.get(resend_lane.number, 1):
                continue
            for group in await self._store.resend_ranges.groups(lane):
                while await self._deliver_to_group(group, lane, Queue(topic, queue_id)):
                    pass
            self._delivered_ends[resend_lane.number] = end

    async def _deliver_to_group(self, group: str, lane: Lane, queue: Queue) -> bool:
        """Deliver the next ranges to a group; return whether there may be more."""
        before = await self._store.resend_ranges.offset(group, lane)
        ranges, examined_to = await self._store.resend_ranges.next_ranges(group, lane)
        filter_ = self._clients.subscription_filter(group, queue.topic)
        for each in ranges:
            await self._deliver_range(group, lane, queue, each, filter_)
        if before is None or examined_to <= before:
            return False
        if not ranges or examined_to > ranges[-1].id:  # the last rows are for other groups
            async with self._store.database.transaction() as session:
                await self._store.resend_ranges.mark_done(session, group, lane, examined_to)
        return True

    async def _deliver_range(
        self, group: str, lane: Lane, queue: Queue, each: ResendRange, filter_: SubscriptionFilter | None
    ) -> None:
        async def mark_done(session: SqlSession) -> bool:
            return await self._store.resend_ranges.mark_done(session, group, lane, each.id)

        drafts = await self._references(queue, each, filter_)
        if not drafts:
            async with self._store.database.transaction() as session:
                await mark_done(session)
            return
        topic = await self._topics.create_for_group(
            RETRY_TOPIC_PREFIX, await self._retry_group(group, queue.topic, filter_)
        )
        rows = [row_of_draft(draft, draft.token or self._store.catalog.anonymous_token) for draft in drafts]
        await self._store.append_in_transaction(Queue(topic.name, 0), rows, mark_done)

    async def _retry_group(self, group: str, topic: str, filter_: SubscriptionFilter | None) -> str:
        """Return the name in the retry topic that the group reads: a group that pops has one for each topic."""
        pops = filter_ is None and await self._store.marks.get(receipt_handles.pop_begun_mark(group, topic)) is not None
        return receipt_handles.pop_retry_topic(group, topic).removeprefix(RETRY_TOPIC_PREFIX) if pops else group

    async def _references(self, queue: Queue, each: ResendRange, filter_: SubscriptionFilter | None) -> list[Draft]:
        """Return references to the messages of a range that still exist and match the group's subscription."""
        found: list[Draft] = []
        offset, end = each.start - 1, each.end
        while offset < end:
            read = await self._store.read(queue, offset, count_max=end - offset, bytes_max=_READ_BYTES_MAX)
            if isinstance(read, Moved) and read.to > offset:
                offset = read.to
                continue
            if not isinstance(read, Slice):
                break
            records = list(read.records())
            senders = await self._store.tokens.senders([record.physical_offset_of(raw) for raw in records])
            for raw in records:
                properties = record.properties_of(raw)
                if filter_ is None or filter_.matches(tags_code_in(properties), properties):
                    draft = make_reference(raw, queue.topic, properties)
                    draft.token = senders.get(record.physical_offset_of(raw), 0)
                    found.append(draft)
            offset = read.next_offset
        return found

"""Resend on a database: ranges in the resend tables become references in the retry topics of groups.

1. A request is recorded and nothing else: rows say which messages, and for whom.
2. Whoever leads walks the rows for each group. The references of a row and the group's progress over it are one
   transaction: a row is never sent twice, and none is passed over.
3. A group that is online gets only what it subscribes to.
"""

from __future__ import annotations

import asyncio
import logging

from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.clients.subscriptions import SubscriptionFilter
from sparrow.broker.consume.references import make_reference
from sparrow.broker.pop import receipt_handles
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
_TROUBLE_S = 1.0
_BYTES_A_READ = 4 << 20


class SqlResender:
    """Records ranges; feeds them to groups while this broker leads."""

    def __init__(self, store: SqlStore, topics: TopicCatalog, clients: ClientRegistry) -> None:
        self._store, self._topics, self._clients = store, topics, clients
        self._fed: dict[int, int] = {}
        """How far each resend lane has been walked for every group."""

    async def ask(self, queue: Queue, begin: int, end: int, *, group: str | None, readers: list[str]) -> None:
        """Record that messages from offset `begin` to before `end` are wanted again: by a group, or by all readers."""
        lane = self._store.catalog.lane(queue)
        for reader in readers:
            await self._store.resend_ranges.register_group(reader, lane)
        await self._store.resend_ranges.request(lane, group, begin + 1, end)

    async def run_as_leader(self) -> None:
        """Feed what has been asked for, until cancelled."""
        while True:
            try:
                await self.feed()
                await asyncio.sleep(POLL_INTERVAL_S)
            except (SparrowError, LockConflict) as error:
                log.warning("messages not resent", extra={"why": str(error)})
                await asyncio.sleep(_TROUBLE_S)

    async def feed(self) -> None:
        """Walk every resend lane that has grown, for each of its groups."""
        ends = await self._store.resend_ranges.lane_ends()
        catalog = self._store.catalog
        for (topic, queue_id), resend_lane in list(catalog.resend_lanes.items()):
            end = ends.get(resend_lane.number, 1)
            lane = catalog.lanes.get((topic, queue_id))
            if lane is None or end <= self._fed.get(resend_lane.number, 1):
                continue
            for group in await self._store.resend_ranges.groups(lane):
                while await self._feed_group(group, lane, Queue(topic, queue_id)):
                    pass
            self._fed[resend_lane.number] = end

    async def _feed_group(self, group: str, lane: Lane, queue: Queue) -> bool:
        """Whether there may be more."""
        before = await self._store.resend_ranges.offset(group, lane)
        ranges, examined_to = await self._store.resend_ranges.next_ranges(group, lane)
        wanted = self._clients.subscription_filter(group, queue.topic)
        for each in ranges:
            await self._feed_range(group, lane, queue, each, wanted)
        if before is None or examined_to <= before:
            return False
        if not ranges or examined_to > ranges[-1].id:  # what came last was for others
            async with self._store.database.transaction() as session:
                await self._store.resend_ranges.mark_done(session, group, lane, examined_to)
        return True

    async def _feed_range(
        self, group: str, lane: Lane, queue: Queue, each: ResendRange, wanted: SubscriptionFilter | None
    ) -> None:
        async def done(session: SqlSession) -> bool:
            return await self._store.resend_ranges.mark_done(session, group, lane, each.id)

        drafts = await self._references(queue, each, wanted)
        if not drafts:
            async with self._store.database.transaction() as session:
                await done(session)
            return
        topic = await self._topics.create_for_group(RETRY_TOPIC_PREFIX, await self._reads(group, queue.topic, wanted))
        entries = [row_of_draft(draft, self._store.catalog.anonymous_token) for draft in drafts]
        await self._store.append_in_transaction(Queue(topic.name, 0), entries, done)

    async def _reads(self, group: str, topic: str, wanted: SubscriptionFilter | None) -> str:
        """Of which retry topic a group's retries are read: who pops has one for each topic."""
        pops = wanted is None and await self._store.marks.get(receipt_handles.pop_begun_mark(group, topic)) is not None
        return receipt_handles.pop_retry_topic(group, topic).removeprefix(RETRY_TOPIC_PREFIX) if pops else group

    async def _references(self, queue: Queue, each: ResendRange, wanted: SubscriptionFilter | None) -> list[Draft]:
        """For those that retention has left, and the group wants."""
        found: list[Draft] = []
        offset, end = each.start - 1, each.end
        while offset < end:
            read = await self._store.read(queue, offset, count_max=end - offset, bytes_max=_BYTES_A_READ)
            if isinstance(read, Moved) and read.to > offset:
                offset = read.to
                continue
            if not isinstance(read, Slice):
                break
            for raw in read.records():
                properties = record.properties_of(raw)
                if wanted is None or wanted.matches(tags_code_in(properties), properties):
                    found.append(make_reference(raw, queue.topic, properties))
            offset = read.next_offset
        return found

"""Messages for later, on a database: rows in `hermes_delay` until they are due.

1. A message waits from the moment its sender was told so, whichever broker took it.
2. Delivering appends the message and deletes its row in one transaction: it is delivered once, even if two brokers
   should take themselves for the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from sparrow.broker.delay.delay_topics import DELAY_QUEUES, TIMER_QUEUE_INDEX, is_due
from sparrow.broker.produce.dedup_sql import claim_send, deferred_send_key
from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.errors import IllegalMessage, SparrowError
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_CANCEL_KEY,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLLED_FROM,
    PROPERTY_UNIQUE_KEY,
    RETRY_TOPIC_PREFIX,
)
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset
from sparrow.store.spi import AppendResult
from sparrow.store.sql.drivers.database import SqlSession
from sparrow.store.sql.drivers.errors import DuplicateKey, LockConflict
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.row_codec import KEY_BYTES_MAX, row_of_columns, row_of_draft
from sparrow.wire.properties import property_value, set_properties

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.05
_DELIVERED_AT_ONCE = 500
_TROUBLE_S = 1.0


class SqlDelayScheduler:
    """Takes messages in; delivers them while this broker leads."""

    def __init__(self, store: SqlStore, *, horizon_ms: int, now_ms: Callable[[], int]) -> None:
        self._store, self._horizon_ms, self._now_ms = store, horizon_ms, now_ms

    # -- taking messages in -------------------------------------------------------------------------------------------

    def schedule_level(self, queue: Queue, draft: Draft, level: int) -> asyncio.Future[AppendResult]:
        """Store a message for that queue, to be delivered after a level's time; levels above the highest are that."""
        source = min(level, len(DELAY_LEVELS_MS)) - 1
        return self._put(source, queue, draft, self._now_ms() + DELAY_LEVELS_MS[source], {})

    def schedule_at(self, queue: Queue, draft: Draft, due_ms: int) -> asyncio.Future[AppendResult] | None:
        """Store a message to be delivered at a time. None: that time has come already."""
        cancelled = property_value(draft.properties, PROPERTY_TIMER_CANCEL_KEY)
        if is_due(due_ms, self._now_ms(), horizon_ms=self._horizon_ms, cancels=cancelled is not None):
            return None
        if cancelled is not None:  # how RocketMQ's clients take a message back before 5.3
            _, _, key = cancelled.rpartition("+")
            return asyncio.ensure_future(self._cancelled(queue.topic, key, due_ms))
        return self._put(TIMER_QUEUE_INDEX, queue, draft, due_ms, {PROPERTY_TIMER_OUT_MS: str(due_ms)})

    def _put(
        self, source: int, queue: Queue, draft: Draft, due_ms: int, more: dict[str, str]
    ) -> asyncio.Future[AppendResult]:
        self._store.catalog.lane(queue)
        # What only we may say is taken out, whoever said it.
        ours = {PROPERTY_TIMER_OUT_MS: "", PROPERTY_TIMER_CANCEL_KEY: "", PROPERTY_TIMER_ROLLED_FROM: ""}
        words = {**ours, PROPERTY_REAL_TOPIC: queue.topic, PROPERTY_REAL_QUEUE_ID: str(queue.id), **more}
        draft.properties = set_properties(draft.properties, words)
        return asyncio.ensure_future(self._stored(DELAY_QUEUES[source], queue, draft, due_ms))

    async def _stored(self, source: Queue, queue: Queue, draft: Draft, due_ms: int) -> AppendResult:
        entry = row_of_draft(self._store.checked(draft), 0)
        key = (property_value(draft.properties, PROPERTY_UNIQUE_KEY) or "").encode()[:KEY_BYTES_MAX]
        at_ms = self._now_ms()
        database, named = self._store.database, {"due": due_ms, "topic": queue.topic, "key": key, "at": at_ms}
        once = deferred_send_key(queue, draft, "delayed")

        async def insert() -> None:
            if once is None:
                await insert_in(database)
                return
            with contextlib.suppress(DuplicateKey):  # it waits, or has been delivered
                async with database.transaction() as session:
                    await claim_send(session, once, due_ms, at_ms)
                    await insert_in(session)

        async def insert_in(session: SqlSession) -> None:
            await session.execute(
                "INSERT INTO hermes_delay (due, topic, queue_id, unique_key, body, source_ip, properties, at)"
                " VALUES (:due, :topic, :queue_id, :key, :body, :ip, :properties, :at)",
                queue_id=queue.id,
                body=entry.body,
                ip=entry.source_ip,
                properties=entry.properties,
                **named,
            )

        async def is_there() -> bool:
            found = await database.fetch(
                "SELECT id FROM hermes_delay WHERE unique_key = :key AND topic = :topic AND due = :due AND at = :at",
                **named,
            )
            if found or queue.topic.startswith(RETRY_TOPIC_PREFIX):  # retries of a message all have its key
                return bool(found)
            # It may have been delivered while nobody could ask.
            return bool(await self._store.find_by_key(queue.topic, key.decode(), limit=1, begin_ms=due_ms))

        await self._store.retry_until_done(insert, is_there)
        # Where it waits has no place of its own that a client could ask for.
        return AppendResult(source, QueueOffset(0), [PhysicalOffset(0)], PhysicalOffset(0), at_ms)

    async def cancel(self, topic: str, unique_key: str, due_ms: int) -> AppendResult | None:
        """None if it is too late: the message is delivered."""
        gone = await self._store.database.execute(
            "DELETE FROM hermes_delay WHERE unique_key = :key AND topic = :topic AND due = :due",
            key=unique_key.encode(),
            topic=topic,
            due=due_ms,
        )
        if not gone:
            return None
        return AppendResult(
            DELAY_QUEUES[TIMER_QUEUE_INDEX], QueueOffset(0), [PhysicalOffset(0)], PhysicalOffset(0), self._now_ms()
        )

    async def _cancelled(self, topic: str, unique_key: str, due_ms: int) -> AppendResult:
        appended = await self.cancel(topic, unique_key, due_ms)
        if appended is None:
            raise IllegalMessage("it would cancel a message that is delivered already")
        return appended

    # -- delivering ---------------------------------------------------------------------------------------------------

    async def run_as_leader(self) -> None:
        """Deliver what is due, until cancelled."""
        while True:
            try:
                if not await self.deliver_due():
                    await asyncio.sleep(POLL_INTERVAL_S)
            except (SparrowError, LockConflict) as error:  # they stay in the database, and are tried again
                log.warning("delayed messages not delivered", extra={"why": str(error)})
                await asyncio.sleep(_TROUBLE_S)

    async def deliver_due(self) -> int:
        """How many messages were due."""
        found = await self._store.database.fetch(
            "SELECT id, topic, queue_id, body, source_ip, properties FROM hermes_delay WHERE due <= :now"
            f" ORDER BY due, id LIMIT {_DELIVERED_AT_ONCE}",
            now=self._now_ms(),
        )
        lots: dict[Queue, list[Any]] = {}
        for row in found:
            lots.setdefault(Queue(row[1], row[2]), []).append(row)
        for queue, lot in lots.items():
            ids = ", ".join(str(row[0]) for row in lot)

            async def taken(session: SqlSession, ids: str = ids, count: int = len(lot)) -> bool:
                return await session.execute(f"DELETE FROM hermes_delay WHERE id IN ({ids})") == count

            if queue not in self._store.catalog.lanes:  # another broker may have made its topic a moment ago
                await self._store.catalog.list_topics()
            if queue not in self._store.catalog.lanes:  # nobody could ever get it
                log.warning("delayed messages are dropped: their topic is gone", extra={"queue": str(queue)})
                await self._store.database.execute(f"DELETE FROM hermes_delay WHERE id IN ({ids})")
                continue
            entries = [row_of_columns(row[3], row[4], row[5], self._store.catalog.anonymous_token) for row in lot]
            await self._store.append_in_transaction(queue, entries, taken)
        return len(found)

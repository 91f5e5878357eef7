"""Delayed messages on a database: rows in `hermes_delay` until they are due.

1. A message is stored when its sender gets the answer, whichever broker received it.
2. Delivery appends the message and deletes its row in one transaction: it happens once, even if two brokers believe
   that they lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from sparrow.broker.delay.delay_queues import DELAY_QUEUES, TIMER_QUEUE_INDEX, is_due
from sparrow.broker.delay.spi import SCANNED_MAX
from sparrow.broker.produce.dedup_sql import claim_send, deferred_send_key
from sparrow.log_intervals import LogIntervals
from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.errors import IllegalMessage, SparrowError
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
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
from sparrow.store.sql.retries import retry_until_done
from sparrow.store.sql.row_codec import KEY_BYTES_MAX, draft_of_row, row_of_columns, row_of_draft
from sparrow.store.sql.statements import delays as statements
from sparrow.wire.bodies import DelayedMessageEntry, DelayedMessages, ListDelayed
from sparrow.wire.properties import property_text, property_value, set_properties

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.05
_DELIVERY_BATCH_ROWS = 500
_LIST_BATCH_ROWS = 250
_RETRY_S = 1.0


class SqlDelayScheduler:
    """Stores delayed messages; delivers them while this broker leads."""

    def __init__(self, store: SqlStore, *, horizon_ms: int, now_ms: Callable[[], int]) -> None:
        self._store, self._horizon_ms, self._now_ms = store, horizon_ms, now_ms
        self._failures = LogIntervals()

    async def count_waiting(self) -> int:
        """Return the number of messages that wait for their delivery time."""
        return int((await self._store.database.fetch(statements.COUNT))[0][0])

    async def list_waiting(self, request: ListDelayed) -> DelayedMessages:
        """Return waiting messages by delivery time; at most `SCANNED_MAX` rows are read."""
        due_ms, number = request.after or (request.from_ms, -1)
        found: list[DelayedMessageEntry] = []
        scanned = 0
        while scanned < SCANNED_MAX:
            count = min(_LIST_BATCH_ROWS, SCANNED_MAX - scanned)
            rows = await self._store.database.fetch(statements.SELECT_WAITING, due=due_ms, id=number, count=count)
            for row in rows:
                if request.until_ms is not None and row[1] >= request.until_ms:
                    return DelayedMessages(found, scanned)
                number, due_ms = row[0], row[1]
                scanned += 1
                entry = _entry(row)
                if request.topic in (None, entry.topic) and request.unique_key in (None, entry.unique_key):
                    found.append(entry)
                    if len(found) == request.limit:
                        return DelayedMessages(found, scanned, (due_ms, number))
            if len(rows) < count:
                return DelayedMessages(found, scanned)
        return DelayedMessages(found, scanned, (due_ms, number))

    # -- storing -------------------------------------------------------------------------------------------------------

    def schedule_level(self, queue: Queue, draft: Draft, level: int) -> asyncio.Future[AppendResult]:
        """Store a message that is due after the time of a delay level. Levels above the highest mean the highest."""
        source = min(level, len(DELAY_LEVELS_MS)) - 1
        return self._schedule(source, queue, draft, self._now_ms() + DELAY_LEVELS_MS[source], {})

    def schedule_at(self, queue: Queue, draft: Draft, due_ms: int) -> asyncio.Future[AppendResult] | None:
        """Store a message that is due at a time. Return None if that time has passed."""
        cancelled = property_value(draft.properties, PROPERTY_TIMER_CANCEL_KEY)
        if is_due(due_ms, self._now_ms(), horizon_ms=self._horizon_ms, cancels=cancelled is not None):
            return None
        if cancelled is not None:  # how RocketMQ's clients before 5.3 recall a message
            _, _, key = cancelled.rpartition("+")
            return asyncio.ensure_future(self._cancel_or_refuse(queue.topic, key, due_ms))
        return self._schedule(TIMER_QUEUE_INDEX, queue, draft, due_ms, {PROPERTY_TIMER_OUT_MS: str(due_ms)})

    def _schedule(
        self, source: int, queue: Queue, draft: Draft, due_ms: int, more: dict[str, str]
    ) -> asyncio.Future[AppendResult]:
        self._store.catalog.lane(queue)
        # Clients must not set what only the broker may set.
        reserved = {PROPERTY_TIMER_OUT_MS: "", PROPERTY_TIMER_CANCEL_KEY: "", PROPERTY_TIMER_ROLLED_FROM: ""}
        properties = {**reserved, PROPERTY_REAL_TOPIC: queue.topic, PROPERTY_REAL_QUEUE_ID: str(queue.id), **more}
        draft.properties = set_properties(draft.properties, properties)
        return asyncio.ensure_future(self._store_row(DELAY_QUEUES[source], queue, draft, due_ms))

    async def _store_row(self, source: Queue, queue: Queue, draft: Draft, due_ms: int) -> AppendResult:
        row = row_of_draft(self._store.validate(draft), 0)
        key = (property_value(draft.properties, PROPERTY_UNIQUE_KEY) or "").encode()[:KEY_BYTES_MAX]
        at_ms = self._now_ms()
        database, identity = self._store.database, {"due": due_ms, "topic": queue.topic, "key": key, "at": at_ms}
        send_key = deferred_send_key(queue, draft, "delayed")

        async def insert() -> None:
            if send_key is None:
                await insert_in(database)
                return
            with contextlib.suppress(DuplicateKey):  # the first send of it is stored, or delivered already
                async with database.transaction() as session:
                    await claim_send(session, send_key, due_ms, at_ms)
                    await insert_in(session)

        async def insert_in(session: SqlSession) -> None:
            await session.execute(
                statements.INSERT,
                queue_id=queue.id,
                body=row.body,
                ip=row.source_ip,
                properties=row.properties,
                token=draft.token or None,
                **identity,
            )

        async def is_stored() -> bool:
            found = await database.fetch(statements.SELECT_SAME, **identity)
            if found or queue.topic.startswith(RETRY_TOPIC_PREFIX):  # all retries of a message have its key
                return bool(found)
            # It may have been delivered while the database could not be reached.
            return bool(await self._store.find_by_key(queue.topic, key.decode(), limit=1, begin_ms=due_ms))

        await retry_until_done(insert, is_stored, wait_s=self._store.settings.database_wait_ms / 1000)
        # The row has no queue offset or physical offset that a client could use.
        return AppendResult(source, QueueOffset(0), [PhysicalOffset(0)], PhysicalOffset(0), at_ms)

    async def cancel(self, topic: str, unique_key: str, due_ms: int) -> AppendResult | None:
        """Cancel a delivery. Return None if the message is delivered already."""
        deleted = await self._store.database.execute(
            statements.CANCEL, key=unique_key.encode(), topic=topic, due=due_ms
        )
        if not deleted:
            return None
        return AppendResult(
            DELAY_QUEUES[TIMER_QUEUE_INDEX], QueueOffset(0), [PhysicalOffset(0)], PhysicalOffset(0), self._now_ms()
        )

    async def _cancel_or_refuse(self, topic: str, unique_key: str, due_ms: int) -> AppendResult:
        appended = await self.cancel(topic, unique_key, due_ms)
        if appended is None:
            raise IllegalMessage("the message that it cancels is delivered already")
        return appended

    # -- delivery ----------------------------------------------------------------------------------------------------

    async def run_as_leader(self) -> None:
        """Deliver due messages until cancelled."""
        while True:
            try:
                if not await self.deliver_due():
                    await asyncio.sleep(POLL_INTERVAL_S)
                if self._failures.end("deliver"):
                    log.info("delayed messages are delivered again")
            except (SparrowError, LockConflict) as error:  # the rows stay and are tried again
                if self._failures.is_due("deliver", type(error)):
                    log.warning("delayed messages cannot be delivered: %(error)s; retrying", {"error": error})
                await asyncio.sleep(_RETRY_S)

    async def deliver_due(self) -> int:
        """Deliver one batch of due messages; return how many were due."""
        rows = await self._store.database.fetch(statements.SELECT_DUE, now=self._now_ms(), count=_DELIVERY_BATCH_ROWS)
        rows_by_queue: dict[Queue, list[Any]] = {}
        for row in rows:
            rows_by_queue.setdefault(Queue(row[1], row[2]), []).append(row)
        for queue, some in rows_by_queue.items():
            delete = statements.delete(row[0] for row in some)

            async def delete_all(session: SqlSession, delete: str = delete, count: int = len(some)) -> bool:
                return await session.execute(delete) == count

            if queue not in self._store.catalog.lanes:  # another broker may have just created the topic
                await self._store.catalog.list_topics()
            if queue not in self._store.catalog.lanes:
                log.warning(
                    "%(count)s delayed messages for %(queue)s are dropped: their topic was deleted",
                    {"count": len(some), "queue": queue},
                )
                await self._store.database.execute(delete)
                continue
            anonymous = self._store.catalog.anonymous_token
            messages = [row_of_columns(row[3], row[4], row[5], row[6] or anonymous) for row in some]
            await self._store.append_in_transaction(queue, messages, delete_all)
        return len(rows)


def _entry(row: Any) -> DelayedMessageEntry:
    number, due_ms, topic, unique_key, body_bytes, source_ip, columns, at_ms = row
    draft, _ = draft_of_row(b"", source_ip, columns)
    return DelayedMessageEntry(
        position=(due_ms, number),
        topic=topic,
        due_ms=due_ms,
        store_ms=at_ms,
        body_bytes=body_bytes,
        unique_key=bytes(unique_key or b"").decode("utf-8", "replace") or None,
        keys=property_text(draft.properties, PROPERTY_KEYS),
        tags=property_text(draft.properties, PROPERTY_TAGS),
    )

"""Transactional messages on a database: half messages are rows in `hermes_half` until their producer ends them.

1. A commit appends the message and deletes its row in one transaction. A rollback marks the row, and retention deletes
   it some days later. A second request for the same transaction finds no half message and changes nothing.
2. The leader checks back for half messages older than the timeout, up to a limit. Then one transaction marks the row as
   given up and appends the message to a topic for inspection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.metrics.event_counters import EventCounters
from sparrow.broker.produce.dedup_sql import claim_send, claimed_value, deferred_send_key
from sparrow.broker.transactions.check_back import TransactionCheckBack
from sparrow.broker.transactions.half_messages import HALF_QUEUE
from sparrow.broker.transactions.spi import SCANNED_MAX, EndedTransaction, EndOutcome, TransactionNotEnded
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import (
    CHECK_LIMIT_TOPIC,
    PROPERTY_CHECK_IMMUNITY_S,
    PROPERTY_CHECK_TIMES,
    PROPERTY_KEYS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
)
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset
from sparrow.model.topic import Topic
from sparrow.settings import BrokerSettings
from sparrow.store.spi import AppendResult
from sparrow.store.sql.drivers.database import SqlSession
from sparrow.store.sql.drivers.errors import DuplicateKey, LockConflict
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import RowRecordEncoder, draft_of_row, row_of_draft
from sparrow.store.sql.statements import half_messages as statements
from sparrow.store.sql.upserts import insert_returning_id
from sparrow.wire import record
from sparrow.wire.bodies import HalfMessageEntry, HalfMessages, ListHalfMessages
from sparrow.wire.headers import EndTransaction
from sparrow.wire.properties import parse_whole_number, property_text, property_value, set_properties
from sparrow.wire.record import TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK, TRANSACTION_TYPE_MASK

log = logging.getLogger(__name__)

_CHECK_BATCH_ROWS = 200
_LIST_BATCH_ROWS = 250
_ROW_ID_MAX = (1 << 63) - 1
_NO_LANE = Lane(0, "", 0, "m", Priority.MIDDLE)
"""Half messages belong to no lane: their physical offset is the number of their row."""


class SqlTransactionCoordinator:
    """Stores half messages, ends transactions, and checks back while this broker leads."""

    def __init__(
        self,
        store: SqlStore,
        topics: TopicCatalog,
        clients: ClientRegistry,
        settings: BrokerSettings,
        *,
        store_host: bytes,
        now_ms: Callable[[], int],
        events: EventCounters | None = None,
    ) -> None:
        self._store, self._topics, self._settings, self._now_ms = store, topics, settings, now_ms
        self._events = events or EventCounters()
        self._check_back = TransactionCheckBack(clients, settings.name)
        self._records = RowRecordEncoder(_NO_LANE, HALF_QUEUE.topic, HALF_QUEUE.id, store_host)
        self._failures = LogIntervals()

    # -- storing and ending -------------------------------------------------------------------------------------------

    def append_half(self, queue: Queue, draft: Draft) -> asyncio.Future[AppendResult]:
        """Store a half message. Consumers see it once its producer has committed it."""
        self._store.catalog.lane(queue)
        properties = {PROPERTY_REAL_TOPIC: queue.topic, PROPERTY_REAL_QUEUE_ID: str(queue.id), PROPERTY_CHECK_TIMES: ""}
        draft.properties = set_properties(draft.properties, properties)
        draft.sys_flag &= ~TRANSACTION_TYPE_MASK
        return asyncio.ensure_future(self._store_row(queue, draft))

    async def _store_row(self, queue: Queue, draft: Draft) -> AppendResult:
        row = row_of_draft(self._store.validate(draft), 0)
        seconds = parse_whole_number(property_value(draft.properties, PROPERTY_CHECK_IMMUNITY_S))
        immunity_ms = self._settings.transaction_timeout_ms if seconds is None else seconds * 1000
        at_ms = self._now_ms()
        send_key = deferred_send_key(queue, draft, "half")
        if send_key is not None and (first := await claimed_value(self._store.database, send_key)) is not None:
            return _half_result(first, at_ms)
        # No retry if the database is unreachable: the broker checks back for an unknown half message as for any other.
        number = await insert_returning_id(
            self._store.database,
            statements.TABLE,
            producer_group=property_value(draft.properties, PROPERTY_PRODUCER_GROUP) or "",
            topic=queue.topic,
            queue_id=queue.id,
            body=row.body,
            source_ip=row.source_ip,
            properties=row.properties,
            at=at_ms,
            check_at=at_ms + immunity_ms,
            state="half",
            token=draft.token or None,
        )
        if send_key is not None:
            try:
                await claim_send(self._store.database, send_key, number, at_ms)
            except DuplicateKey:  # the same send arrived twice, and the other was first
                await self._store.database.execute(statements.DELETE, id=number)
                number = await claimed_value(self._store.database, send_key) or number
        return _half_result(number, at_ms)

    async def end(
        self, request: EndTransaction, *, may_publish: Callable[[str], bool] = lambda topic: True
    ) -> EndedTransaction:
        """Commit or roll back."""
        if request.verdict not in (TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK):
            return EndedTransaction(EndOutcome.UNDECIDED)
        number = request.half_queue_offset
        found = await self._store.database.fetch(statements.SELECT, id=number)
        if not found:
            return EndedTransaction(EndOutcome.NOT_FOUND)
        group, topic, queue_id, body, source_ip, properties, token, stored_ms = found[0]
        if not may_publish(topic):
            return EndedTransaction(EndOutcome.NOT_FOUND)
        if number != request.half_physical_offset:
            raise TransactionNotEnded(f"no half message has the physical offset {request.half_physical_offset}")
        if group != request.group:
            raise TransactionNotEnded(f"producer group {request.group!r} did not begin it")
        if request.verdict == TRANSACTION_ROLLED_BACK:
            if not await self._store.database.execute(statements.ROLL_BACK, id=number, now=self._now_ms()):
                return EndedTransaction(EndOutcome.NOT_FOUND)
            self._events.count_rollback(topic, self._now_ms() - stored_ms)
            return EndedTransaction(EndOutcome.ROLLED_BACK)

        async def delete_half(session: SqlSession) -> bool:
            return await session.execute(statements.DELETE_UNENDED, id=number) == 1

        if Queue(topic, queue_id) not in self._store.catalog.lanes:  # another broker may have just created the topic
            await self._store.catalog.list_topics()
        draft, _ = draft_of_row(body, source_ip, properties)
        draft.sys_flag = draft.sys_flag & ~TRANSACTION_TYPE_MASK | TRANSACTION_COMMITTED
        draft.prepared_offset = number
        row = row_of_draft(draft, token or self._store.catalog.anonymous_token)
        appended = await self._store.append_in_transaction(Queue(topic, queue_id), [row], delete_half)
        if appended is None:  # another broker has just ended it
            return EndedTransaction(EndOutcome.NOT_FOUND)
        self._events.count_commit(topic, self._now_ms() - stored_ms)
        return EndedTransaction(EndOutcome.COMMITTED, appended)

    async def count_by_topic(self) -> Mapping[str, int]:
        """Return the number of half messages that wait for their end, by topic."""
        return {topic: int(count) for topic, count in await self._store.database.fetch(statements.COUNT_BY_TOPIC)}

    async def list_waiting(self, request: ListHalfMessages) -> HalfMessages:
        """Return half messages that wait for their end, the oldest first; at most `SCANNED_MAX` rows are read."""
        first = -1 if request.after is None else request.after
        last = _ROW_ID_MAX
        if request.half_offset is not None:
            first, last = max(first, request.half_offset - 1), request.half_offset
        found: list[HalfMessageEntry] = []
        scanned = 0
        following: int | None = first
        while following is not None and scanned < SCANNED_MAX and len(found) < request.limit:
            count = min(_LIST_BATCH_ROWS, SCANNED_MAX - scanned)
            rows = await self._store.database.fetch(statements.SELECT_WAITING, after=following, last=last, count=count)
            following = None if len(rows) < count else rows[-1][0]
            for row in rows:
                scanned += 1
                entry = _entry(row)
                if request.topic in (None, entry.topic):
                    found.append(entry)
                    if len(found) == request.limit:
                        following = entry.half_offset
                        break
        return HalfMessages(found, scanned, following, checks_max=self._settings.transaction_checks_max)

    # -- check-back ---------------------------------------------------------------------------------------------------

    async def run_as_leader(self) -> None:
        """Check back for transactions that were not ended, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.transaction_scan_ms / 1000)
            try:
                await self.check_overdue()
                if self._failures.end("check"):
                    log.info("transactions are checked back again")
            except (SparrowError, LockConflict) as error:
                if self._failures.is_due("check", type(error)):
                    log.warning("transactions cannot be checked back: %(error)s; retrying", {"error": error})

    async def check_overdue(self) -> None:
        """Check back with the producers of half messages that are due for it."""
        now_ms = self._now_ms()
        found = await self._store.database.fetch(statements.SELECT_TO_CHECK, now=now_ms, count=_CHECK_BATCH_ROWS)
        for number, checks, body, source_ip, properties, at_ms, token in found:
            is_exhausted = checks >= self._settings.transaction_checks_max
            # Before anything else: a half message that cannot be given up must not keep the others waiting.
            is_changed = await self._store.database.execute(
                statements.SET_CHECKED,
                checks=checks if is_exhausted else checks + 1,
                next=now_ms + self._settings.transaction_check_interval_ms,
                id=number,
                before=checks,
            )
            if is_changed and is_exhausted:
                await self._give_up(number, checks, body, source_ip, properties, token)
            elif is_changed:
                self._check_back.check(
                    self._message(number, body, source_ip, at_ms, properties), half_offset=number, checks=checks + 1
                )

    async def _give_up(
        self, number: int, checks: int, body: bytes, source_ip: int, properties: bytes, token: int | None
    ) -> None:
        """Roll back a transaction, and append its message to a topic for inspection."""
        if CHECK_LIMIT_TOPIC not in self._topics:
            await self._topics.put(Topic(name=CHECK_LIMIT_TOPIC, read_queues=1, write_queues=1))
        draft, _ = draft_of_row(body, source_ip, properties)
        draft.properties = set_properties(draft.properties, {PROPERTY_CHECK_TIMES: str(checks)})

        async def mark_given_up(session: SqlSession) -> bool:
            return await session.execute(statements.GIVE_UP, id=number, before=checks, now=self._now_ms()) == 1

        row = row_of_draft(draft, token or self._store.catalog.anonymous_token)
        if await self._store.append_in_transaction(Queue(CHECK_LIMIT_TOPIC, 0), [row], mark_given_up) is not None:
            log.warning(
                "transaction %(half)s is rolled back after %(checks)s checks without an answer; its message is in"
                " topic %(topic)s",
                {"half": number, "checks": checks, "topic": CHECK_LIMIT_TOPIC},
            )

    def _message(self, number: int, body: bytes, source_ip: int, at_ms: int, properties: bytes) -> StoredMessage:
        raw, _ = self._records.encode(number, body, source_ip, at_ms, properties)
        message = record.decode(raw, verify_crc=False, expand=False)
        message.queue_offset = QueueOffset(number)
        return message


def _half_result(number: int, at_ms: int) -> AppendResult:
    return AppendResult(HALF_QUEUE, QueueOffset(number), [PhysicalOffset(number)], PhysicalOffset(number + 1), at_ms)


def _entry(row: Any) -> HalfMessageEntry:
    number, group, topic, body_bytes, source_ip, columns, at_ms, checks, check_ms = row
    draft, _ = draft_of_row(b"", source_ip, columns)
    return HalfMessageEntry(
        half_offset=number,
        physical_offset=number,
        topic=topic,
        store_ms=at_ms,
        checks=checks,
        next_check_ms=check_ms,
        body_bytes=body_bytes,
        producer_group=group,
        unique_key=property_text(draft.properties, PROPERTY_UNIQUE_KEY),
        keys=property_text(draft.properties, PROPERTY_KEYS),
        tags=property_text(draft.properties, PROPERTY_TAGS),
    )

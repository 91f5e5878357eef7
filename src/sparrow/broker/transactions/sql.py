"""Transactional messages on a database: rows in `hermes_half` until their producer has decided.

1. Committing appends the message and deletes its row in one transaction. A second word on it, or a stranger's, finds
   no row and changes nothing.
2. Whoever leads asks after rows older than the timeout, at most so many times; then a row is set aside for inspection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.produce.dedup_sql import claim_send, claimed_value, deferred_send_key
from sparrow.broker.transactions.check_back import TransactionCheckBack
from sparrow.broker.transactions.half_messages import HALF_QUEUE
from sparrow.broker.transactions.spi import TransactionNotEnded
from sparrow.model.errors import SparrowError
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import (
    PROPERTY_CHECK_IMMUNITY_S,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
)
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset
from sparrow.settings import BrokerSettings
from sparrow.store.spi import AppendResult
from sparrow.store.sql.append.insert import insert_returning_id
from sparrow.store.sql.drivers.database import SqlSession
from sparrow.store.sql.drivers.errors import DuplicateKey, LockConflict
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import RowRecordEncoder, draft_of_row, row_of_draft
from sparrow.wire import record
from sparrow.wire.headers import EndTransaction
from sparrow.wire.properties import parse_whole_number, property_value, set_properties
from sparrow.wire.record import TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK, TRANSACTION_TYPE_MASK

log = logging.getLogger(__name__)

_ASKED_AT_ONCE = 200
_NOWHERE = Lane(0, "", 0, "m", Priority.MIDDLE)
"""Half messages lie in no lane: their place is their number."""


class SqlTransactionCoordinator:
    """All unfinished transactions of a database."""

    def __init__(
        self,
        store: SqlStore,
        clients: ClientRegistry,
        settings: BrokerSettings,
        *,
        store_host: bytes,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._settings, self._now_ms = store, settings, now_ms
        self._check_back = TransactionCheckBack(clients, settings.name)
        self._records = RowRecordEncoder(_NOWHERE, HALF_QUEUE.topic, HALF_QUEUE.id, store_host)

    # -- a transaction's way ------------------------------------------------------------------------------------------

    def append_half(self, queue: Queue, draft: Draft) -> asyncio.Future[AppendResult]:
        """Store a message that only its producer's word will deliver."""
        self._store.catalog.lane(queue)
        words = {PROPERTY_REAL_TOPIC: queue.topic, PROPERTY_REAL_QUEUE_ID: str(queue.id), PROPERTY_CHECK_TIMES: ""}
        draft.properties = set_properties(draft.properties, words)
        draft.sys_flag &= ~TRANSACTION_TYPE_MASK
        return asyncio.ensure_future(self._stored(queue, draft))

    async def _stored(self, queue: Queue, draft: Draft) -> AppendResult:
        entry = row_of_draft(self._store.checked(draft), 0)
        seconds = parse_whole_number(property_value(draft.properties, PROPERTY_CHECK_IMMUNITY_S))
        patience_ms = self._settings.transaction_timeout_ms if seconds is None else seconds * 1000
        at_ms = self._now_ms()
        once = deferred_send_key(queue, draft, "half")
        if once is not None and (first := await claimed_value(self._store.database, once)) is not None:
            return _half_at(first, at_ms)
        # Not tried again when the database goes away: a half that nobody knows of is asked after, like any other.
        number = await insert_returning_id(
            self._store.database,
            "hermes_half",
            producer_group=property_value(draft.properties, PROPERTY_PRODUCER_GROUP) or "",
            topic=queue.topic,
            queue_id=queue.id,
            body=entry.body,
            source_ip=entry.source_ip,
            properties=entry.properties,
            at=at_ms,
            check_at=at_ms + patience_ms,
            state="half",
        )
        if once is not None:
            try:
                await claim_send(self._store.database, once, number, at_ms)
            except DuplicateKey:  # of two that came together, the other was first
                await self._store.database.execute("DELETE FROM hermes_half WHERE id = :id", id=number)
                number = await claimed_value(self._store.database, once) or number
        return _half_at(number, at_ms)

    async def end(self, request: EndTransaction) -> AppendResult | None:
        """Do what the producer says. None: there was nothing to deliver."""
        if request.verdict not in (TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK):
            return None  # it does not know either: it will be asked again
        number = request.half_queue_offset
        found = await self._store.database.fetch(
            "SELECT producer_group, topic, queue_id, body, source_ip, properties FROM hermes_half"
            " WHERE id = :id AND state = 'half'",
            id=number,
        )
        if not found:
            return None  # finished before, or never begun here
        group, topic, queue_id, body, source_ip, properties = found[0]
        if number != request.half_physical_offset:
            raise TransactionNotEnded(f"no half message lies at {request.half_physical_offset}")
        if group != request.group:
            raise TransactionNotEnded(f"it was not begun by group {request.group!r}")

        async def finished(session: SqlSession) -> bool:
            return await session.execute("DELETE FROM hermes_half WHERE id = :id AND state = 'half'", id=number) == 1

        if request.verdict == TRANSACTION_ROLLED_BACK:
            async with self._store.database.transaction() as session:
                await finished(session)
            return None
        if Queue(topic, queue_id) not in self._store.catalog.lanes:  # made on another broker, a moment ago
            await self._store.catalog.list_topics()
        draft, _ = draft_of_row(body, source_ip, properties)
        draft.sys_flag = draft.sys_flag & ~TRANSACTION_TYPE_MASK | TRANSACTION_COMMITTED
        draft.prepared_offset = number
        entry = row_of_draft(draft, self._store.catalog.anonymous_token)
        return await self._store.append_in_transaction(Queue(topic, queue_id), [entry], finished)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def run_as_leader(self) -> None:
        """Ask after what nobody has ended, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.transaction_scan_ms / 1000)
            try:
                await self.check_overdue()
            except (SparrowError, LockConflict) as error:
                log.warning("transactions not asked after", extra={"why": str(error)})

    async def check_overdue(self) -> None:
        """Ask the producers of halves that have waited too long."""
        now_ms = self._now_ms()
        found = await self._store.database.fetch(
            "SELECT id, checks, body, source_ip, properties, at FROM hermes_half"
            f" WHERE state = 'half' AND check_at <= :now ORDER BY check_at LIMIT {_ASKED_AT_ONCE}",
            now=now_ms,
        )
        for number, checks, body, source_ip, properties, at_ms in found:
            is_over = checks >= self._settings.transaction_checks_max
            changed = await self._store.database.execute(
                "UPDATE hermes_half SET checks = :checks, check_at = :next, state = :state"
                " WHERE id = :id AND state = 'half' AND checks = :before",
                checks=checks if is_over else checks + 1,
                next=now_ms + self._settings.transaction_check_interval_ms,
                state="given_up" if is_over else "half",
                id=number,
                before=checks,
            )
            if is_over:
                log.warning("a transaction was given up", extra={"half": number, "checks": checks})
            elif changed:
                self._check_back.check(
                    self._message(number, body, source_ip, at_ms, properties), half_offset=number, checks=checks + 1
                )

    def _message(self, number: int, body: bytes, source_ip: int, at_ms: int, properties: bytes) -> StoredMessage:
        raw, _ = self._records.encode(number, body, source_ip, at_ms, properties)
        message = record.decode(raw, verify_crc=False, expand=False)
        message.queue_offset = QueueOffset(number)
        return message


def _half_at(number: int, at_ms: int) -> AppendResult:
    place = PhysicalOffset(number)
    return AppendResult(HALF_QUEUE, QueueOffset(number), [place], PhysicalOffset(place + 1), at_ms)

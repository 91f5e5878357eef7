"""Transactional messages on a database: half messages are rows in `hermes_half` until their producer ends them.

1. A commit appends the message and deletes its row in one transaction. A second request for the same transaction finds
   no row and changes nothing.
2. The leader checks back for rows older than the timeout, up to a limit; then the row is kept for inspection.
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
from sparrow.log_intervals import LogIntervals
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
from sparrow.store.sql.drivers.database import SqlSession
from sparrow.store.sql.drivers.errors import DuplicateKey, LockConflict
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import RowRecordEncoder, draft_of_row, row_of_draft
from sparrow.store.sql.statements import half_messages as statements
from sparrow.store.sql.upserts import insert_returning_id
from sparrow.wire import record
from sparrow.wire.headers import EndTransaction
from sparrow.wire.properties import parse_whole_number, property_value, set_properties
from sparrow.wire.record import TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK, TRANSACTION_TYPE_MASK

log = logging.getLogger(__name__)

_CHECK_BATCH_ROWS = 200
_NO_LANE = Lane(0, "", 0, "m", Priority.MIDDLE)
"""Half messages belong to no lane: their physical offset is the number of their row."""


class SqlTransactionCoordinator:
    """Stores half messages, ends transactions, and checks back while this broker leads."""

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
        )
        if send_key is not None:
            try:
                await claim_send(self._store.database, send_key, number, at_ms)
            except DuplicateKey:  # the same send arrived twice, and the other was first
                await self._store.database.execute(statements.DELETE, id=number)
                number = await claimed_value(self._store.database, send_key) or number
        return _half_result(number, at_ms)

    async def end(self, request: EndTransaction) -> AppendResult | None:
        """Commit or roll back. Return None if no message became visible."""
        if request.verdict not in (TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK):
            return None  # the producer does not know yet: the broker checks back again
        number = request.half_queue_offset
        found = await self._store.database.fetch(statements.SELECT, id=number)
        if not found:
            return None  # ended already, or never stored here
        group, topic, queue_id, body, source_ip, properties = found[0]
        if number != request.half_physical_offset:
            raise TransactionNotEnded(f"no half message has the physical offset {request.half_physical_offset}")
        if group != request.group:
            raise TransactionNotEnded(f"producer group {request.group!r} did not begin it")

        async def delete_half(session: SqlSession) -> bool:
            return await session.execute(statements.DELETE_UNENDED, id=number) == 1

        if request.verdict == TRANSACTION_ROLLED_BACK:
            async with self._store.database.transaction() as session:
                await delete_half(session)
            return None
        if Queue(topic, queue_id) not in self._store.catalog.lanes:  # another broker may have just created the topic
            await self._store.catalog.list_topics()
        draft, _ = draft_of_row(body, source_ip, properties)
        draft.sys_flag = draft.sys_flag & ~TRANSACTION_TYPE_MASK | TRANSACTION_COMMITTED
        draft.prepared_offset = number
        row = row_of_draft(draft, self._store.catalog.anonymous_token)
        return await self._store.append_in_transaction(Queue(topic, queue_id), [row], delete_half)

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
        for number, checks, body, source_ip, properties, at_ms in found:
            is_exhausted = checks >= self._settings.transaction_checks_max
            changed = await self._store.database.execute(
                statements.SET_CHECKED,
                checks=checks if is_exhausted else checks + 1,
                next=now_ms + self._settings.transaction_check_interval_ms,
                state="given_up" if is_exhausted else "half",
                id=number,
                before=checks,
            )
            if is_exhausted:
                log.warning(
                    "transaction %(half)s is rolled back after %(checks)s checks without an answer; its row is kept in"
                    " the half table with the state given_up",
                    {"half": number, "checks": checks},
                )
            elif changed:
                self._check_back.check(
                    self._message(number, body, source_ip, at_ms, properties), half_offset=number, checks=checks + 1
                )

    def _message(self, number: int, body: bytes, source_ip: int, at_ms: int, properties: bytes) -> StoredMessage:
        raw, _ = self._records.encode(number, body, source_ip, at_ms, properties)
        message = record.decode(raw, verify_crc=False, expand=False)
        message.queue_offset = QueueOffset(number)
        return message


def _half_result(number: int, at_ms: int) -> AppendResult:
    return AppendResult(HALF_QUEUE, QueueOffset(number), [PhysicalOffset(number)], PhysicalOffset(number + 1), at_ms)

"""Revives messages that were not acknowledged in time: stores them again in the group's retry topic.

The copy is stored before the original is settled. A crash in between makes another copy, or redelivers the original; it
loses nothing. A message without retries left goes to the dead-letter topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sparrow.broker.catalog.groups import GroupCatalog
from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.consume.references import may_hold_references, resolve_record
from sparrow.broker.metrics.event_counters import EventCounters
from sparrow.broker.pop.receipt_handles import pop_retry_topic
from sparrow.broker.pop.state.in_flight import InFlightBatch
from sparrow.broker.pop.state.log import LogPopState
from sparrow.broker.pop.state.spi import PopState
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_FIRST_POP_MS,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    RETRY_TOPIC_PREFIX,
)
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.store.spi import BrokerStore, PendingAppend, Slice, await_append
from sparrow.wire import record
from sparrow.wire.consume_failure import ConsumeFailure, set_failure
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import property_value, set_properties

log = logging.getLogger(__name__)

SLEEP_MAX_S = 1.0
"""The longest sleep, in case the wall clock is set."""
RETRY_AFTER_MS = 10_000
"""When a batch that could not be revived is tried again, for instance after a full disk."""
SAVE_INTERVAL_S = 10.0
NOT_ACKNOWLEDGED = ConsumeFailure("no consumer acknowledged it within its invisible time")
"""Why a popped message becomes a dead letter: a pop consumer sends no other reason."""
BATCHES_PER_ROUND = 100
"""Batches between two checks of everything else."""


class LogPopWorker:
    """Loads, saves and revives the pops of a log store while the broker runs."""

    def __init__(self, pop_state: LogPopState, reviving: Reviver) -> None:
        self._pop_state, self._reviving = pop_state, reviving
        self._tasks: list[asyncio.Task[None]] = []
        self._failures = LogIntervals()

    async def start(self) -> None:
        await self._pop_state.load()
        self._tasks = [asyncio.create_task(self._reviving.run()), asyncio.create_task(self._keep_saving())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            self._pop_state.save()
        except SparrowError as error:
            log.error("the state of pops is not saved: %(error)s; the next start reads more", {"error": error})

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            try:
                self._pop_state.save()
                if self._failures.end("save"):
                    log.info("the state of pops is saved again")
            except SparrowError as error:
                if self._failures.is_due("save", type(error)):
                    log.error("the state of pops cannot be saved: %(error)s; retrying", {"error": error})


class Reviver:
    """Revives expired batches, and wakes FIFO queues whose invisible time has expired."""

    def __init__(
        self,
        pop_state: PopState,
        store: BrokerStore,
        topics: TopicCatalog,
        groups: GroupCatalog,
        long_polls: LongPollTable,
        *,
        now_ms: Callable[[], int],
        events: EventCounters | None = None,
    ) -> None:
        self._pop_state, self._store, self._topics, self._groups, self._long_polls = (
            pop_state,
            store,
            topics,
            groups,
            long_polls,
        )
        self._now_ms, self._events = now_ms, events or EventCounters()
        self._failures = LogIntervals()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._pop_state.earlier_due.clear()
            for queue in self._pop_state.fifo.reopened_queues(self._now_ms()):
                self._long_polls.wake(queue)
            due = self._pop_state.in_flight.due(self._now_ms(), BATCHES_PER_ROUND)
            for batch in due:
                await self._try(batch)
                await asyncio.sleep(0)  # let other tasks run between two batches
            try:
                async with asyncio.timeout(0 if due else self._wait_s()):
                    await self._pop_state.earlier_due.wait()
            except TimeoutError:
                pass

    def _wait_s(self) -> float:
        now_ms = self._now_ms()
        next_ms = [self._pop_state.in_flight.next_due_ms(), self._pop_state.fifo.next_reopen_ms()]
        wait_ms = min((each - now_ms for each in next_ms if each is not None), default=SLEEP_MAX_S * 1000)
        return min(max(0.0, wait_ms / 1000), SLEEP_MAX_S)

    async def _try(self, batch: InFlightBatch) -> None:
        try:
            await self._revive(batch)
        except Exception as error:
            if self._failures.is_due(batch.group, type(error)):
                log.error(
                    "popped messages of group %(group)s on %(queue)s cannot be revived: %(error)s; retrying",
                    {"group": batch.group, "queue": batch.queue, "error": error},
                    exc_info=not isinstance(error, SparrowError),
                )
            self._pop_state.in_flight.postpone(batch, self._now_ms() + RETRY_AFTER_MS)
        else:
            if self._failures.end(batch.group):
                log.info("popped messages of group %(group)s are revived again", {"group": batch.group})

    async def _revive(self, batch: InFlightBatch) -> None:
        group = self._groups.get(batch.group)
        if group is None or batch.queue.topic not in self._topics:  # the group or the topic is deleted
            self._pop_state.settle(batch, batch.mask)
            return
        records = await self._records(batch)
        retry_topic, dead_letter_topic = await self._targets(batch, group, records)
        senders = await self._store.tokens.senders([record.physical_offset_of(raw) for raw in records.values()])
        # From here on, an acknowledgement has arrived already, or finds the message withdrawn.
        withdrawn = self._pop_state.withdraw(batch)
        stored = withdrawn
        placings: list[tuple[int, PendingAppend]] = []
        failures: list[Exception] = []
        for offset, raw in records.items():
            bit = withdrawn & 1 << offset - batch.start
            if bit:
                stored ^= bit  # bits without a record stay: those messages are deleted, and count as settled
                try:
                    draft = record.draft_from_record(raw)
                    draft.token = senders.get(record.physical_offset_of(raw), 0)
                    placing = self._store_again(batch, group, raw, draft, retry_topic, dead_letter_topic)
                    placings.append((bit, placing))
                except Exception as error:
                    failures.append(error)
        try:
            for bit, placing in placings:
                try:
                    await await_append(placing)
                    stored |= bit
                except Exception as error:
                    failures.append(error)
        finally:
            self._pop_state.confirm_stored(batch, stored)
        if failures:
            raise failures[0]

    async def _targets(
        self, batch: InFlightBatch, group: Group, records: dict[int, memoryview]
    ) -> tuple[Topic, Topic | None]:
        topic = batch.queue.topic
        name = topic if topic.startswith(RETRY_TOPIC_PREFIX) else pop_retry_topic(group.name, topic)
        retry_topic = await self._topics.create_for_group(RETRY_TOPIC_PREFIX, name.removeprefix(RETRY_TOPIC_PREFIX))
        if any(record.draft_from_record(raw).reconsume_times >= group.retries_max for raw in records.values()):
            return retry_topic, await self._topics.create_for_group(DLQ_TOPIC_PREFIX, group.name)
        return retry_topic, None

    def _store_again(
        self,
        batch: InFlightBatch,
        group: Group,
        raw: memoryview,
        draft: Draft,
        retry_topic: Topic,
        dead_letter_topic: Topic | None,
    ) -> PendingAppend:
        is_dead = draft.reconsume_times >= group.retries_max and dead_letter_topic is not None
        draft.reconsume_times += 1
        queue = Queue(dead_letter_topic.name if is_dead and dead_letter_topic is not None else retry_topic.name, 0)
        plain = draft.properties
        try:
            draft.properties = self._properties(batch, raw, draft)
            if is_dead:
                failure = NOT_ACKNOWLEDGED.properties(consumer="", attempt=draft.reconsume_times)
                draft.properties = set_failure(draft.properties, failure)
            placing = self._store.append_nowait(queue, (draft,))
        except Refused:  # with the added properties they are too long: store the message without these
            draft.properties = plain
            placing = self._store.append_nowait(queue, (draft,))
        if is_dead:
            self._events.count_dead_letter(group.name, batch.queue.topic)
        return placing

    def _properties(self, batch: InFlightBatch, raw: memoryview, draft: Draft) -> bytes:
        before = draft.properties
        values: dict[str, str] = {}
        if property_value(before, PROPERTY_RETRY_TOPIC) is None:
            values[PROPERTY_RETRY_TOPIC] = batch.queue.topic
        if property_value(before, PROPERTY_FIRST_POP_MS) is None:
            values[PROPERTY_FIRST_POP_MS] = str(batch.pop_ms)
        if property_value(before, PROPERTY_ORIGIN_MESSAGE_ID) is None:
            message = record.decode(raw, verify_crc=False, expand=False)
            values[PROPERTY_ORIGIN_MESSAGE_ID] = format_offset_id(message.store_host, message.physical_offset)
        return set_properties(before, values)

    async def _records(self, batch: InFlightBatch) -> dict[int, memoryview]:
        """Return the records that are still in flight and not deleted."""
        wanted = batch.offsets()
        found: dict[int, memoryview] = {}
        offset = wanted[0]
        while offset <= wanted[-1]:
            slice_ = await self._store.read(batch.queue, offset, count_max=wanted[-1] + 1 - offset, bytes_max=4 << 20)
            if isinstance(slice_, Slice):
                found |= {
                    queue_offset: raw
                    for raw in slice_.records()
                    if (queue_offset := record.queue_offset_of(raw)) <= wanted[-1]
                }
                offset = slice_.next_offset
            elif slice_.bounds.first > offset:
                offset = slice_.bounds.first
            else:
                break
        records = {offset: found[offset] for offset in wanted if offset in found}
        return await self._resolved(records) if may_hold_references(batch.queue.topic) else records

    async def _resolved(self, records: dict[int, memoryview]) -> dict[int, memoryview]:
        """Resolve references: a retry is stored as a message of its own."""
        whole = {offset: await resolve_record(self._store, raw) for offset, raw in records.items()}
        return {offset: memoryview(raw) for offset, raw in whole.items() if raw is not None}

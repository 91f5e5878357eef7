"""Deduplication of repeated sends: a repeat gets the answer of the first send and is not stored again.

An idempotent producer puts its id (`__PID`) and a sequence number (`__SEQ`) on each message. Sends before a restart are
found in the key index by the unique id, which a message keeps when it is sent again.

1. A repeat gets the answer of the first send. Two that arrive at the same time count as one.
2. A limited number of sends is remembered for each producer, and a limited number of producers: repeats come within
   seconds.
3. For a while after a start, unknown sends are also searched for in the index. Later repeats are not expected.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sparrow.model.errors import IllegalMessage
from sparrow.model.protocol import HALF_TOPIC, PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE, SCHEDULE_TOPIC, TIMER_TOPIC
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset
from sparrow.store.spi import AppendResult, Store
from sparrow.wire import record
from sparrow.wire.properties import property_value

SENDS_PER_PRODUCER_MAX, PRODUCERS_MAX = 4096, 10_000
INDEX_SEARCH_WINDOW_MS = 120_000
"""Longer than any client repeats a send."""


class ProducerSequence(NamedTuple):
    """A producer id, and the sequence number of a send."""

    producer_id: str
    sequence: int


def producer_sequence_of(properties: bytes) -> ProducerSequence | None:
    """Return the producer id and sequence number; None if the message may be stored more than once."""
    producer_id = property_value(properties, PROPERTY_PRODUCER_ID)
    if producer_id is None:
        return None
    number = property_value(properties, PROPERTY_SEQUENCE)
    if number is None or not number.isascii() or not number.isdigit():
        raise IllegalMessage(
            f"it has a producer id ({PROPERTY_PRODUCER_ID}) but no sequence number ({PROPERTY_SEQUENCE})"
        )
    return ProducerSequence(producer_id, int(number))


class SendDeduplicator:
    """The recent sends of the producers of a broker."""

    def __init__(self, store: Store, *, now_ms: Callable[[], int]) -> None:
        self._store, self._now_ms = store, now_ms
        self._search_until_ms = now_ms() + INDEX_SEARCH_WINDOW_MS
        self._sends: OrderedDict[str, OrderedDict[int, AppendResult]] = OrderedDict()
        self._searches: dict[ProducerSequence, asyncio.Future[None]] = {}

    def find(self, send_key: ProducerSequence) -> AppendResult | None:
        sends = self._sends.get(send_key.producer_id)
        return sends.get(send_key.sequence) if sends is not None else None

    def remember(self, send_key: ProducerSequence, appended: AppendResult) -> None:
        sends = self._sends.get(send_key.producer_id)
        if sends is None:
            sends = self._sends[send_key.producer_id] = OrderedDict()
            if len(self._sends) > PRODUCERS_MAX:
                self._sends.popitem(last=False)
        else:
            self._sends.move_to_end(send_key.producer_id)
        sends[send_key.sequence] = appended
        if len(sends) > SENDS_PER_PRODUCER_MAX:
            sends.popitem(last=False)

    @property
    def must_search_index(self) -> bool:
        """Whether an unknown send may still be in the log."""
        return self._now_ms() < self._search_until_ms

    async def search_index(self, topic: str, send_key: ProducerSequence, unique_key: str) -> None:
        """Search the key index for a send; afterwards `find` returns it. Concurrent calls search once."""
        search = self._searches.get(send_key)
        if search is not None:
            await search
            return
        future = self._searches[send_key] = asyncio.get_running_loop().create_future()
        try:
            # Delivered, or else still a delayed or half message.
            for name in (topic, SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC):
                if self.find(send_key) is None:
                    for raw in await self._store.find_by_key(name, unique_key, limit=1):
                        self.remember(send_key, _append_result(raw))
        finally:
            del self._searches[send_key]
            future.set_result(None)


def _append_result(raw: bytes) -> AppendResult:
    found = record.decode(raw, verify_crc=False, expand=False)
    at = found.physical_offset
    return AppendResult(
        Queue(found.topic, found.queue_id),
        QueueOffset(found.queue_offset),
        (PhysicalOffset(at),),
        PhysicalOffset(at + len(raw)),
        found.store_ms,
    )

"""Messages that consumers have popped from an Apache master and not acknowledged, found in the copied log.

RocketMQ 5.x moves a group's offset past popped messages at once. What is in flight is known from *checkpoints* and
acknowledgements, which wait as timers and then stand in the revive topic until they are settled. We do not read them
while we serve; a promotion rewinds the group to its first message in flight, which is then delivered again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from sparrow.model.errors import ProtocolError
from sparrow.model.protocol import PROPERTY_REAL_TOPIC, PROPERTY_TIMER_OUT_MS, REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from sparrow.model.queue import Queue
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice
from sparrow.wire import record
from sparrow.wire.bodies import fastjson

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
_CHECKPOINT_TAG, _ACK_TAG, _BATCH_ACK_TAG = "ck", "ack", "bAck"
_REVIVE_QUEUES_MAX = 64
_TIMER_MARGIN_MS = 10_000
"""Timers that were due this long before the wheel's time are certainly in the revive topic."""

JournalRecord = tuple[str, dict[str, Any]]
"""The tag and the body of a checkpoint or an acknowledgement."""
PoppedQueue = tuple[str, str, int]
"""Topic, group, queue id."""


class PoppedMessages(msgspec.Struct, frozen=True):
    """Messages of one group and queue that are in flight."""

    topic: str
    group: str
    queue_id: int
    first: int
    count: int


def unacknowledged(journal: list[JournalRecord]) -> list[PoppedMessages]:
    """Return what checkpoints leave in flight. `journal`: tags and decoded bodies, in any order."""
    acknowledged: dict[tuple[Any, ...], set[int]] = {}
    for tag, body in journal:
        if tag in (_ACK_TAG, _BATCH_ACK_TAG):
            offsets = body.get("aol", []) if tag == _BATCH_ACK_TAG else [body["ao"]]
            acknowledged.setdefault(_key(body), set()).update(map(int, offsets))
    in_flight: dict[PoppedQueue, set[int]] = {}
    for tag, body in journal:
        if tag != _CHECKPOINT_TAG:
            continue
        start, bits = int(body["so"]), int(body.get("bm", 0))
        steps = body.get("d") or range(int(body.get("n", 0)))
        offsets = {start + int(step) for number, step in enumerate(steps) if not bits >> number & 1}
        queue = str(body["t"]), str(body["c"]), int(body["q"])
        in_flight.setdefault(queue, set()).update(offsets - acknowledged.get(_key(body), set()))
    return [
        PoppedMessages(*queue, first=min(offsets), count=len(offsets))
        for queue, offsets in sorted(in_flight.items())
        if offsets
    ]


def _key(body: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(body.get(name) for name in ("t", "q", "so", "c", "pt"))


async def find_popped(store: LogStore, cluster: str, offsets: dict[str, Any], *, wheel_ms: int) -> list[PoppedMessages]:
    """Return the messages in flight. `offsets`: committed offsets; `wheel_ms`: up to where timers are delivered."""
    topic = REVIVE_TOPIC_PREFIX + cluster
    revived = offsets.get(f"{topic}@{REVIVE_GROUP}", {})
    journal: list[JournalRecord] = []
    for queue_id in range(_REVIVE_QUEUES_MAX):
        start = int(revived.get(str(queue_id), 0))
        async for data in _records(store, Queue(topic, queue_id), start):
            journal += _entries(data, None)
    due_ms = wheel_ms - _TIMER_MARGIN_MS
    async for data in _records(store, Queue(TIMER_TOPIC, 0), 0):
        if topic.encode() in data:
            journal += _entries(data, (topic, due_ms))
    return unacknowledged(journal)


async def _records(store: LogStore, queue: Queue, start: int) -> AsyncIterator[bytes]:
    offset = max(start, int(store.bounds_nowait(queue).first))
    while isinstance(found := await store.read(queue, offset, count_max=16_384, bytes_max=8 << 20), Slice):
        yield found.tobytes()
        offset = found.next_offset


def _entries(data: bytes, timers: tuple[str, int] | None) -> Iterator[JournalRecord]:
    """Return the journal entries among records; of timers, those for the topic that are due after the time."""
    for message in record.decode_valid(data):
        properties = message.properties
        if timers is not None:
            topic, due_ms = timers
            if properties.get(PROPERTY_REAL_TOPIC) != topic or int(properties.get(PROPERTY_TIMER_OUT_MS, 0)) < due_ms:
                continue
        try:
            body = fastjson.parse(message.body)
        except ProtocolError:
            continue
        if isinstance(body, dict):
            yield message.tags or "", body

"""Half messages and op records: the two topics of transactions, in RocketMQ's layout."""

from __future__ import annotations

import sys

import msgspec

from sparrow.model.protocol import (
    HALF_TOPIC,
    OP_TOPIC,
    PROPERTY_CHECK_IMMUNITY_S,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
)
from sparrow.model.queue import Queue
from sparrow.wire import record
from sparrow.wire.properties import parse_whole_number, property_bytes, property_value

HALF_QUEUE, OP_QUEUE = Queue(HALF_TOPIC, 0), Queue(OP_TOPIC, 0)
FINISHED_TAG, CHECKED_TAG = b"TAGS\x01d\x02", b"TAGS\x01c\x02"
"""Tags of op records. Their bodies are comma-separated half offsets, as in RocketMQ, and `offset:checks`.

RocketMQ ignores records of the second kind.
"""


class HalfMessage(msgspec.Struct):
    """An unfinished transaction."""

    topic: str
    """The topic in which consumers will see the message."""
    queue_id: int | None
    group: str
    """The producer group that may end it."""
    immunity_ms: int | None
    """How long the producer does not want to be checked."""
    checks: int
    next_check_ms: int = 0
    physical_offset: int = -1
    stored_ms: int = -1
    """By the broker's clock, because a producer's may be wrong."""


def apply_op_record(raw: memoryview, finished: set[int], checked: dict[int, int]) -> None:
    """Apply an op record. RocketMQ 5 puts several half offsets into one."""
    draft = record.draft_from_record(raw)
    parts = bytes(draft.body).split(b",")
    if property_value(draft.properties, PROPERTY_TAGS) == "c":
        for part in parts:
            offset, _, checks = (text.decode("latin-1") for text in part.partition(b":"))
            if (half_offset := parse_whole_number(offset)) is not None:
                checked[half_offset] = parse_whole_number(checks) or 0
    else:
        finished.update(number for part in parts if (number := parse_whole_number(part.strip())) is not None)


def half_message_of(properties: bytes) -> HalfMessage:
    """Return the transaction of a half message with these properties. The caller adds where and when it is stored."""
    immunity_s = parse_whole_number(property_bytes(properties, PROPERTY_CHECK_IMMUNITY_S))
    return HalfMessage(
        topic=_interned(properties, PROPERTY_REAL_TOPIC),
        queue_id=parse_whole_number(property_bytes(properties, PROPERTY_REAL_QUEUE_ID)),
        group=_interned(properties, PROPERTY_PRODUCER_GROUP),
        immunity_ms=None if immunity_s is None else immunity_s * 1000,
        checks=parse_whole_number(property_bytes(properties, PROPERTY_CHECK_TIMES)) or 0,
    )


def _interned(properties: bytes, name: str) -> str:
    """Return a property that thousands of half messages may share."""
    return sys.intern(property_value(properties, name) or "")

"""Assignments made by the broker, and acknowledgements by the dozen."""

# ruff: noqa: RUF012  (msgspec gives every struct an empty list or dict of its own)
from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import msgspec

from sparrow.model.errors import BadRequest
from sparrow.model.queue import QueueRef
from sparrow.wire.bodies.codec import Body

BITSET_BITS_MAX = 1024
"""A pop checkpoint covers a few dozen messages at most."""


class QueryAssignment(Body, frozen=True):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class Assignment(Body, frozen=True):
    message_queue: QueueRef
    """Queue -1 means all queues of the broker."""
    mode: str = "PULL"


class Assignments(Body, frozen=True):
    message_queue_assignments: list[Assignment] | None = None
    """None: keep the current assignment. Empty: no queues."""


class SetRequestMode(Body, frozen=True):
    topic: str
    consumer_group: str
    mode: str = "POP"
    pop_share_queue_num: int = -1


class Ack(Body, frozen=True):
    """Acknowledges some of the messages that one pop returned from one queue."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    retry: str = msgspec.field(name="r")
    start_offset: int = msgspec.field(name="so")
    queue_id: int = msgspec.field(name="q")
    revive_queue: int = msgspec.field(name="rq")
    pop_ms: int = msgspec.field(name="pt")
    invisible_ms: int = msgspec.field(name="it")
    bits: str = msgspec.field(name="b")
    """Java's BitSet in Base64, little-endian: bit i means `start_offset + i`."""

    @property
    def offsets(self) -> list[int]:
        try:
            raw = base64.b64decode(self.bits, validate=True)
        except (binascii.Error, ValueError) as cause:
            raise BadRequest("Ack", "b", "is not Base64") from cause
        if len(raw) * 8 > BITSET_BITS_MAX:
            raise BadRequest("Ack", "b", f"has {len(raw) * 8} bits; {BITSET_BITS_MAX} are allowed")
        mask = int.from_bytes(raw, "little")
        return [self.start_offset + bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def encode_bitset(distances: Iterable[int]) -> str:
    """Encode distances from the start offset as `bits`."""
    mask = 0
    for distance in distances:
        assert 0 <= distance < BITSET_BITS_MAX
        mask |= 1 << distance
    return base64.b64encode(mask.to_bytes((mask.bit_length() + 7) // 8, "little")).decode()


class BatchAck(Body, frozen=True):
    broker_name: str
    acks: list[Ack] = []

"""Idempotent producers: the identity of a send as numbers that fit the columns of `hermes_batch`."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from sparrow.model.message import Draft
from sparrow.model.protocol import PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE
from sparrow.wire.properties import property_value

_PRODUCER_ID_PREFIX = PROPERTY_PRODUCER_ID.encode() + b"\x01"


def producer_sequence_of(drafts: Sequence[Draft]) -> tuple[int, int] | None:
    """Return the producer and the sequence number of a send; None if a repeat of it may be stored again."""
    if len(drafts) != 1 or _PRODUCER_ID_PREFIX not in drafts[0].properties:
        return None
    producer = property_value(drafts[0].properties, PROPERTY_PRODUCER_ID)
    number = property_value(drafts[0].properties, PROPERTY_SEQUENCE)
    if producer is None or number is None or not number.isdigit():
        return None
    return int.from_bytes(sha256(producer.encode()).digest()[:8], "big") >> 2, int(number)

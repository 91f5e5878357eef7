"""Encode and decode the body of a batch send (request 320): messages of one topic, end to end.

bytes   field
4       size of this message, including this field
8       magic and CRC, both unused and 0
4       flag
4 + n   body
2 + n   properties
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from sparrow.model.errors import ProtocolError, TooLarge, TooManyMessages
from sparrow.wire.properties import PROPERTIES_BYTES_MAX

_FIXED = Struct(">iiiii")
_LENGTH = Struct(">h")
FIXED_BYTES = _FIXED.size
"""Size of the fields before the body."""
BATCH_MESSAGE_BYTES_MIN = FIXED_BYTES + _LENGTH.size


class BatchMessage(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes
    """The property string, not decoded."""


def encode(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Encode messages, each given as flag, body and property string."""
    parts: list[bytes] = []
    for flag, body, properties in messages:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise TooLarge("the property string", len(properties), PROPERTIES_BYTES_MAX)
        size = BATCH_MESSAGE_BYTES_MIN + len(body) + len(properties)
        parts += (_FIXED.pack(size, 0, 0, flag, len(body)), body, _LENGTH.pack(len(properties)), properties)
    return b"".join(parts)


def decode(batch: bytes | memoryview, *, messages_max: int = sys.maxsize) -> list[BatchMessage]:
    """Decode the messages. Any bytes give a list or a `ProtocolError`; no read crosses the end of a message.

    `TooManyMessages` for more than `messages_max`, of which no more are decoded.
    """
    batch = bytes(batch)
    messages: list[BatchMessage] = []
    at, end = 0, len(batch)
    while at < end:
        if len(messages) == messages_max:
            raise TooManyMessages(messages_max)
        if end - at < BATCH_MESSAGE_BYTES_MIN:
            raise ProtocolError(f"no message of a batch fits into the {end - at} bytes from byte {at} on")
        size, _, _, flag, body_bytes = _FIXED.unpack_from(batch, at)
        body_at, next_at = at + _FIXED.size, at + size
        properties_at = body_at + body_bytes + _LENGTH.size
        if size < BATCH_MESSAGE_BYTES_MIN or next_at > end or body_bytes < 0 or properties_at > next_at:
            raise ProtocolError(f"the message at byte {at} of the batch claims {size} bytes, {body_bytes} of them body")
        properties_bytes = _LENGTH.unpack_from(batch, properties_at - _LENGTH.size)[0]
        if properties_bytes < 0 or properties_at + properties_bytes != next_at:
            raise ProtocolError(f"the parts of the message at byte {at} of the batch do not add up to its {size} bytes")
        messages.append(BatchMessage(flag, batch[body_at : body_at + body_bytes], batch[properties_at:next_at]))
        at = next_at
    return messages


def unsound(batch: bytes | memoryview) -> Exception:
    """Return the error of an invalid batch, for decoders that do not describe it themselves."""
    try:
        decode(batch)
    except ProtocolError as refused:
        return refused
    return AssertionError("two decoders disagree about a batch")

"""Events as entries of a Redis stream, in the format of CAP's Redis transport.

| field   | value |
| ------- | ----- |
| headers | a JSON object of texts and nulls |
| body    | a JSON string of base64, in its quotes; `""` for an empty body |

Entries of other writers are decoded as far as possible: no entry may stop the reader.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from sparrow.bus.transports.spi import BrokerDelivery, Envelope

HEADERS_FIELD = b"headers"
BODY_FIELD = b"body"
_FALLBACK_ID_CHARACTERS_MAX = 128


def to_entry(envelope: Envelope) -> dict[bytes, bytes]:
    base64 = binascii.b2a_base64(envelope.body, newline=False)
    return {HEADERS_FIELD: msgspec.json.encode(envelope.headers), BODY_FIELD: b'"' + base64 + b'"'}


def to_delivery(stream: str, entry_id: str, fields: Mapping[bytes, bytes]) -> BrokerDelivery:
    headers = _headers(fields.get(HEADERS_FIELD))
    if headers is None:
        body = _foreign_body(fields)
    else:
        body = _body(fields.get(BODY_FIELD, b""))
    return BrokerDelivery(name=stream, headers=headers or {}, body=body, ack_handle=(stream, entry_id))


def fallback_id(stream: str, entry_id: str) -> str:
    """Return an id for an entry without one. Entry ids are unique only within a stream."""
    found = f"{stream}-{entry_id}"
    if len(found) <= _FALLBACK_ID_CHARACTERS_MAX:
        return found
    return f"{stream[: _FALLBACK_ID_CHARACTERS_MAX - 51]}-{binascii.crc32(stream.encode()):08x}-{entry_id}"


def _headers(text: bytes | None) -> dict[str, str | None] | None:
    if not text:
        return None
    try:
        found: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(found, dict):
        return None
    return {name: value if value is None or isinstance(value, str) else _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _body(text: bytes) -> bytes:
    if not text or text == b"null":
        return b""
    try:
        # Decode the JSON string: .NET may write `+` as an escape.
        return binascii.a2b_base64(msgspec.json.decode(text, type=str), strict_mode=True)
    except (msgspec.DecodeError, ValueError):
        return text


def _foreign_body(fields: Mapping[bytes, bytes]) -> bytes:
    """Return the body of an entry without headers: the field `body`, or all fields as one JSON object."""
    if BODY_FIELD in fields:
        return fields[BODY_FIELD]
    return msgspec.json.encode({_decoded(name): _decoded(value) for name, value in fields.items()})


def _decoded(value: bytes) -> str:
    return value.decode(errors="replace")

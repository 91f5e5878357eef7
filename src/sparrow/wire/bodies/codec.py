"""Convert body structs to JSON, or fastjson's dialect of it, and back."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from sparrow.model.errors import BadRequest, ProtocolError
from sparrow.model.queue import QueueRef
from sparrow.wire.bodies import fastjson


class Body(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all bodies. Unknown members are ignored, members that are None are not written."""


class DataVersion(Body, frozen=True):
    """The version of a broker's tables; a change of any field is a change of version."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None
    """Unknown to 4.9."""


REQUEST_DIALECT_BYTES_MAX = 32 * 1024
"""Above this, the body of a request must be plain JSON without nulls."""

B = TypeVar("B")


def read(kind: type[B], body: bytes | memoryview) -> B:
    """Decode a body, or raise `BadRequest`."""
    return _read(kind, body, dialect_bytes_max=None)


def read_request(kind: type[B], body: bytes | memoryview) -> B:
    """Decode the body of a request, or raise `BadRequest`.

    Only small bodies may be in fastjson's dialect: the decoder of the dialect takes a microsecond per byte, in which a
    server serves nobody else. RocketMQ's clients write the bodies of requests as plain JSON.
    """
    return _read(kind, body, dialect_bytes_max=REQUEST_DIALECT_BYTES_MAX)


def _read(kind: type[B], body: bytes | memoryview, *, dialect_bytes_max: int | None) -> B:
    reader_of: Any = _reader  # mypy considers a type unhashable
    quick = reader_of(kind)
    if quick is not None:
        try:
            value: B = quick(body)
            return value
        except (ValueError, RecursionError) as cause:
            # It may be the dialect, or have a null that fastjson treats as a missing member.
            if dialect_bytes_max is not None and len(body) > dialect_bytes_max:
                problem = f"has {len(body)} bytes, and above {dialect_bytes_max} it must be plain JSON: {cause}"
                raise BadRequest(getattr(kind, "__name__", str(kind)), "body", problem) from cause
    try:
        return msgspec.convert(_without_nulls(fastjson.parse(body, _queue_key)), kind, strict=False)
    except (ProtocolError, ValueError, RecursionError) as cause:
        raise BadRequest(getattr(kind, "__name__", str(kind)), "body", f"is invalid: {cause}") from cause


def write(body: object) -> bytes:
    """Encode a body."""
    return fastjson.emit(body)


@cache
def _reader(kind: Any) -> Any:
    try:
        return msgspec.json.Decoder(kind, strict=False).decode
    except TypeError:  # it contains a map with objects as keys, which plain JSON does not have
        return None


def _queue_key(members: dict[str, Any]) -> QueueRef:
    """Convert an object key to a queue: RocketMQ uses no other objects as keys."""
    try:
        return msgspec.convert(members, QueueRef, strict=False)
    except ValueError as cause:
        raise ProtocolError(f"an object used as a key is not a queue: {cause}") from cause


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value

"""How a body struct becomes JSON, or fastjson's dialect of it, and back."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from sparrow.model.errors import BadRequest, ProtocolError
from sparrow.model.queue import QueueRef
from sparrow.wire import fastjson


class Body(msgspec.Struct, frozen=True, rename="camel"):
    """What one kind of body says. Members it does not know are passed over, members that are None not written."""


class DataVersion(Body, frozen=True):
    """Which state of its tables a broker is in; a change of any part is a change."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None
    """Not known to 4.9."""


B = TypeVar("B")


def read(kind: type[B], body: bytes | memoryview) -> B:
    """The body as a value of that kind, or `BadRequest`."""
    reader_of: Any = _reader  # mypy takes a type for unhashable
    quick = reader_of(kind)
    if quick is not None:
        try:
            value: B = quick(body)
            return value
        except (ValueError, RecursionError):
            pass  # perhaps the dialect, perhaps a null where fastjson sees a missing member
    try:
        return msgspec.convert(_without_nulls(fastjson.parse(body, _queue_key)), kind, strict=False)
    except (ProtocolError, ValueError, RecursionError) as cause:
        raise BadRequest(getattr(kind, "__name__", str(kind)), "body", f"makes no sense: {cause}") from cause


def write(body: object) -> bytes:
    return fastjson.emit(body)


@cache
def _reader(kind: Any) -> Any:
    try:
        return msgspec.json.Decoder(kind, strict=False).decode
    except TypeError:  # a map keyed by objects somewhere in it: plain JSON has no such thing
        return None


def _queue_key(members: dict[str, Any]) -> QueueRef:
    """The only objects RocketMQ uses as keys are queues."""
    try:
        return msgspec.convert(members, QueueRef, strict=False)
    except ValueError as cause:
        raise ProtocolError(f"an object stands for a key and is no queue: {cause}") from cause


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value

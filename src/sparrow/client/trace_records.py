"""The text records of message traces: who sent a message and who consumed it.

    record = field 0x01 field ... 0x02

    Pub             type time region group topic id tags keys store_host bytes cost_ms kind offset_id success [host]
    SubBefore       type time region group request_id id retries keys
    SubAfter        type request_id id cost_ms success keys code time group
    EndTransaction  type time region group topic id tags keys store_host kind transaction_id state from_check

1. RocketMQ's clients and its `queryMsgTraceById` can read these records, and this module can read theirs.
2. A separator inside a field is written as a blank.
3. Records that cannot be parsed are skipped: a trace must never cause a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum

import msgspec

from sparrow.model.protocol import DEFAULT_REGION

_FIELD_END, _RECORD_END = "\x01", "\x02"
_BLANKS = {ord(_FIELD_END): " ", ord(_RECORD_END): " "}


class TracedMessageType(IntEnum):
    """The type of a sent message (RocketMQ's `MessageType`)."""

    NORMAL, HALF, COMMIT, DELAYED, ORDERED = range(5)


class ConsumeReturnType(IntEnum):
    """How a handler ended."""

    SUCCESS, TIME_OUT, RAISED, RETURNED_NULL, FAILED = range(5)


class PublishTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A send."""

    time_ms: int
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    kind: TracedMessageType = TracedMessageType.NORMAL
    offset_id: str = ""
    is_success: bool = True
    region: str = DEFAULT_REGION
    client_host: str | None = None


class ConsumeStartTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a handler."""

    time_ms: int
    group: str
    request_id: str
    """The same as in the record of its end."""
    message_id: str
    retries: int = 0
    keys: str = ""
    region: str = DEFAULT_REGION


class ConsumeEndTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a handler."""

    request_id: str
    message_id: str
    cost_ms: int
    is_success: bool
    keys: str = ""
    code: ConsumeReturnType = ConsumeReturnType.SUCCESS
    time_ms: int = 0
    group: str = ""
    """RocketMQ leaves out time and group for some clouds."""


class TransactionEndTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a transaction."""

    time_ms: int
    group: str
    topic: str
    message_id: str
    transaction_id: str
    state: str
    """`COMMIT_MESSAGE`, `ROLLBACK_MESSAGE` or `UNKNOW`, as Java spells them."""
    from_check: bool = False
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    kind: TracedMessageType = TracedMessageType.COMMIT
    region: str = DEFAULT_REGION


TraceRecord = PublishTrace | ConsumeStartTrace | ConsumeEndTrace | TransactionEndTrace

# -- writing ----------------------------------------------------------------------------------------------------------


def encode(traces: Iterable[TraceRecord]) -> bytes:
    """Return the body of a trace message."""
    return "".join(_FIELD_END.join(map(_text, _fields(trace))) + _RECORD_END for trace in traces).encode(
        errors="replace"
    )


def trace_keys(traces: Iterable[TraceRecord]) -> list[str]:
    """Return the index keys of a trace message: ids and keys of the traced messages, each once."""
    found: dict[str, None] = {}
    for trace in traces:
        found[trace.message_id] = None
        found.update(dict.fromkeys(trace.keys.split()))
    return [key for key in found if key]


def _fields(trace: TraceRecord) -> tuple[object, ...]:
    t = trace
    if isinstance(t, PublishTrace):
        about = ("Pub", t.time_ms, t.region, t.group, t.topic, t.message_id, t.tags, t.keys, t.store_host)
        result = (t.body_bytes, t.cost_ms, int(t.kind), t.offset_id, t.is_success)
        return (*about, *result) if t.client_host is None else (*about, *result, t.client_host)
    if isinstance(t, ConsumeStartTrace):
        return "SubBefore", t.time_ms, t.region, t.group, t.request_id, t.message_id, t.retries, t.keys
    if isinstance(t, ConsumeEndTrace):
        ended = ("SubAfter", t.request_id, t.message_id, t.cost_ms, t.is_success, t.keys, int(t.code))
        return (*ended, t.time_ms, t.group)
    about = ("EndTransaction", t.time_ms, t.region, t.group, t.topic, t.message_id, t.tags, t.keys, t.store_host)
    return (*about, int(t.kind), t.transaction_id, t.state, t.from_check)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).translate(_BLANKS)


# -- reading ----------------------------------------------------------------------------------------------------------


def decode(body: bytes) -> list[TraceRecord]:
    """Return the records of a trace message that can be parsed."""
    return list(_parse_records(body.decode(errors="replace")))


def _parse_records(text: str) -> Iterator[TraceRecord]:
    for line in filter(None, text.split(_RECORD_END)):
        kind, *fields = line.split(_FIELD_END)
        read = _READERS.get(kind)
        if read is None:
            continue
        try:
            yield read(["" if field == "null" else field for field in fields])  # Java writes missing values as text
        except (ValueError, IndexError):
            continue


def _published(f: list[str]) -> PublishTrace:
    # Records before 4.3 have no offset id.
    offset_id, success = ("", f[11]) if len(f) == 12 else (f[11], f[12])
    return PublishTrace(
        time_ms=int(f[0]),
        region=f[1],
        group=f[2],
        topic=f[3],
        message_id=f[4],
        tags=f[5],
        keys=f[6],
        store_host=f[7],
        body_bytes=int(f[8]),
        cost_ms=int(f[9]),
        kind=TracedMessageType(int(f[10])),
        offset_id=offset_id,
        is_success=success == "true",
        client_host=f[13] if len(f) > 13 else None,
    )


def _consume_begun(f: list[str]) -> ConsumeStartTrace:
    return ConsumeStartTrace(
        time_ms=int(f[0]),
        region=f[1],
        group=f[2],
        request_id=f[3],
        message_id=f[4],
        retries=int(f[5]),
        keys=f[6] if len(f) > 6 else "",
    )


def _consume_ended(f: list[str]) -> ConsumeEndTrace:
    return ConsumeEndTrace(
        request_id=f[0],
        message_id=f[1],
        cost_ms=int(f[2]),
        is_success=f[3] == "true",
        keys=f[4] if len(f) > 4 else "",
        code=ConsumeReturnType(int(f[5])) if len(f) > 5 else ConsumeReturnType.SUCCESS,
        time_ms=int(f[6]) if len(f) > 6 else 0,
        group=f[7] if len(f) > 7 else "",
    )


def _transaction_ended(f: list[str]) -> TransactionEndTrace:
    return TransactionEndTrace(
        time_ms=int(f[0]),
        region=f[1],
        group=f[2],
        topic=f[3],
        message_id=f[4],
        tags=f[5],
        keys=f[6],
        store_host=f[7],
        kind=TracedMessageType(int(f[8])),
        transaction_id=f[9],
        state=f[10],
        from_check=f[11] == "true",
    )


_READERS: Mapping[str, Callable[[list[str]], TraceRecord]] = {
    "Pub": _published,
    "SubBefore": _consume_begun,
    "SubAfter": _consume_ended,
    "EndTransaction": _transaction_ended,
}

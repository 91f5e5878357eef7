"""Fuzz targets of the wire: any bytes give a value or the documented error, and two decoders of one format agree.

A target takes bytes and returns, or raises what it must not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from sparrow.model.errors import BadRequest, ProtocolError, Refused, SparrowError
from sparrow.wire import batch, binary_fields, bodies, columns, frame, headers, properties, record
from sparrow.wire.bodies import fastjson
from sparrow.wire.connection import Connection
from sparrow.wire.frame import RemotingCommand, Serialization

_COLUMNS = [name for name in columns.COLUMN_DECODERS if name != "decode_error"]
_HEADER_TYPES = sorted({*headers.REQUEST_HEADERS.values()}, key=lambda kind: kind.__name__)
_BODY_TYPES = [
    kind
    for name in bodies.__all__
    if isinstance(kind := getattr(bodies, name), type) and issubclass(kind, bodies.Body) and kind is not bodies.Body
]
T = TypeVar("T")


class Failed(msgspec.Struct, frozen=True):
    """The documented error of a decoder, in the place of its result."""

    kind: type[SparrowError]


def outcome(decode: Callable[[], T], *expected: type[SparrowError]) -> T | Failed:
    """Return what a decoder returns, or which of the expected errors it raised."""
    try:
        return decode()
    except expected as error:
        return Failed(expected[0] if len(expected) == 1 else type(error))


def frames(data: bytes) -> None:
    """Decode one frame, and the same bytes as a stream cut at any place."""
    whole = outcome(lambda: frame.decode(data), ProtocolError)
    cut = data[0] % (len(data) + 1) if data else 0
    stream = Connection()
    commands = stream.feed(data[:cut]) + stream.feed(data[cut:])
    if isinstance(whole, Failed):
        return
    assert [_comparable(command) for command in commands] == [_comparable(whole)], (commands, whole)
    fields = outcome(whole.fields, BadRequest)
    outcome(lambda: headers.read(headers.request_header_type(whole.code), whole.ext), BadRequest)
    if isinstance(fields, Failed):
        return
    for serialization in Serialization:
        again = msgspec.structs.replace(whole, ext=fields, serialization=serialization)
        encoded = outcome(lambda again=again: frame.encode(again), Refused)
        if not isinstance(encoded, Failed):
            frame.decode(encoded)


def _comparable(command: RemotingCommand) -> Any:
    ext = bytes(command.ext) if isinstance(command.ext, msgspec.Raw) else command.ext
    return msgspec.structs.astuple(msgspec.structs.replace(command, ext=None)), ext


def json_headers(data: bytes) -> None:
    """Read ext fields as a header, from JSON, from a mapping, and from the binary format: all agree."""
    kind = _HEADER_TYPES[data[0] % len(_HEADER_TYPES)] if data else _HEADER_TYPES[0]
    prefix = b'{"code":1,"extFields":'
    text = prefix + data[1:] + b"}"
    command = outcome(lambda: frame.decode_header_and_body(0, text, b""), ProtocolError)
    if isinstance(command, Failed):
        return
    from_json = outcome(lambda: headers.read(kind, command.ext), BadRequest)
    fields = outcome(command.fields, BadRequest)
    if isinstance(fields, Failed):
        return
    from_fields = outcome(lambda: headers.read(kind, fields), BadRequest)
    if isinstance(from_json, Failed) or isinstance(from_fields, Failed):
        assert isinstance(from_fields, Failed) or _has_more_than_text(command.ext), (from_json, from_fields, fields)
    elif not _has_more_than_text(command.ext):
        assert from_json == from_fields, (from_json, from_fields)
    if isinstance(from_fields, Failed):
        return
    assert headers.read(kind, headers.write(from_fields)) == from_fields
    packed = outcome(lambda: binary_fields.encode(fields), Refused)
    if not isinstance(packed, Failed):
        assert binary_fields.decode(packed) == {name: text for name, text in fields.items() if name and text}


def _has_more_than_text(ext: frame.ExtFields) -> bool:
    """Return whether JSON has numbers, booleans, nulls or repeated names, which the other formats cannot have."""
    try:
        return not all(isinstance(value, str) for value in msgspec.json.decode(ext, type=dict[str, Any]).values())
    except ValueError:
        return True


def binary_headers(data: bytes) -> None:
    """Decode binary ext fields, at once and one by one, and as the fields of a whole header."""
    first = outcome(lambda: binary_fields.decode(data), ProtocolError)
    again = outcome(lambda: binary_fields.decode(data), ProtocolError)  # by the layout that the first has kept
    assert first == again, (first, again)
    outcome(lambda: frame.decode_header_and_body(1, data, b""), ProtocolError)
    if not isinstance(first, Failed):
        assert binary_fields.decode(binary_fields.encode(first)) == first
        for kind in _HEADER_TYPES[:: max(1, len(_HEADER_TYPES) // 4)]:
            outcome(lambda kind=kind: headers.read(kind, first), BadRequest)


def request_bodies(data: bytes) -> None:
    """Read a body of any kind; what was read is written and read again without a change."""
    kind = _BODY_TYPES[data[0] % len(_BODY_TYPES)] if data else _BODY_TYPES[0]
    text = data[1:]
    value = outcome(lambda: bodies.read(kind, text), BadRequest)
    outcome(lambda: bodies.read_registration(text, is_compressed=bool(data[:1] < b"\x80")), BadRequest)
    if not isinstance(value, Failed):
        assert bodies.read(kind, bodies.write(value)) == value, value
    parsed = outcome(lambda: fastjson.parse(text), ProtocolError)
    plain = _plain_json(text)
    assert plain is None or not isinstance(parsed, Failed)


def _plain_json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None


def batches(data: bytes) -> None:
    """Decode the body of a batch send, and encode it again."""
    messages = outcome(lambda: batch.decode(data), ProtocolError)
    if not isinstance(messages, Failed):
        assert [message.properties for message in batch.decode(batch.encode(messages))] == [
            message.properties for message in messages
        ]


def records(data: bytes) -> None:
    """Decode records laid end to end by the quick loop and one by one: the same messages, or both refuse."""
    quick = outcome(lambda: record.decode_all(data), ProtocolError)
    slow = outcome(lambda: _one_by_one(data), ProtocolError)
    assert quick == slow, (quick, slow)
    list(record.decode_valid(data))
    outcome(lambda: record.draft_from_record(data), ProtocolError)


def _one_by_one(data: bytes) -> list[Any]:
    messages, at = [], 0
    while at < len(data):
        messages.append(record.decode(data, at))
        at += int.from_bytes(data[at : at + 4], "big")
    return messages


def record_columns(data: bytes) -> None:
    """Decode records to Arrow columns and to objects: the same values, or both refuse."""
    table = outcome(lambda: columns.decode(data, columns=_COLUMNS, verify_crc=True), ProtocolError)
    starts = outcome(lambda: columns.find_starts(data).tolist(), ProtocolError)
    messages = (
        starts
        if isinstance(starts, Failed)
        else outcome(lambda: [record.decode(data, at) for at in starts], ProtocolError)
    )
    assert isinstance(table, Failed) == isinstance(messages, Failed), (table, messages)
    if isinstance(table, Failed) or isinstance(messages, Failed):
        return
    table.validate(full=True)
    assert table["body"].to_pylist() == [message.body for message in messages]
    assert table["topic"].to_pylist() == [message.topic for message in messages]
    assert [dict(pairs) for pairs in table["properties"].to_pylist()] == [message.properties for message in messages]
    assert table["queue_offset"].to_pylist() == [message.queue_offset for message in messages]
    assert table["sys_flag"].to_pylist() == [message.sys_flag for message in messages]


def property_strings(data: bytes) -> None:
    """Decode a property string, and find single properties without decoding the others."""
    decoded = outcome(lambda: properties.decode(data), ProtocolError)
    if isinstance(decoded, Failed):
        return
    for name in {*decoded, "KEYS", "TAGS"}:
        assert properties.property_value(data, name) == decoded.get(name), name
        assert properties.has_property(data, name) or name not in decoded, name
    outcome(lambda: properties.decode(properties.set_properties(data, {"TAGS": "t"})), Refused)
    kept = outcome(lambda: properties.encode(decoded), Refused)
    if not isinstance(kept, Failed):
        assert properties.decode(kept) == decoded

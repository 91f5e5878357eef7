"""The JSON dialect of fastjson 1.x: integer keys without quotes, and maps with objects as keys.

    {"brokerAddrs":{0:"10.0.0.1:10911"}}
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}

1. `parse` accepts both, and plain JSON. An integer key becomes text, so both spellings are equal.
2. `emit` writes no spaces (Go splits routes by hand), integer keys in quotes (all clients accept them), object keys
   as objects (clients accept nothing else), and omits members that are None.
3. Nesting is limited: any text gives a value or a `ProtocolError`, in linear time and memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

import msgspec

from sparrow.model.errors import ProtocolError

_PIECE_MEMBERS = 1_000
NESTING_MAX = 64
"""The deepest known body has 6 levels."""

_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBER = re.compile(r"-?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,4})?")
_LITERALS = {"true": True, "false": False, "null": None}
_LITERAL = re.compile("true|false|null")

_INT_OR_TEXT = frozenset({str, int})
_NUMBERS = frozenset({int, float, bool})
_SCALARS = frozenset({str, int, float, bool})

_read_plain = msgspec.json.Decoder().decode
_read_string = msgspec.json.Decoder(str).decode
_write_plain = msgspec.json.Encoder().encode

ObjectKeyDecoder = Callable[[dict[str, Any]], Hashable]


def object_key(members: dict[str, Any]) -> Hashable:
    """Return a hashable key for an object: its members, sorted by name."""
    return tuple(sorted(members.items(), key=lambda member: member[0]))


def parse(text: bytes | memoryview, key_of: ObjectKeyDecoder = object_key) -> Any:
    """Decode a text. `key_of` converts an object that is used as a key."""
    try:
        return _read_plain(text)
    except (ValueError, RecursionError):
        pass  # not plain JSON: the dialect, or invalid
    try:
        return _Reader(str(text, "utf-8"), key_of).whole()
    except UnicodeDecodeError as cause:
        raise ProtocolError(f"the text is not UTF-8 at byte {cause.start}") from cause


def emit(value: Any) -> bytes:
    """Encode a value as compact text. Structs become objects with their wire names."""
    try:
        return _write_plain(_plain(value))
    except _ObjectKeyFound:
        return _emit(value)
    except UnicodeEncodeError as cause:
        raise ProtocolError("a text contains an unpaired surrogate") from cause


class _ObjectKeyFound(Exception):
    """A map has keys that plain JSON does not have."""


def _plain(value: Any) -> Any:
    """Return the value in a form that msgspec writes as we do. Parts that have this form already are not copied."""
    kind: type = type(value)
    if _is_scalar_or_flat(kind):
        return value
    if isinstance(value, msgspec.Struct):
        return {name: _plain(member) for name, member in _members(value)}
    if isinstance(value, Mapping):
        if not _INT_OR_TEXT.issuperset(map(type, value)):
            raise _ObjectKeyFound
        if len(value) > _PIECE_MEMBERS and not _SCALARS.issuperset(map(type, value.values())):
            return _in_pieces(value)
        return {key: _plain(member) for key, member in value.items()} if _has_parts(value.values()) else dict(value)
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(_plain, value)) if _has_parts(value) else value
    return value


def _in_pieces(value: Mapping[Any, Any]) -> msgspec.Raw:
    """Encode a large map piece by piece: while msgspec encodes, no other thread runs."""
    members = iter(value.items())
    pieces = []
    while piece := {key: _plain(member) for key, member in islice(members, _PIECE_MEMBERS)}:
        pieces.append(_write_plain(piece)[1:-1])
    return msgspec.Raw(b"{%b}" % b",".join(pieces))


def _has_parts(values: Collection[Any]) -> bool:
    """Return whether some of the values have members themselves. There may be 65,536 values, and many callers wait."""
    return not all(map(_is_scalar_or_flat, set(map(type, values))))


def _members(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Return the members that are written, by their names on the wire."""
    fields = zip(value.__struct_encode_fields__, msgspec.structs.astuple(value), strict=True)
    return ((name, member) for name, member in fields if member is not None)


def _emit(value: Any) -> bytes:
    """Encode a value that contains maps with objects as keys."""
    if isinstance(value, msgspec.Struct):
        if _is_scalar_or_flat(type(value)):
            return _write_plain(value)
        return b"{%b}" % b",".join(b"%b:%b" % (_write_plain(name), _emit(member)) for name, member in _members(value))
    if isinstance(value, Mapping):
        members = zip(_emit_each(value, _emit_key), _emit_each(value.values(), _emit), strict=True)
        return b"{%b}" % b",".join(map(b"%b:%b".__mod__, members))
    if isinstance(value, list | tuple | set | frozenset):
        return b"[%b]" % b",".join(_emit_each(value, _emit))
    return _write_plain(value)


def _emit_each(values: Collection[Any], emit_one: Callable[[Any], bytes]) -> Iterator[bytes]:
    """Encode many values or keys; of those, integers are written as texts."""
    kinds = set(map(type, values))
    is_simple = all(map(_is_scalar_or_flat, kinds)) and (emit_one is _emit or kinds.isdisjoint(_NUMBERS))
    return map(_write_plain if is_simple else emit_one, values)


@cache
def _is_scalar_or_flat(kind: type) -> bool:
    """Return whether this is a scalar, or a struct of scalars: msgspec writes it as we do, and far faster."""
    if not issubclass(kind, msgspec.Struct):
        return kind in _SCALARS
    config = kind.__struct_config__
    if config.omit_defaults or config.array_like or config.tag is not None:
        return False
    return {field.type for field in msgspec.structs.fields(kind)} <= _SCALARS


def _emit_key(key: Any) -> bytes:
    if isinstance(key, tuple):
        return _emit(dict(key))
    return _emit(key) if isinstance(key, msgspec.Struct) else _write_plain(str(key))


class _Reader:
    """A recursive-descent parser of one text."""

    def __init__(self, text: str, key_of: ObjectKeyDecoder) -> None:
        self._text, self._key_of, self._at = text, key_of, 0

    def whole(self) -> Any:
        value = self._value(0)
        if self._peek():
            raise self._wrong("the end")
        return value

    def _value(self, depth: int) -> Any:
        if depth > NESTING_MAX:
            raise ProtocolError(f"the text nests deeper than {NESTING_MAX} levels")
        match self._peek():
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"':
                return self._string()
            case "t" | "f" | "n":
                return _LITERALS[self._match(_LITERAL, "true, false or null")]
            case _:
                return self._number()

    def _object(self, depth: int) -> dict[Hashable, Any]:
        self._at += 1
        members: dict[Hashable, Any] = {}
        if self._skip("}"):
            return members
        while True:
            key = self._key(depth)
            if not self._skip(":"):
                raise self._wrong("':'")
            try:
                members[key] = self._value(depth + 1)
            except TypeError as cause:  # a key whose members are lists or maps
                raise ProtocolError("a map has a key that is not hashable") from cause
            if self._skip("}"):
                return members
            if not self._skip(","):
                raise self._wrong("',' or '}'")

    def _key(self, depth: int) -> Hashable:
        match self._peek():
            case '"':
                return self._string()
            case "{":
                if depth >= NESTING_MAX:
                    raise ProtocolError(f"the text nests deeper than {NESTING_MAX} levels")
                members = self._object(depth + 1)
                if not all(isinstance(name, str) for name in members):
                    raise self._wrong("a key without maps in it")
                return self._key_of(members)  # type: ignore[arg-type]  # just checked
            case _:
                return str(self._number())

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        items: list[Any] = []
        if self._skip("]"):
            return items
        while True:
            items.append(self._value(depth + 1))
            if self._skip("]"):
                return items
            if not self._skip(","):
                raise self._wrong("',' or ']'")

    def _string(self) -> str:
        start = self._at
        try:
            return _read_string(self._match(_STRING, "a text").encode())
        except ValueError as cause:
            raise ProtocolError(f"the text at character {start} is damaged: {cause}") from cause

    def _number(self) -> int | float:
        written = self._match(_NUMBER, "a value")
        return int(written) if written.lstrip("-").isdigit() else float(written)

    def _peek(self) -> str:
        """Return the next character that is not blank, or an empty string at the end."""
        self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]  # always matches, perhaps an empty string
        return self._text[self._at : self._at + 1]

    def _skip(self, mark: str) -> bool:
        found = self._peek() == mark
        self._at += found
        return found

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._wrong(what)
        self._at = found.end()
        return found.group()

    def _wrong(self, wanted: str) -> ProtocolError:
        return ProtocolError(f"{wanted} is missing at character {self._at} of the text")

"""Encode and decode the ext fields of a binary header: 2 + n bytes of name, 4 + n bytes of value, repeated.

A client sends the same fields again and again, in the same order and mostly with the same lengths. The layout of fields
that were decoded one by one is kept as a `Struct`, which cuts the next ones in one call: names and lengths come out
between the values and are compared, so that a layout that does not fit is noticed. One by one takes four times as long.

1. Any bytes give fields or a `ProtocolError`; the way they are decoded does not change the result.
2. An empty name or value means none, as in Java's `RocketMQSerializable`.
3. The number of layouts that are kept is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from sparrow.model.errors import ProtocolError, TooLarge

_SHORT, _INT = Struct(">h"), Struct(">i")
_pack_int = _INT.pack
_NAME_BYTES_MAX = 0x7FFF

_LAYOUTS_MAX = 512
_LAYOUT_FIELDS_MAX = 32
_KEY_BYTES = 48
"""How many bytes of the fields, beside their length, choose a layout: the group and the topic of a send."""


class _Layout(NamedTuple):
    """Names and lengths of fields in their order."""

    struct: Struct
    """Cuts the fields into items: lengths and name of a field, its value, and so on."""
    names_and_lengths: tuple[bytes, ...]
    names: list[str]


_layouts: dict[tuple[int, bytes], _Layout] = {}


def decode(data: bytes) -> dict[str, str]:
    """Return the fields, without empty ones."""
    layout = _layouts.get((len(data), data[:_KEY_BYTES]))
    if layout is not None:
        items = layout.struct.unpack(data)
        if items[::2] == layout.names_and_lengths:
            try:
                return dict(zip(layout.names, [value.decode() for value in items[1::2]], strict=True))
            except UnicodeDecodeError as cause:
                raise _not_utf8() from cause
    return _decode_one_by_one(data)


def _decode_one_by_one(data: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    items: list[tuple[bytes, int]] = []
    at, end = 0, len(data)
    try:
        while at < end:
            value_at = at + 6 + _SHORT.unpack_from(data, at)[0]
            next_at = value_at + _INT.unpack_from(data, value_at - 4)[0]
            if not at + 6 <= value_at <= next_at <= end:
                raise ProtocolError(f"the ext field at byte {at} exceeds the {end} bytes of ext fields")
            name, value = data[at + 2 : value_at - 4].decode(), data[value_at:next_at].decode()
            if name and value:
                fields[name] = value
            items.append((data[at:value_at], next_at - value_at))
            at = next_at
    except StructError as cause:
        raise ProtocolError("the ext fields of the binary header are truncated") from cause
    except UnicodeDecodeError as cause:
        raise _not_utf8() from cause
    if len(fields) == len(items) <= _LAYOUT_FIELDS_MAX:  # no empty and no repeated field
        _keep_layout(data, items, list(fields))
    return fields


def _keep_layout(data: bytes, items: list[tuple[bytes, int]], names: list[str]) -> None:
    if len(_layouts) >= _LAYOUTS_MAX:
        _layouts.clear()
    struct = Struct("".join(f"{len(start)}s{value_bytes}s" for start, value_bytes in items))
    _layouts[len(data), data[:_KEY_BYTES]] = _Layout(struct, tuple(start for start, _ in items), names)


def _not_utf8() -> ProtocolError:
    return ProtocolError("the binary header contains text that is not UTF-8")


def encode(fields: Mapping[str, str]) -> bytes:
    """Return the bytes of the fields, without empty ones."""
    parts: list[bytes] = []
    for name, text in fields.items():
        if name and text:
            value = text.encode()
            parts += (_encode_name(name), _pack_int(len(value)), value)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _encode_name(name: str) -> bytes:
    encoded = name.encode()
    if len(encoded) > _NAME_BYTES_MAX:
        raise TooLarge("the name of an ext field", len(encoded), _NAME_BYTES_MAX)
    return _SHORT.pack(len(encoded)) + encoded

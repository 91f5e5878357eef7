"""Property strings: `name 0x01 value 0x02`, repeated.

Readers follow Java's: the first 0x01 of an entry parts name from value, the last 0x02 may be missing, an entry without
a separator, name or value is passed over, and of two entries with one name the later counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from sparrow.model.errors import ProtocolError, Refused, TooLarge

PROPERTIES_BYTES_MAX = 32767
"""A record keeps their length in a signed short."""

NAME_SEPARATOR, VALUE_SEPARATOR = "\x01", "\x02"


def encode(properties: Mapping[str, str]) -> bytes:
    """The property string of a mapping. Entries that no reader would see are not written."""
    parts = []
    for name, value in properties.items():
        if not name or not value:
            continue
        if NAME_SEPARATOR in name or VALUE_SEPARATOR in name or VALUE_SEPARATOR in value:
            raise Refused(f"property {name!r} holds a separator (U+0001 or U+0002), which would cut it in two")
        parts.append(f"{name}\x01{value}\x02")
    try:
        encoded = "".join(parts).encode()
    except UnicodeEncodeError as cause:
        raise Refused("a property holds half of a surrogate pair, which is not text") from cause
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise TooLarge("the property string", len(encoded), PROPERTIES_BYTES_MAX)
    return encoded


def decode(encoded: bytes | memoryview) -> dict[str, str]:
    """The mapping a property string stands for."""
    try:
        text = str(encoded, "utf-8")
    except UnicodeDecodeError as cause:
        raise ProtocolError(f"properties are not UTF-8 at byte {cause.start}") from cause
    found = {}
    for entry in text.split(VALUE_SEPARATOR):
        name, _, value = entry.partition(NAME_SEPARATOR)
        if name and value:
            found[name] = value
    return found


@lru_cache(maxsize=1024)
def _name_mark(name: str) -> bytes:
    """Return the name as it stands in a property string, up to its value."""
    return name.encode() + b"\x01"


def has_property(encoded: bytes, name: str) -> bool:
    """Whether there is such a property: a quick look, on the broker's hot path."""
    mark = _name_mark(name)
    at = encoded.find(mark)
    while at > 0 and encoded[at - 1] != 2:
        at = encoded.find(mark, at + 1)
    return at >= 0


def property_value(encoded: bytes, name: str) -> str | None:
    """One property, without decoding the others: the broker's quick look at TAGS or KEYS."""
    mark = _name_mark(name)
    found: str | None = None
    at = encoded.find(mark)
    while at >= 0:
        if at == 0 or encoded[at - 1] == 2:
            start = at + len(mark)
            end = encoded.find(b"\x02", start)
            value = encoded[start:] if end < 0 else encoded[start:end]
            if value:
                try:
                    found = value.decode()
                except UnicodeDecodeError as cause:
                    raise ProtocolError(f"property {name} is not UTF-8") from cause
        at = encoded.find(mark, at + 1)
    return found


def set_properties(encoded: bytes, values: Mapping[str, str]) -> bytes:
    """The string with these properties set: of two entries with one name the later counts, so they go to the end.

    An empty value stands for none; an earlier entry of that name is then taken out.
    """
    gone = [name for name in values if f"{name}\x01".encode() in encoded]
    if gone:
        kept = decode(encoded)
        for name in gone:
            kept.pop(name, None)
        encoded = encode(kept)
    elif encoded and encoded[-1] != 2:
        encoded += b"\x02"
    return encoded + encode(values)


def parse_whole_number(text: str | bytes | None) -> int | None:
    """Return the number in a property's value, or None if it is no decimal number below 10^18."""
    return int(text) if text and text.isdigit() and text.isascii() and len(text) < 19 else None

"""Encode and decode property strings: `name 0x01 value 0x02`, repeated.

The rules are Java's: the first 0x01 of an entry separates name and value, the last 0x02 may be missing, an entry
without a separator, name or value is ignored, and of two entries with one name the later one wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from sparrow.model.errors import ProtocolError, Refused, TooLarge

PROPERTIES_BYTES_MAX = 32767
"""A record stores the length in a signed short."""

NAME_SEPARATOR, VALUE_SEPARATOR = "\x01", "\x02"


def encode(properties: Mapping[str, str]) -> bytes:
    """Encode a mapping. Entries that readers would ignore are not written."""
    parts = []
    for name, value in properties.items():
        if not name or not value:
            continue
        if NAME_SEPARATOR in name or VALUE_SEPARATOR in name or VALUE_SEPARATOR in value:
            raise Refused(f"property {name!r} contains a separator (U+0001 or U+0002), which would split it")
        parts.append(f"{name}\x01{value}\x02")
    try:
        encoded = "".join(parts).encode()
    except UnicodeEncodeError as cause:
        raise Refused("a property contains an unpaired surrogate, which is not valid text") from cause
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise TooLarge("the property string", len(encoded), PROPERTIES_BYTES_MAX)
    return encoded


def decode(encoded: bytes | memoryview) -> dict[str, str]:
    """Decode a property string."""
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
    """Return whether a property is set, without decoding the string (hot path)."""
    mark = _name_mark(name)
    at = encoded.find(mark)
    while at > 0 and encoded[at - 1] != 2:
        at = encoded.find(mark, at + 1)
    return at >= 0


def property_bytes(encoded: bytes, name: str) -> bytes:
    """Return one property in bytes, without decoding the others (hot path); empty if it is not set."""
    mark = _name_mark(name)
    found = b""
    at = encoded.find(mark)
    while at >= 0:
        if at == 0 or encoded[at - 1] == 2:
            start = at + len(mark)
            end = encoded.find(b"\x02", start)
            found = (encoded[start:] if end < 0 else encoded[start:end]) or found
        at = encoded.find(mark, at + 1)
    return found


def property_value(encoded: bytes, name: str) -> str | None:
    """Return one property without decoding the others (hot path); None if it is not set."""
    value = property_bytes(encoded, name)
    try:
        return value.decode() or None
    except UnicodeDecodeError as cause:
        raise ProtocolError(f"property {name} is not UTF-8") from cause


def property_text(encoded: bytes, name: str) -> str | None:
    """Return one property to be shown: what is not UTF-8 is replaced; None if it is not set."""
    return property_bytes(encoded, name).decode("utf-8", "replace") or None


def set_properties(encoded: bytes, values: Mapping[str, str]) -> bytes:
    """Return the property string with these properties set, at its end.

    An empty value removes the property.
    """
    replaced = [name for name in values if f"{name}\x01".encode() in encoded]
    if replaced:
        kept = decode(encoded)
        for name in replaced:
            kept.pop(name, None)
        encoded = encode(kept)
    elif encoded and encoded[-1] != 2:
        encoded += b"\x02"
    return encoded + encode(values)


def parse_whole_number(text: str | bytes | None) -> int | None:
    """Return the number in a property's value, or None if it is no decimal number below 10^18."""
    return int(text) if text and text.isdigit() and text.isascii() and len(text) < 19 else None

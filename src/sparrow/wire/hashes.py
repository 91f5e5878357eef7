"""Java's `String.hashCode`, which tags and index keys are filed under."""

from __future__ import annotations

from functools import lru_cache

from sparrow.model.protocol import PROPERTY_TAGS
from sparrow.wire.properties import property_value


@lru_cache(maxsize=8192)
def java_hash(text: str) -> int:
    """`h = 31 * h + unit` over UTF-16 units, as a signed 32-bit integer."""
    code = 0
    if text.isascii():
        for unit in text.encode():
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
            code = (31 * code + unit) & 0xFFFFFFFF
    return code - 0x1_0000_0000 if code & 0x8000_0000 else code


def tags_code(tags: str | None) -> int:
    """What a consume queue keeps for a tag; 0 stands for no tag."""
    return java_hash(tags) if tags else 0


def tags_code_in(properties: bytes) -> int:
    """The tags code of a record with these properties: the broker's quick look, without decoding them."""
    at = properties.find(b"TAGS\x01")
    if at < 0:
        return 0
    if (at == 0 or properties[at - 1] == 2) and properties.find(b"TAGS\x01", at + 5) < 0:
        end = properties.find(b"\x02", at + 5)
        return _code_of(properties[at + 5 :] if end < 0 else properties[at + 5 : end])
    return tags_code(property_value(properties, PROPERTY_TAGS))


@lru_cache(maxsize=8192)
def _code_of(tags: bytes) -> int:
    return tags_code(tags.decode())


def index_hash(topic: str, key: str) -> int:
    """The hash a key is filed under in the key index: never negative, and -2^31 becomes 0 as Java's abs does not."""
    code = java_hash(f"{topic}#{key}")
    return 0 if code == -0x8000_0000 else abs(code)

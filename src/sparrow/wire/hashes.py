"""Java's `String.hashCode`, for the tags codes of consume queues and the hashes of the key index."""

from __future__ import annotations

from functools import lru_cache

from sparrow.model.protocol import PROPERTY_TAGS
from sparrow.wire.properties import property_value


@lru_cache(maxsize=8192)
def java_hash(text: str) -> int:
    """Return `h = 31 * h + unit` over the UTF-16 units, as a signed 32-bit integer."""
    code = 0
    if text.isascii():
        for unit in text.encode():
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
            code = (31 * code + unit) & 0xFFFFFFFF
    return code - 0x1_0000_0000 if code & 0x8000_0000 else code


def tags_code(tags: str | None) -> int:
    """Return the tags code of a consume-queue entry; 0 without a tag."""
    return java_hash(tags) if tags else 0


def tags_code_in(properties: bytes) -> int:
    """Return the tags code of a property string without decoding all of it (hot path)."""
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
    """Return the hash of a key in the key index. It is not negative; -2^31 becomes 0, which Java's abs leaves as is."""
    code = java_hash(f"{topic}#{key}")
    return 0 if code == -0x8000_0000 else abs(code)

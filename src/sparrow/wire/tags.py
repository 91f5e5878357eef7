"""Java's `String.hashCode`, which tags and index keys are filed under."""

from __future__ import annotations

from functools import lru_cache


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


def index_hash(topic: str, key: str) -> int:
    """The hash a key is filed under in the key index: never negative, and -2^31 becomes 0 as Java's abs does not."""
    code = java_hash(f"{topic}#{key}")
    return 0 if code == -0x8000_0000 else abs(code)

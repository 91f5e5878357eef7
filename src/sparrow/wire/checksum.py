"""The CRC-32 of a body, as records store it."""

try:  # the same checksum, several times faster; there are wheels for common platforms
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover
    from zlib import crc32

__all__ = ["body_crc", "crc32"]


def body_crc(body: bytes | memoryview) -> int:
    """Return 31 bits of the CRC-32, because Java masks the sign bit."""
    return crc32(body) & 0x7FFFFFFF

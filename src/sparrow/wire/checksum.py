"""The CRC-32 of a body, as records store it."""

try:  # the same checksum, several times faster; there are wheels for common platforms
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover
    from zlib import crc32

__all__ = ["CRC_MASK", "body_crc", "crc32"]

CRC_MASK = 0x7FFF_FFFF
"""Java masks the sign bit."""


def body_crc(body: bytes | memoryview) -> int:
    """Return 31 bits of the CRC-32."""
    return crc32(body) & CRC_MASK

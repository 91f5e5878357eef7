"""The CRC-32 of a body, as records keep it."""

try:  # the same checksum, several times quicker; wheels exist for the usual platforms
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover
    from zlib import crc32

__all__ = ["body_crc", "crc32"]


def body_crc(body: bytes | memoryview) -> int:
    """31 bits, because Java's reader compares it as a signed int with the sign masked away."""
    return crc32(body) & 0x7FFFFFFF

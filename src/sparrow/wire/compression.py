"""Compress and decompress bodies. Bits of the record's sys flag say how; brokers do not decompress."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum

from sparrow.extras import require
from sparrow.model.errors import ProtocolError

COMPRESSED_FLAG = 0x1
COMPRESSION_TYPE_MASK = 0x700
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Limit of a decompressed body, against decompression bombs."""
_ZSTD_WINDOW_MAX = 1 << 27
_ZSTD_PIECE_BYTES = 256


class Compression(IntEnum):
    """The compression types in the sys flag. Old clients write zlib without type bits."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def compress(body: bytes, kind: Compression = Compression.ZLIB, *, level: int = 5) -> tuple[bytes, int]:
    """Return the compressed body and its sys-flag bits."""
    if kind is Compression.ZLIB:
        # No type bits: RocketMQ up to 4.9.3, and Go, know zlib only without them.
        return zlib.compress(body, level), COMPRESSED_FLAG
    if kind is Compression.LZ4:
        _require_package("lz4")
        import lz4.frame

        return lz4.frame.compress(body), COMPRESSED_FLAG | kind
    _require_package("zstandard")
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(body), COMPRESSED_FLAG | kind


def decompress(body: bytes, sys_flag: int, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> tuple[bytes, int]:
    """Return the decompressed body and the sys flag without compression bits."""
    kind = sys_flag & COMPRESSION_TYPE_MASK or Compression.ZLIB
    expand = _EXPAND.get(kind)
    if expand is None:
        raise ProtocolError(f"unknown compression type {kind >> 8}")
    expanded = expand(body, limit_bytes)
    return expanded, sys_flag & ~(COMPRESSED_FLAG | COMPRESSION_TYPE_MASK)


def _require_package(name: str) -> None:
    require(name, extra="compression", for_=f"a body compressed with {'LZ4' if name == 'lz4' else 'Zstandard'}")


def _expand_zlib(body: bytes, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        expanded = stream.decompress(body, limit_bytes)
    except zlib.error as cause:
        raise ProtocolError(f"the body is not a valid zlib stream: {cause}") from cause
    return _whole(expanded, stream.eof, stream.unconsumed_tail, limit_bytes)


def _expand_lz4(body: bytes, limit_bytes: int) -> bytes:
    _require_package("lz4")
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        expanded = stream.decompress(body, limit_bytes)
    except (RuntimeError, ValueError) as cause:
        raise ProtocolError(f"the body is not a valid LZ4 frame: {cause}") from cause
    return _whole(expanded, stream.eof, b"more" if not stream.needs_input else b"", limit_bytes)


def _expand_zstd(body: bytes, limit_bytes: int) -> bytes:
    _require_package("zstandard")
    import zstandard

    stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).decompressobj()
    parts, taken = [], 0
    try:
        # A call has no output limit, so the input is fed in small pieces with limited output.
        for at in range(0, len(body), _ZSTD_PIECE_BYTES):
            parts.append(stream.decompress(body[at : at + _ZSTD_PIECE_BYTES]))
            taken += len(parts[-1])
            if stream.eof or taken > limit_bytes:
                break
    except (zstandard.ZstdError, MemoryError) as cause:
        raise ProtocolError(f"the body is not a valid Zstandard frame: {cause}") from cause
    return _whole(b"".join(parts), stream.eof, b"", limit_bytes)


def _whole(expanded: bytes, at_end: bool, rest: bytes, limit_bytes: int) -> bytes:
    if len(expanded) > limit_bytes or (rest and len(expanded) >= limit_bytes):
        raise ProtocolError(f"the decompressed body is larger than {limit_bytes} bytes")
    if not at_end:
        raise ProtocolError("the compressed body is truncated")
    return expanded


_EXPAND: dict[int, Callable[[bytes, int], bytes]] = {
    Compression.ZLIB: _expand_zlib,
    Compression.LZ4: _expand_lz4,
    Compression.ZSTD: _expand_zstd,
}

"""Java's `String.hashCode` of whole columns: `hashes.java_hash` for all rows at once.

With u the UTF-16 units of all rows in sequence, S(k) the sum of u[i] / 31^i for i < k, and a row at a..b:

    hash = u[a] * 31^(b-a-1) + ... + u[b-1]  =  (S(b) - S(a)) * 31^(b-1)        modulo 2^32

31 is odd, so it has an inverse modulo 2^32, and one cumulative sum serves all rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparrow.model.errors import ProtocolError
from sparrow.wire.columns.layout import Ints, data_and_offsets

UInts32 = NDArray[np.uint32]

_UNITS_AT_ONCE = 1 << 16
"""Units hashed at once: the two tables of powers stay in the CPU cache."""
_SAME_WIDTH_MAX = 64
_INVERSE = pow(31, -1, 1 << 32)


def java_hashes(strings: Any) -> NDArray[np.int32]:
    """Return the hash of each row of a string or UTF-8 binary array, or of a pair (buffer, offsets). Null is ""."""
    return hashes_and_units(strings)[0].view(np.int32)


def hashes_and_units(strings: Any) -> tuple[UInts32, Ints]:
    """Return the hashes and the number of UTF-16 units of each row."""
    units, bounds = _utf16(*_bytes_of(strings))
    width = int(bounds[1]) if len(bounds) > 1 else 0
    if 0 < width <= _SAME_WIDTH_MAX and len(units) == width * (len(bounds) - 1) and (np.diff(bounds) == width).all():
        return _hashes_of_width(units, width), np.full(len(bounds) - 1, width)
    hashes = np.empty(len(bounds) - 1, np.uint32)
    row = 0
    while row < len(hashes):
        stop = int(np.searchsorted(bounds, bounds[row] + _UNITS_AT_ONCE, "right")) - 1
        stop = max(stop, row + 1)
        hashes[row:stop] = _hashes(units, bounds[row : stop + 1])
        row = stop
    return hashes, np.diff(bounds)


def concat_hashes(prefix: UInts32, suffix: UInts32, suffix_units: Ints) -> UInts32:
    """Return the hash of each prefix + suffix from their hashes: hash(p + s) = hash(p) * 31^len(s) + hash(s)."""
    if not len(suffix):
        return suffix
    powers, _ = _tables(int(suffix_units.max()).bit_length())
    return prefix * powers[suffix_units] + suffix


def _hashes(units: NDArray[Any], bounds: Ints) -> UInts32:
    first, last = int(bounds[0]), int(bounds[-1])
    bounds = bounds - first
    powers, inverses = _tables((last - first).bit_length())
    sums = np.zeros(last - first + 1, np.uint32)
    np.cumsum(units[first:last] * inverses[: last - first], out=sums[1:], dtype=np.uint32)
    at_bounds = sums[bounds]
    return (at_bounds[1:] - at_bounds[:-1]) * (powers[bounds[1:]] * np.uint32(_INVERSE))


def _hashes_of_width(units: NDArray[Any], width: int) -> UInts32:
    """Hash rows of one width, such as unique ids: a product with the powers of 31."""
    powers = _tables((width - 1).bit_length())[0][:width][::-1]
    hashes: UInts32 = np.einsum("ij,j->i", units.reshape(-1, width).astype(np.uint32), powers)
    return hashes


def _tables(bits: int) -> tuple[UInts32, UInts32]:
    """Return the powers of 31 and of its inverse for exponents of `bits` bits. Very large tables are not cached."""
    return _kept_tables(bits) if 1 << bits <= 2 * _UNITS_AT_ONCE else _new_tables(bits)


def _new_tables(bits: int) -> tuple[UInts32, UInts32]:
    powers, inverses = np.full((2, 1 << bits), 31, np.uint32)
    inverses[:] = _INVERSE
    powers[0] = inverses[0] = 1
    return np.cumprod(powers, dtype=np.uint32), np.cumprod(inverses, dtype=np.uint32)


_kept_tables = lru_cache(maxsize=None)(_new_tables)


def _bytes_of(strings: Any) -> tuple[NDArray[np.uint8], Ints]:
    if isinstance(strings, tuple):
        buffer, offsets = strings
        offsets = np.asarray(offsets, np.int64)
        if not len(buffer):
            return np.empty(0, np.uint8), offsets - offsets[0]
        return np.frombuffer(buffer, np.uint8)[offsets[0] : offsets[-1]], offsets - offsets[0]
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    if pa.types.is_large_string(strings.type) or pa.types.is_large_binary(strings.type):
        strings = strings.cast(pa.binary())
    if strings.null_count:  # there may be bytes under a null, which fill_null drops
        strings = strings.fill_null(b"" if pa.types.is_binary(strings.type) else "")
    data, offsets = data_and_offsets(strings)
    return data, offsets.astype(np.int64)


def _utf16(data: NDArray[np.uint8], bounds: Ints) -> tuple[NDArray[Any], Ints]:
    """Return the UTF-16 units of the bytes, and the bounds in units."""
    if not len(data) or data.max() < 0x80:
        return data, bounds
    try:
        units = np.frombuffer(data.tobytes().decode().encode("utf-16-le"), "<u2")
    except UnicodeDecodeError as cause:
        raise ProtocolError(f"text to be hashed is not UTF-8 at byte {cause.start}") from cause
    # One unit for each first byte of a character, and a second one for characters of four bytes.
    before = np.zeros(len(data) + 1, np.int64)
    np.cumsum(((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0), out=before[1:])
    return units, before[bounds]

"""The positions and headers of many records as NumPy arrays, and slices of bytes as Arrow arrays.

The columnar codec is built on two techniques:

1. A view of items at *every* byte of a buffer (stride 1) reads one field of N records with one fancy index, and writes
   it with one fancy assignment.
2. A binary array needs only ascending offsets, so [start, end, next start, ...] over the original bytes is a binary
   array without a copy; `take` of every second slot copies N slices in C++. Binary views are the alternative.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from mmap import mmap
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.model.errors import ProtocolError
from sparrow.wire.record import (
    BORN_HOST_IPV6_FLAG,
    FIXED_HEADER_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_IPV6_FLAG,
)
from sparrow.wire.record import decode as decode_one

BytesLike: TypeAlias = bytes | bytearray | memoryview | mmap
"""Anything with the buffer protocol, including `pa.Buffer` and NumPy arrays of bytes."""
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Items: TypeAlias = NDArray[Any]


@cache
def header_dtype(born_host_bytes: int = 8, store_host_bytes: int = 8) -> np.dtype[Any]:
    """Return the dtype of the fixed fields of a record with hosts of these sizes (see the table in `record`)."""
    return np.dtype(
        [
            ("size", ">i4"),
            ("magic", ">i4"),
            ("crc", ">u4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("physical_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_ms", ">i8"),
            ("born_host", f"V{born_host_bytes}"),
            ("store_ms", ">i8"),
            ("store_host", f"V{store_host_bytes}"),
            ("reconsume_times", ">i4"),
            ("prepared_offset", ">i8"),
            ("body_bytes", ">i4"),
        ]
    )


HEADER_DTYPE = header_dtype()
"""The header of a record whose hosts are IPv4."""
assert HEADER_DTYPE.itemsize == FIXED_HEADER_BYTES

QUEUE_ENTRY_DTYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
"""One entry of a consume queue."""
assert QUEUE_ENTRY_DTYPE.itemsize == 20

IPV6_EXTRA_BYTES = 12
BATCH_BYTES_MAX = 0x7FFF_FFFF
"""Limit of Arrow's 32-bit offsets, and of the decompressed bodies of one batch."""

_SIZE_AND_MAGIC = Struct(">ii")


def unaligned_view(buf: BytesLike, dtype: Any, offset: int = 0) -> Items:
    """Return a view of items of `dtype` at every byte from `offset` on: index it to gather, assign to scatter."""
    dtype = np.dtype(dtype)
    count = len(buf) - offset - dtype.itemsize + 1
    if count <= 0:
        return np.empty(0, dtype)
    return np.ndarray((count,), dtype, buf, offset, (1,))


def starts_from_sizes(sizes: Any) -> Ints:
    """Return the starts of records of these sizes that are laid end to end."""
    sizes = np.asarray(sizes, np.int64)
    starts = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    return starts


def find_starts(buf: BytesLike, start: int = 0, end: int | None = None, *, strict: bool = True) -> Ints:
    """Return the starts of the records from `start` on, following their sizes.

    Stops at a blank record and at an incomplete last record. Other bytes raise `ProtocolError`, or end the walk with
    `strict=False`, which recovery uses.
    """
    view = buf if isinstance(buf, bytes) else byte_view(buf)
    end = len(view) if end is None else min(end, len(view))
    # A loop, because each start depends on the one before; fromiter consumes the generator without a list.
    return np.fromiter(_walk(view, max(start, 0), end, strict), np.int64)


def _walk(view: bytes | memoryview, at: int, end: int, strict: bool) -> Iterator[int]:
    unpack, v1, v2, smallest = _SIZE_AND_MAGIC.unpack_from, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
    last = end - 8
    while at <= last:
        size, magic = unpack(view, at)
        if (magic != v1 and magic != v2) or size < smallest:
            if strict and magic != MAGIC_BLANK:
                raise ProtocolError(f"no record starts at byte {at}: size {size}, magic {magic & 0xFFFFFFFF:#010x}")
            return
        following = at + size
        if following > end:
            return
        yield at
        at = following


def byte_view(buf: BytesLike) -> memoryview:
    """Return the buffer as a memoryview of bytes."""
    view = memoryview(buf)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class RecordParts(NamedTuple):
    """The positions of the parts of N records. Those of an invalid record have no meaning."""

    view: memoryview
    starts: Ints
    header: Items
    sys_flag: NDArray[np.int32]
    is_sound: Bools
    born_extra: Ints | None
    """Shift of the fields after the born host, compared with `HEADER_DTYPE`; None if no host is IPv6."""
    store_extra: Ints | None
    """Shift of the fields after the store host."""
    body_at: Ints
    topic_length_at: Ints
    """Also the end of the body."""
    topic_at: Ints
    topic_end: Ints
    properties_at: Ints
    end: Ints

    def field(self, name: str) -> Items:
        """Return one fixed field of all records, in native byte order."""
        dtype, at = HEADER_DTYPE.fields[name][:2]  # type: ignore[index]
        extra = self.store_extra if at > _AT_STORE_HOST else self.born_extra if at > _AT_BORN_HOST else None
        column = self.header[name] if extra is None else unaligned_view(self.view, dtype)[self.starts + (at + extra)]
        return column.astype(dtype.newbyteorder("="))


_AT_BORN_HOST: int = HEADER_DTYPE.fields["born_host"][1]  # type: ignore[index]
_AT_STORE_HOST: int = HEADER_DTYPE.fields["store_host"][1]  # type: ignore[index]
_AT_BODY_BYTES: int = HEADER_DTYPE.fields["body_bytes"][1]  # type: ignore[index]


def locate_parts(view: memoryview, starts: Ints) -> RecordParts:
    """Locate the parts of the records at `starts`, each at least `RECORD_BYTES_MIN` before the end of the buffer.

    The checks are those of `record.decode`, in the same order. A record that fails one is marked invalid, and its
    further reads use byte 0, so that no read is outside the buffer.
    """
    header = unaligned_view(view, f"V{FIXED_HEADER_BYTES}")[starts].view(HEADER_DTYPE)
    octets = np.frombuffer(view, np.uint8)
    magic, sys_flag = header["magic"], header["sys_flag"].astype(np.int32)
    size = header["size"].astype(np.int64)
    end = starts + size
    is_sound = (size >= RECORD_BYTES_MIN) & (end <= len(view))
    left = size - RECORD_BYTES_MIN  # bytes left for the remaining parts: 0 at the end

    born_extra = store_extra = None
    body_at = starts + FIXED_HEADER_BYTES
    if (sys_flag & (BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG)).any():
        born_extra = np.where(sys_flag & BORN_HOST_IPV6_FLAG, IPV6_EXTRA_BYTES, 0)
        store_extra = born_extra + np.where(sys_flag & STORE_HOST_IPV6_FLAG, IPV6_EXTRA_BYTES, 0)
        body_at = body_at + store_extra
        left -= store_extra
        is_sound &= left >= 0
        body_bytes = unaligned_view(view, ">i4")[_where(is_sound, body_at - 4)].astype(np.int64)
    else:
        body_bytes = header["body_bytes"].astype(np.int64)

    topic_length_at = body_at + body_bytes
    topic_at = topic_length_at + 1
    left -= body_bytes
    has_v2 = not (magic == MAGIC_V1).all()
    if has_v2:  # rare: only for topics above 255 bytes
        is_v2 = magic == MAGIC_V2
        is_sound &= (magic == MAGIC_V1) | is_v2
        topic_at += is_v2
        left -= is_v2
    is_sound &= (body_bytes >= 0) & (left >= 0)
    length_at = _where(is_sound, topic_length_at)
    topic_bytes = octets[length_at].astype(np.int64)
    if has_v2:
        topic_bytes = np.where(is_v2, topic_bytes * 256 + octets[length_at + 1], topic_bytes)

    topic_end = topic_at + topic_bytes
    left -= topic_bytes
    is_sound &= left >= 0
    length_at = _where(is_sound, topic_end)
    # Two single bytes: NumPy gathers aligned items several times faster.
    is_sound &= octets[length_at] * np.int64(256) + octets[length_at + 1] == left
    properties_at = topic_end + 2
    return RecordParts(
        view,
        starts,
        header,
        sys_flag,
        is_sound,
        born_extra,
        store_extra,
        body_at,
        topic_length_at,
        topic_at,
        topic_end,
        properties_at,
        end,
    )


def _where(is_sound: Bools, at: Ints) -> Ints:
    return at if is_sound.all() else np.where(is_sound, at, 0)


def locate_valid_parts(buf: BytesLike, starts: Any, sizes: Any = None) -> RecordParts:
    """Locate the parts of records that must be valid, ascending and without overlap; else `ProtocolError`."""
    view = byte_view(buf)
    if len(view) > BATCH_BYTES_MAX:
        raise ProtocolError(f"{len(view)} bytes are too many to decode at once: the limit is {BATCH_BYTES_MAX}")
    if starts is None:
        starts = find_starts(view) if sizes is None else starts_from_sizes(sizes)
    starts = np.asarray(starts, np.int64)
    if not len(starts):
        return RecordParts(
            view, starts, np.empty(0, HEADER_DTYPE), np.empty(0, np.int32), starts == 0, None, None, *[starts] * 6
        )
    if starts.min() < 0 or starts.max() > len(view) - RECORD_BYTES_MIN:
        raise ProtocolError(f"a record start is outside the {len(view)} bytes of the buffer")
    parts = locate_parts(view, starts)
    if not parts.is_sound.all():
        at = int(starts[np.argmin(parts.is_sound)])
        decode_one(view, at, verify_crc=False, expand=False)  # raises the specific error
        raise AssertionError(f"the two codecs disagree about the record at byte {at}")
    if (parts.end[:-1] > starts[1:]).any():
        raise ProtocolError("the records overlap, or are not in ascending order")
    if sizes is not None and not np.array_equal(parts.end - starts, sizes):
        raise ProtocolError("the given sizes differ from the sizes in the records")
    return parts


# -- slices of bytes as Arrow arrays --------------------------------------------------------------


def slice_slots(buf: Any, at: Ints, end: Ints) -> pa.Array:
    """Return a binary array over `buf` whose even slots are the slices at:end, which must ascend; no copy."""
    offsets = np.empty(2 * len(at) + 1, np.int32)
    offsets[0:-1:2] = at
    offsets[1::2] = end
    offsets[-1] = offsets[-2] if len(at) else 0
    return binary_array(pa.py_buffer(buf), offsets)


def copy_short_slices(buf: Any, at: Ints, end: Ints) -> pa.Array:
    """Copy the slices at:end, which must ascend, to a binary array. The faster way for names and values."""
    return take_every(slice_slots(buf, at, end), len(at), 2)


def copy_slices(buf: Any, at: Ints, end: Ints) -> pa.Array:
    """Copy the slices at:end to a binary array. The faster way for bodies: it allocates only what it needs.

    The slices become binary views, which Arrow then copies. A view of up to 12 bytes contains them; a longer one has a
    prefix of four bytes, which only comparisons use, so it stays 0.
    """
    views = np.zeros(len(at), _VIEW)
    lengths = end - at
    views["length"] = lengths
    views["at"] = at
    if lengths.min(initial=_INLINE_BYTES + 1) <= _INLINE_BYTES:
        short = np.flatnonzero(lengths <= _INLINE_BYTES)
        inside = short[at[short] <= len(buf) - _INLINE_BYTES]
        views["inline"][inside] = unaligned_view(buf, _VIEW["inline"])[at[inside]]
        beyond = short[at[short] > len(buf) - _INLINE_BYTES]  # too near the end to read 12 bytes there
        tail_at = max(len(buf) - _INLINE_BYTES, 0)
        tail = bytes(buf[tail_at:]) + bytes(_INLINE_BYTES)
        views["inline"][beyond] = unaligned_view(tail, _VIEW["inline"])[at[beyond] - tail_at]
    array = pa.Array.from_buffers(pa.binary_view(), len(at), [None, pa.py_buffer(views), pa.py_buffer(buf)])
    return array.cast(pa.binary())


def join_slices(buf: Any, at: Ints, end: Ints) -> memoryview:
    """Copy the slices at:end, end to end. Other threads run meanwhile, even if pages are read from disk."""
    return data_and_offsets(copy_slices(buf, at, end))[0].data


_INLINE_BYTES = 12
_VIEW = np.dtype(
    {
        "names": ["length", "inline", "at"],
        "formats": ["<i4", f"V{_INLINE_BYTES}", "<i4"],
        "offsets": [0, 4, 12],
        "itemsize": 16,
    }
)
"""One item of a binary-view array; between length and position are a prefix and the buffer index, 0."""


def take_every(array: pa.Array, count: int, step: int, first: int = 0) -> pa.Array:
    """Return `count` items of an array, `step` apart."""
    indices = np.arange(first, first + count * step, step, dtype=np.int32)
    return pc.take(array, pa.array(indices), boundscheck=False)


def binary_array(data: Any, offsets: NDArray[np.int32]) -> pa.Array:
    """Return a binary array over these bytes and offsets, without a copy."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])


def reinterpret(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same buffers with another type, such as binary that is known to be UTF-8 as string."""
    return pa.Array.from_buffers(kind, len(array), array.buffers(), array.null_count, array.offset)


def data_and_offsets(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the bytes that a binary or string array uses, and its N + 1 offsets into them."""
    _, offsets_buffer, data = array.buffers()
    if not len(array) or data is None or not data.size:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int32)
    offsets = np.frombuffer(offsets_buffer, np.int32, len(array) + 1, array.offset * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    return np.frombuffer(data, np.uint8)[first:last], offsets - first if first else offsets


def as_strings(array: pa.Array, what: str) -> pa.Array:
    """Return a binary array as strings. For ASCII, one pass for the largest byte is the whole check."""
    data, _ = data_and_offsets(array)
    if not len(data) or data.max() < 0x80:
        return reinterpret(array, pa.string())
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as cause:
        raise ProtocolError(f"{what} are not UTF-8") from cause

"""Batch bodies (request 320) without a loop over messages: columns to batches, and a batch to log records.

A producer encodes columns as batches (`encode_batches`). A broker converts a batch to records of its log
(`batch_to_records`) and answers with their ids (`joined_offset_ids`). Layout and rules are those of `batch`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparrow.model.errors import ProtocolError, Refused, TooManyMessages
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from sparrow.wire.batch import BATCH_MESSAGE_BYTES_MIN, unsound
from sparrow.wire.columns.encoder import (
    DictionaryPart,
    EncodedRecords,
    RowPart,
    as_column,
    body_crcs,
    check_properties_bytes,
    encode_topic,
    join_rows,
    property_parts,
    repeat_struct,
)
from sparrow.wire.columns.layout import (
    BATCH_BYTES_MAX,
    Ints,
    binary_array,
    byte_view,
    copy_slices,
    data_and_offsets,
    header_dtype,
    unaligned_view,
)
from sparrow.wire.properties import PROPERTIES_BYTES_MAX
from sparrow.wire.record import BORN_HOST_IPV6_FLAG, MAGIC_V1, STORE_HOST_IPV6_FLAG, topic_field

_MEMBER = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_bytes", ">i4")])
"""The fixed fields of a message in a batch, before its body."""
assert _MEMBER.itemsize + 2 == BATCH_MESSAGE_BYTES_MIN


# -- columns to batches -----------------------------------------------------------------------------------------------


class EncodedBatch(msgspec.Struct, frozen=True):
    """The body of one batch request."""

    data: memoryview
    count: int
    """The number of messages."""


def encode_batches(
    bodies: Any,
    *,
    tags: Any = None,
    keys: Any = None,
    properties: Any = None,
    flag: Any = 0,
    unique_keys: Any = None,
    sharding_keys: Any = None,
    bytes_max: int = 1024 * 1024,
    messages_max: int = sys.maxsize,
) -> list[EncodedBatch]:
    """Encode columns as batches of at most `bytes_max` and `messages_max` each, in order.

    A longer message is a batch of its own.

    Columns and rules are those of `columns.encode`.
    """
    bodies = as_column("body", bodies, pa.binary(), None)
    rows = len(bodies)
    body_bytes = np.diff(data_and_offsets(bodies)[1]).astype(np.int64)
    named = (
        (PROPERTY_KEYS, keys),
        (PROPERTY_TAGS, tags),
        (PROPERTY_UNIQUE_KEY, unique_keys),
        (PROPERTY_SHARDING_KEY, sharding_keys),
    )
    parts, properties_bytes = property_parts(rows, named, properties)
    sizes = body_bytes + properties_bytes + BATCH_MESSAGE_BYTES_MIN
    headers = repeat_struct(_MEMBER, rows, size=sizes, flag=flag, body_bytes=body_bytes)
    cuts = _cuts(sizes, bytes_max, messages_max)
    batch_bytes = np.add.reduceat(sizes, cuts[:-1]) if rows else sizes
    batches: list[EncodedBatch] = []
    for first, last in pairwise(_cuts(batch_bytes, _LAID_BYTES)):
        here = slice(cuts[first], cuts[last])
        parts_here = [_rows(part, here) for part in parts]
        data = byte_view(join_rows(sizes[here], headers[here], bodies[here], b"", parts_here, properties_bytes[here]))
        ends = np.cumsum(batch_bytes[first:last]).tolist()
        counts = np.diff(cuts[first : last + 1]).tolist()
        batches += map(EncodedBatch, map(data.__getitem__, map(slice, [0, *ends[:-1]], ends)), counts)
    return batches


_LAID_BYTES = 4 * 1024 * 1024
"""Bytes encoded at once: short batches share the cost, and the data stays in the CPU cache."""


def _cuts(sizes: Ints, bytes_max: int, items_max: int = sys.maxsize) -> list[int]:
    """Return where to cut items into groups of at most `bytes_max` bytes and `items_max`, with at least one each."""
    ends = np.cumsum(sizes)
    cuts = [0]
    while (start := cuts[-1]) < len(sizes):
        limit_end = bytes_max + (int(ends[start - 1]) if start else 0)
        cuts.append(min(max(int(np.searchsorted(ends, limit_end, "right")), start + 1), start + items_max))
    return cuts


def _rows(part: RowPart, here: slice) -> RowPart:
    if isinstance(part, DictionaryPart):
        return DictionaryPart(part.source, part.which[here])
    return part if isinstance(part, bytes) else part[here]


# -- a batch to records -----------------------------------------------------------------------------------------------


def batch_to_records(
    batch: bytes | memoryview,
    *,
    topic: str,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    extra_properties: bytes = b"",
    store_host_bytes: int = 8,
    reconsume_times: int = 0,
    messages_max: int = sys.maxsize,
) -> EncodedRecords:
    """Convert a received batch to V1 records for `append_encoded`. Offsets and store time are still 0.

    Any bytes give records or a `ProtocolError`, by the rules of `batch.decode`, which does not check that properties
    are UTF-8. `extra_properties` are appended to those of each message and override them; `TooLarge` if they no
    longer fit. `TooManyMessages` for more than `messages_max`.
    """
    for host_bytes in (len(born_host), store_host_bytes):
        if host_bytes not in (8, 20):
            raise Refused(f"a packed host has 8 or 20 bytes, not {host_bytes}")
    field = topic_field(encode_topic(topic))
    members = _members(byte_view(batch), messages_max)
    header = header_dtype(len(born_host), store_host_bytes)
    properties, properties_bytes = _with_extra(members, extra_properties)
    sizes = members.body_bytes + properties_bytes + (header.itemsize + len(field) + 2)
    hosts = (BORN_HOST_IPV6_FLAG if len(born_host) == 20 else 0) | (
        STORE_HOST_IPV6_FLAG if store_host_bytes == 20 else 0
    )
    headers = repeat_struct(
        header,
        len(sizes),
        size=sizes,
        magic=MAGIC_V1,
        crc=body_crcs(copy_slices(members.view, members.body_at, members.body_at + members.body_bytes)),
        flag=members.flag,
        sys_flag=sys_flag & ~(BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG) | hosts,
        born_ms=born_ms,
        born_host=np.void(born_host),
        reconsume_times=reconsume_times,
        body_bytes=members.body_bytes,
    )
    data = join_rows(sizes, headers, members.part(_BODY), field, properties, properties_bytes)
    return EncodedRecords(data, sizes.astype(np.int32))


_FIXED, _BODY, _LENGTH, _PROPERTIES = range(4)
"""The parts of a message, in order."""


class _Members(NamedTuple):
    """The messages of a valid batch, and the positions of their parts."""

    view: memoryview
    parts: pa.Array
    """Four items per message, over the bytes of the batch, without a copy."""
    flag: NDArray[Any]
    body_at: Ints
    body_bytes: Ints
    end: Ints
    properties_bytes: Ints

    def part(self, which: int) -> DictionaryPart:
        return DictionaryPart(self.parts, np.arange(which, len(self.parts), 4, dtype=np.int32))


def _members(view: memoryview, messages_max: int) -> _Members:
    if len(view) > BATCH_BYTES_MAX:
        raise ProtocolError(f"{len(view)} bytes are too many for a batch; the limit is {BATCH_BYTES_MAX}")
    starts = _starts(view, messages_max)
    fixed = unaligned_view(view, f"V{_MEMBER.itemsize}")[starts].view(_MEMBER)
    size, body_bytes = fixed["size"].astype(np.int64), fixed["body_bytes"].astype(np.int64)
    properties_bytes = size - BATCH_MESSAGE_BYTES_MIN - body_bytes  # the bytes that the other parts leave
    is_sound = (body_bytes >= 0) & (properties_bytes >= 0) & (properties_bytes <= PROPERTIES_BYTES_MAX)
    body_at = starts + _MEMBER.itemsize
    length_at = np.where(is_sound, body_at + body_bytes, 0)
    octets = np.frombuffer(view, np.uint8)
    is_sound &= octets[length_at] * np.int64(256) + octets[length_at + 1] == properties_bytes
    if not is_sound.all():
        raise unsound(view)
    offsets = np.empty(4 * len(starts) + 1, np.int32)
    offsets[_FIXED:-1:4] = starts
    offsets[_BODY::4] = body_at
    offsets[_LENGTH::4] = length_at
    offsets[_PROPERTIES::4] = length_at + 2
    offsets[-1] = len(view)
    parts = binary_array(pa.py_buffer(view), offsets)
    return _Members(view, parts, fixed["flag"], body_at, body_bytes, starts + size, properties_bytes)


def _starts(view: memoryview, messages_max: int) -> Ints:
    """Return the starts of the messages, each of which must end within the batch.

    Messages of equal size in a row, the common case, are found together; others are walked one by one. After more than
    `messages_max` the search ends.
    """
    end = len(view)
    found: list[Ints] = []
    at = count = 0
    while at < end:
        size = _SIZE.unpack_from(view, at)[0] if end - at >= BATCH_MESSAGE_BYTES_MIN else 0
        if not BATCH_MESSAGE_BYTES_MIN <= size <= end - at:
            raise unsound(view)
        alike = np.ndarray((min((end - at) // size, _TOGETHER_MAX),), ">i4", view, at, (size,)) == size
        run = len(alike) if alike.all() else int(alike.argmin())
        found.append(np.arange(at, at + run * size, size))
        at += run * size
        if run < _TOGETHER_MIN:
            walked = np.fromiter(_walk(view, at, end), np.int64)
            found.append(walked[:-1])
            at = int(walked[-1])
            count += len(walked) - 1
        count += run
        if count > messages_max:
            raise TooManyMessages(messages_max)
    return np.concatenate(found) if found else np.empty(0, np.int64)


_SIZE = Struct(">i")
_TOGETHER_MAX = 1024
"""Messages of equal size that are searched at once; more would be wasted if the size changes."""
_TOGETHER_MIN = 16
"""After fewer messages of equal size, walk one by one before searching again."""


def _walk(view: memoryview, at: int, end: int) -> Iterator[int]:
    """Yield the starts of the next messages, and last the position to continue at."""
    unpack, smallest, last = _SIZE.unpack_from, BATCH_MESSAGE_BYTES_MIN, end - BATCH_MESSAGE_BYTES_MIN
    for _ in range(_TOGETHER_MAX):
        yield at
        if at > last:
            return
        (size,) = unpack(view, at)
        if size < smallest or size > end - at:
            return
        at += size
    yield at


def _with_extra(members: _Members, extra: bytes) -> tuple[list[RowPart], Ints]:
    """Return the property strings with `extra` appended, as parts, and their lengths."""
    own = members.part(_PROPERTIES)
    if not extra:
        return [own], members.properties_bytes
    # The last 0x02 of a string may be missing; without it, `extra` would become part of the last value.
    is_open = (members.properties_bytes > 0) & (np.frombuffer(members.view, np.uint8)[members.end - 1] != 2)
    lengths = members.properties_bytes + len(extra) + is_open
    check_properties_bytes(lengths)
    if not is_open.any():
        return [own, extra], lengths
    return [own, DictionaryPart(pa.array([extra, b"\x02" + extra]), is_open.astype(np.int32))], lengths


# -- the answer to a batch --------------------------------------------------------------------------------------------

_OFFSET_BYTES = 8


def joined_offset_ids(prefix: str, physical_offsets: Any) -> str:
    """Return the offset ids of a batch, joined by commas. `prefix` comes from `message_ids.offset_id_prefix`."""
    offsets = np.asarray(physical_offsets, ">i8").tobytes()
    return prefix + offsets.hex(",", _OFFSET_BYTES).upper().replace(",", f",{prefix}") if offsets else ""

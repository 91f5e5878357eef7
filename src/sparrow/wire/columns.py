"""Many records at once: bytes <-> Arrow, without a Python loop over messages. The rules are those of `record`.

Bytes are read as columns (`decode`) and written from them (`encode`, then `stamp`); the rest is what a store asks of a
run of records: are they sound (`check`), and what are they filed under (`tags_codes`, `index_keys`). The few loops left
are over record sizes (`hop`, each tells the next), over calls of a C checksum, and over compressed bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from ipaddress import ip_address
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.model.errors import ProtocolError, Refused
from sparrow.model.message import KEYS, TAGS, UNIQUE_KEY
from sparrow.wire import record
from sparrow.wire.checksum import body_crc
from sparrow.wire.column_encoding import Encoded, crcs_of, encode
from sparrow.wire.column_hashes import hashes_and_units, java_hashes, joined_hashes
from sparrow.wire.column_parts import (
    BATCH_BYTES_MAX,
    HEADER,
    IPV6_EXTRA,
    QUEUE_ENTRY,
    Bools,
    BytesLike,
    Ints,
    Parts,
    as_bytes,
    cut,
    cut_short,
    hop,
    measure,
    overlapping,
    retyped,
    starts_of,
    text,
)
from sparrow.wire.column_properties import MAP, Properties
from sparrow.wire.compression import COMPRESSED, KIND_MASK, decompress
from sparrow.wire.record import (
    AT_QUEUE_OFFSET,
    AT_STORE_TIME,
    AT_SYS_FLAG,
    BORN_IPV6,
    SMALLEST_BYTES,
    STORE_IPV6,
    unpack_host,
)

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "HEADER",
    "QUEUE_ENTRY",
    "Encoded",
    "check",
    "decode",
    "encode",
    "hop",
    "index_keys",
    "java_hashes",
    "overlapping",
    "stamp",
    "starts_of",
    "tags_codes",
]

DEFAULT_COLUMNS = (
    "queue_id",
    "queue_offset",
    "store_timestamp",
    "born_timestamp",
    "reconsume_times",
    "keys",
    "tags",
    "body",
    "properties",
)


def decode(
    buf: BytesLike,
    starts: Any = None,
    *,
    sizes: Any = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    verify_crc: bool = False,
    expand: bool = True,
) -> pa.RecordBatch:
    """The records at `starts` as a batch of these `COLUMNS`. Any bytes give that or a `ProtocolError`.

    Starts ascend, and there may be gaps between records. Without them records lie end to end, with these `sizes` if
    given; else the sizes are read, and a blank record or a tail that is not whole is the end. All records must be laid
    out soundly. What is inside a body, a topic or the properties is looked at only for columns that show it, and a
    body's checksum only if asked for. `expand` decompresses bodies and clears the compression bits of the sys flag.
    """
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise Refused(f"there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    schema = pa.schema([COLUMNS[name][0] for name in columns])
    parts = _sound_parts(buf, starts, sizes)
    if not len(parts.starts):
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    batch = _Batch(parts, expand)
    if verify_crc:
        batch.verify_crc()
    return pa.RecordBatch.from_arrays([COLUMNS[name][1](batch) for name in columns], schema=schema)


def check(buf: BytesLike, starts: Any, *, base: int, verify_crc: bool = True, topic: bytes | None = None) -> Bools:
    """Which of the records at `starts` are sound: laid out rightly, at home (`base` is the physical offset of the
    buffer's first byte), with text that is UTF-8, a body that matches its checksum, and of this `topic` if one is
    named. For recovery; no bytes make it raise."""
    view, starts = as_bytes(buf), np.asarray(starts, np.int64)
    is_sound: Bools = (starts >= 0) & (starts <= len(view) - SMALLEST_BYTES)
    if not is_sound.any():
        return is_sound
    parts = measure(view, starts[is_sound])
    is_right = parts.is_sound & (parts.header["physical_offset"] == base + parts.starts)
    is_right[is_right] = _are_texts(view, parts.topic_at[is_right], parts.topic_end[is_right], same=topic)
    is_right[is_right] = _are_texts(view, parts.properties_at[is_right], parts.end[is_right])
    if verify_crc:
        has_body = is_right & (parts.topic_length_at > parts.body_at)
        crcs = _crcs(view, parts.body_at[has_body], parts.topic_length_at[has_body])
        is_right[has_body] = crcs == parts.header["crc"][has_body] & 0x7FFF_FFFF
    is_sound[is_sound] = is_right
    return is_sound


def _are_texts(view: memoryview, at: Ints, end: Ints, *, same: bytes | None = None) -> Bools:
    """Which of the slices are UTF-8, and equal to `same` if that is given."""
    if not len(at):
        return np.ones(0, np.bool_)
    if (end[:-1] <= at[1:]).all():
        first = int(at[0])
        slices = cut_short(view[first : int(end[-1])], at - first, end - first)
    else:  # overlapping ones cannot all be sound, but that is not for this function to say
        slices = pa.array([bytes(view[a:b]) for a, b in zip(at.tolist(), end.tolist(), strict=True)], pa.binary())
    if same is not None:
        is_same: Bools = pc.equal(slices, pa.scalar(same, pa.binary())).to_numpy(zero_copy_only=False)
        return is_same
    try:
        text(slices, "slices")
    except ProtocolError:
        return np.fromiter(map(_is_utf8, slices.to_pylist()), np.bool_, len(at))
    return np.ones(len(at), np.bool_)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def tags_codes(buf: BytesLike, starts: Any) -> Ints:
    """What the consume queue keeps for each record's tag: its hash, 0 without one."""
    parts = _sound_parts(buf, starts)
    tags = Properties(_raw_properties(parts)).get(TAGS)
    return java_hashes(tags).astype(np.int64)


def index_keys(buf: BytesLike, starts: Any) -> tuple[Ints, NDArray[np.int32]]:
    """What the key index files the records under: (which record, hash), a record's unique key before its other keys."""
    parts = _sound_parts(buf, starts)
    properties = Properties(_raw_properties(parts))
    unique, several = properties.get(UNIQUE_KEY), properties.get(KEYS)
    has_unique = unique.is_valid()
    tokens = pc.split_pattern(several, " ")
    token_rows, tokens = pc.list_parent_indices(tokens), pc.list_flatten(tokens)
    is_token = pc.greater(pc.binary_length(tokens), 0)
    keys = pa.concat_arrays([unique.filter(has_unique), tokens.filter(is_token)])
    rows = np.concatenate(
        (np.flatnonzero(has_unique), token_rows.filter(is_token).to_numpy(zero_copy_only=False))
    ).astype(np.int64)
    key_hashes, key_units = hashes_and_units(keys)

    topics = cut_short(parts.view, parts.topic_at, parts.topic_end).dictionary_encode()
    prefixes = hashes_and_units(topics.dictionary)[0] * np.uint32(31) + np.uint32(ord("#"))
    prefix_of_row = prefixes[topics.indices.to_numpy(zero_copy_only=False)]
    hashes = joined_hashes(prefix_of_row[rows], key_hashes, key_units).view(np.int32)
    order = np.argsort(rows, kind="stable")
    # NumPy's abs, like Java's, leaves -2^31 as it is; the index files it under 0.
    return rows[order], np.maximum(np.abs(hashes), 0)[order]


def stamp(
    buf: BytesLike,
    starts: Any,
    *,
    queue_offset: Any,
    physical_offset: Any,
    store_ms: Any,
    queue_id: Any = None,
    store_host: bytes | None = None,
) -> None:
    """Write what only a store knows into encoded records, in place. Values are scalars or one for each record.

    That sound records lie at `starts` is the caller's word; whatever lies there, nothing outside the buffer is touched.
    """
    starts = np.asarray(starts, np.int64)
    if not len(starts):
        return
    if starts.min() < 0 or starts.max() > len(buf) - SMALLEST_BYTES:
        raise IndexError(f"a record to be stamped lies outside the {len(buf)} bytes of the buffer")
    # The last byte of the sys flag has the two bits that say IPv6.
    hosts = np.frombuffer(buf, np.uint8)[starts + (AT_SYS_FLAG + 3)]
    if store_host is not None and (((hosts & STORE_IPV6) != 0) != (len(store_host) == 20)).any():
        raise Refused("the store host is not of the kind, IPv4 or IPv6, that the records were encoded for")
    late = starts + np.where(hosts & BORN_IPV6, IPV6_EXTRA, 0) if (hosts & BORN_IPV6).any() else starts

    offsets = np.empty(len(starts), _TWO_OFFSETS)
    offsets["queue_offset"] = queue_offset
    offsets["physical_offset"] = physical_offset
    overlapping(buf, _OPAQUE_16, AT_QUEUE_OFFSET)[starts] = offsets.view(_OPAQUE_16)
    stored = np.empty(len(starts), ">i8")
    stored[:] = store_ms
    overlapping(buf, _OPAQUE_8, AT_STORE_TIME)[late] = stored.view(_OPAQUE_8)
    if queue_id is not None:
        overlapping(buf, ">i4", _AT_QUEUE_ID)[starts] = queue_id
    if store_host is not None:
        overlapping(buf, f"V{len(store_host)}", AT_STORE_TIME + 8)[late] = np.void(store_host)


_TWO_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
# Bytes as bytes: NumPy scatters them quicker than numbers in a foreign order.
_OPAQUE_16, _OPAQUE_8 = np.dtype("V16"), np.dtype("V8")
_AT_QUEUE_ID = 12


def _sound_parts(buf: BytesLike, starts: Any, sizes: Any = None) -> Parts:
    """The parts of records that are all sound, ascend and do not overlap."""
    view = as_bytes(buf)
    if len(view) > BATCH_BYTES_MAX:
        raise ProtocolError(f"{len(view)} bytes are too many to read at a time: the limit is {BATCH_BYTES_MAX}")
    if starts is None:
        starts = hop(view) if sizes is None else starts_of(sizes)
    starts = np.asarray(starts, np.int64)
    if not len(starts):
        return Parts(view, starts, np.empty(0, HEADER), np.empty(0, np.int32), starts == 0, None, None, *[starts] * 6)
    if starts.min() < 0 or starts.max() > len(view) - SMALLEST_BYTES:
        raise ProtocolError(f"a record is said to start outside the {len(view)} bytes there are")
    parts = measure(view, starts)
    if not parts.is_sound.all():
        at = int(starts[np.argmin(parts.is_sound)])
        record.decode(view, at, verify_crc=False, expand=False)  # it knows the words for what is wrong
        raise AssertionError(f"the two codecs disagree about the record at byte {at}")
    if (parts.end[:-1] > starts[1:]).any():
        raise ProtocolError("records overlap, or are not in ascending order")
    if sizes is not None and not np.array_equal(parts.end - starts, sizes):
        raise ProtocolError("the sizes given for the records are not the sizes they have")
    return parts


def _raw_properties(parts: Parts) -> pa.Array:
    return cut(parts.view, parts.properties_at, parts.end)


def _crcs(view: memoryview, at: Ints, end: Ints) -> NDArray[np.uint32]:
    if len(view) <= BATCH_BYTES_MAX and (end[:-1] <= at[1:]).all():
        return crcs_of(cut(view, at, end))  # quicker than to slice one by one
    slices = (view[a:b] for a, b in zip(at.tolist(), end.tolist(), strict=True))
    return np.fromiter(map(body_crc, slices), np.uint32, len(at))


class _Batch:
    """Sound records on their way to columns; what several columns need is made once."""

    def __init__(self, parts: Parts, expand: bool) -> None:
        self.parts = parts
        self._is_compressed = (parts.sys_flag & COMPRESSED != 0) if expand else np.zeros(len(parts.starts), np.bool_)

    def verify_crc(self) -> None:
        parts = self.parts
        crcs = crcs_of(self._stored_body)
        is_wrong = (crcs != parts.header["crc"] & 0x7FFF_FFFF) & (parts.topic_length_at > parts.body_at)
        if is_wrong.any():
            at = parts.starts[np.argmax(is_wrong)]
            raise ProtocolError(f"the body of the record at byte {at} does not match its checksum")

    @cached_property
    def _stored_body(self) -> pa.Array:
        return cut(self.parts.view, self.parts.body_at, self.parts.topic_length_at)

    def body(self) -> pa.Array:
        stored = self._stored_body
        rows = np.flatnonzero(self._is_compressed)
        if not len(rows):
            return stored
        expanded: list[bytes] = []
        left = BATCH_BYTES_MAX - len(self.parts.view)
        for row, flag in zip(rows.tolist(), self.parts.sys_flag[rows].tolist(), strict=True):
            expanded.append(decompress(stored[row].as_py(), flag)[0])
            left -= len(expanded[-1])
            if left < 0:
                raise ProtocolError(f"the bodies expand past {BATCH_BYTES_MAX} bytes: read fewer records at a time")
        places = np.arange(len(stored))
        places[rows] = np.arange(len(stored), len(stored) + len(rows))
        return pa.concat_arrays([stored, pa.array(expanded, pa.binary())]).take(pa.array(places))

    def sys_flag(self) -> pa.Array:
        flag = self.parts.sys_flag
        return pa.array(np.where(self._is_compressed, flag & ~(COMPRESSED | KIND_MASK), flag))

    def topic(self) -> pa.Array:
        return text(cut_short(self.parts.view, self.parts.topic_at, self.parts.topic_end), "topics")

    @cached_property
    def properties_raw(self) -> pa.Array:
        return text(_raw_properties(self.parts), "properties")

    @cached_property
    def properties(self) -> Properties:
        return Properties(self.properties_raw)

    def property(self, name: str) -> pa.Array:
        return retyped(self.properties.get(name), pa.string())

    def number(self, name: str) -> pa.Array:
        return pa.array(self.parts.field(name))

    def timestamp(self, name: str) -> pa.Array:
        ms = self.parts.field(name)
        if ms.view(np.uint64).max() > _MS_MAX:  # negative ones too; no clock says so, but bytes may
            ms = np.clip(ms, -_MS_MAX, _MS_MAX)
        return pa.array(ms * 1000).view(_TIMESTAMP)

    def host(self, at: int, extra: Ints | None, ipv6: int) -> pa.Array:
        starts = self.parts.starts + (at if extra is None else at + extra)
        packed = cut_short(
            self.parts.view, starts, starts + np.where(self.parts.sys_flag & ipv6, 20, 8)
        ).dictionary_encode()
        names = pa.array([_host_name(each) for each in packed.dictionary.to_pylist()], pa.string())
        return names.take(packed.indices)


def _host_name(packed: bytes) -> str:
    host = unpack_host(packed)
    address = ip_address(host.ip)
    return f"[{address}]:{host.port}" if host.is_ipv6 else f"{address}:{host.port}"


_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MS_MAX = 0x7FFF_FFFF_FFFF_FFFF // 1000


def _columns() -> dict[str, tuple[pa.Field, Callable[[_Batch], pa.Array]]]:
    born_at, store_at = HEADER.fields["born_host"][1], HEADER.fields["store_host"][1]  # type: ignore[index]
    makers: list[tuple[str, pa.DataType, Callable[[_Batch], pa.Array]]] = [
        ("topic", pa.string(), _Batch.topic),
        ("queue_id", pa.int32(), lambda batch: batch.number("queue_id")),
        ("queue_offset", pa.int64(), lambda batch: batch.number("queue_offset")),
        ("physical_offset", pa.int64(), lambda batch: batch.number("physical_offset")),
        ("store_timestamp", _TIMESTAMP, lambda batch: batch.timestamp("store_ms")),
        ("born_timestamp", _TIMESTAMP, lambda batch: batch.timestamp("born_ms")),
        ("reconsume_times", pa.int32(), lambda batch: batch.number("reconsume_times")),
        ("flag", pa.int32(), lambda batch: batch.number("flag")),
        ("sys_flag", pa.int32(), _Batch.sys_flag),
        ("prepared_offset", pa.int64(), lambda batch: batch.number("prepared_offset")),
        ("keys", pa.string(), lambda batch: batch.property(KEYS)),
        ("tags", pa.string(), lambda batch: batch.property(TAGS)),
        ("msg_id", pa.string(), lambda batch: batch.property(UNIQUE_KEY)),
        ("properties", MAP, lambda batch: batch.properties.map()),
        ("properties_raw", pa.string(), lambda batch: batch.properties_raw),
        ("body", pa.binary(), _Batch.body),
        ("born_host", pa.string(), lambda batch: batch.host(born_at, None, BORN_IPV6)),
        ("store_host", pa.string(), lambda batch: batch.host(store_at, batch.parts.born_extra, STORE_IPV6)),
    ]
    return {name: (pa.field(name, kind), make) for name, kind, make in makers}


COLUMNS = _columns()
"""Every column there is: its Arrow field, and how it is made."""

"""Encode columns as records: one `take` puts the parts of all messages end to end.

Arrow stores the bytes of an array without gaps. If the sources (headers, bodies, keys, ...) are concatenated to one
array and taken in the order header 0, body 0, ..., header 1, body 1, ..., the bytes of the result are the records.
`column_batch` lays out the members of a batch in the same way.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.model.errors import Refused, TooLarge
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from sparrow.model.topic import TOPIC_NAME_CHARS_MAX
from sparrow.wire.checksum import crc32
from sparrow.wire.columns.layout import (
    BATCH_BYTES_MAX,
    HEADER_DTYPE,
    Bools,
    Ints,
    binary_array,
    data_and_offsets,
    reinterpret,
)
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE
from sparrow.wire.properties import PROPERTIES_BYTES_MAX
from sparrow.wire.record import BORN_HOST_IPV6_FLAG, FIXED_HEADER_BYTES, MAGIC_V1, STORE_HOST_IPV6_FLAG, topic_field

PACKED_LOOPBACK = b"\x7f\0\0\1\0\0\0\0"


class EncodedRecords(NamedTuple):
    """Records laid end to end. Offsets and store time are still 0: see `columns.stamp`."""

    data: pa.Buffer
    sizes: NDArray[np.int32]


class DictionaryPart(NamedTuple):
    """A part that is an item of a source in each row. Parts may share a source, which is then copied once."""

    source: pa.Array
    which: NDArray[np.int32]


RowPart: TypeAlias = bytes | pa.Array | DictionaryPart
"""One part of every row: the same bytes, one item per row, or one of a few items."""


def encode(
    body: Any,
    *,
    topic: str,
    queue_id: Any = 0,
    keys: Any = None,
    tags: Any = None,
    msg_ids: Any = None,
    properties: Any = None,
    properties_raw: Any = None,
    flag: Any = 0,
    sys_flag: Any = 0,
    born_ms: Any = 0,
    born_host: bytes = PACKED_LOOPBACK,
    store_host: bytes = PACKED_LOOPBACK,
    reconsume_times: Any = 0,
    checksum: bool = True,
) -> EncodedRecords:
    """Encode V1 records from columns: Arrow arrays, or for numbers also scalars and NumPy arrays.

    A null or empty key, tag, id, property name or value is not written. `properties` is a map column; it is written
    last, so it overrides KEYS, TAGS and UNIQ_KEY. It refuses what `properties.encode` refuses. `properties_raw`
    replaces all of those: it is a column of complete property strings.
    """
    name = encode_topic(topic)
    for host in (born_host, store_host):
        if len(host) != 8:
            raise Refused(f"a batch is encoded for IPv4 hosts, 8 packed bytes each, not {len(host)}")
    body = as_column("body", body, pa.binary(), None)
    rows = len(body)
    body_bytes = np.diff(data_and_offsets(body)[1]).astype(np.int64)
    if properties_raw is None:
        parts, properties_bytes = property_parts(
            rows, ((PROPERTY_KEYS, keys), (PROPERTY_TAGS, tags), (PROPERTY_UNIQUE_KEY, msg_ids)), properties
        )
    else:
        parts, properties_bytes = _raw_parts(as_column("property strings", properties_raw, pa.string(), rows))
    field = topic_field(name)
    sizes = body_bytes + properties_bytes + (FIXED_HEADER_BYTES + len(field) + 2)
    header = repeat_struct(
        HEADER_DTYPE,
        rows,
        size=sizes,
        magic=MAGIC_V1,
        crc=body_crcs(body) if checksum else 0,
        queue_id=queue_id,
        flag=flag,
        sys_flag=np.asarray(sys_flag) & ~(BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG),
        born_ms=born_ms,
        born_host=np.void(born_host),
        store_host=np.void(store_host),
        reconsume_times=reconsume_times,
        body_bytes=body_bytes,
    )
    return EncodedRecords(join_rows(sizes, header, body, field, parts, properties_bytes), sizes.astype(np.int32))


def encode_topic(topic: str) -> bytes:
    try:
        name = topic.encode()
    except UnicodeEncodeError as cause:
        raise Refused("the topic name holds half of a surrogate pair, which is not text") from cause
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise TooLarge("the topic name", len(name), TOPIC_NAME_CHARS_MAX)
    return name


def as_column(what: str, given: Any, kind: pa.DataType, rows: int | None) -> pa.Array:
    """Return an array of this type and length. Null texts become empty, because neither is written."""
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if not isinstance(given, pa.Array):
        given = pa.array(given, kind)
    try:
        given = given if given.type == kind else given.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise Refused(f"the column of {what} cannot be read as {kind}: {cause}") from cause
    if rows is not None and len(given) != rows:
        raise Refused(f"the column of {what} has {len(given)} rows; there are {rows} bodies")
    if given.null_count and kind is not PROPERTY_MAP_TYPE:
        given = given.fill_null(b"" if kind == pa.binary() else "")
    return given


def body_crcs(body: pa.Array) -> NDArray[np.uint32]:
    """Return the checksums of bodies: one C call per body, which is faster than any NumPy table."""
    crcs: list[int] = []
    for at in range(0, len(body), _BODIES_AT_ONCE):
        crcs += map(crc32, body[at : at + _BODIES_AT_ONCE].to_pylist())
    return np.frombuffer(array("I", crcs), np.uint32) & np.uint32(0x7FFF_FFFF)


_BODIES_AT_ONCE = 256
"""So few that the copies for the checksum are still in the CPU cache when they are read."""


# -- the property string of each row, as parts -----------------------------------------------------


def property_parts(rows: int, columns: Sequence[tuple[str, Any]], properties: Any) -> tuple[list[RowPart], Ints]:
    """Return the parts of the property strings, and the length of each string."""
    parts: list[RowPart] = []
    written = np.zeros(rows, np.int64)
    was_there = np.zeros(rows, np.bool_)
    for name, given in columns:
        if given is None:
            continue
        values = as_column(name, given, pa.string(), rows)
        data, offsets = data_and_offsets(values)
        if (data == 2).any():
            raise _holds_separator(name)
        lengths = np.diff(offsets)
        is_there = lengths > 0
        # The end of a property and the name of the next are one part, because each part has a cost of its own.
        parts += [_joint(name.encode() + b"\x01", was_there, is_there), reinterpret(values, pa.binary())]
        written += lengths + is_there * (len(name) + 2)
        was_there = is_there
    parts.append(_joint(b"", was_there, was_there))
    if properties is not None:
        strings = _map_strings(as_column("properties", properties, PROPERTY_MAP_TYPE, rows))
        parts.append(strings)
        written += np.diff(data_and_offsets(strings)[1])
    check_properties_bytes(written)
    return parts, written


def _raw_parts(strings: pa.Array) -> tuple[list[RowPart], Ints]:
    lengths = np.diff(data_and_offsets(strings)[1]).astype(np.int64)
    check_properties_bytes(lengths)
    return [reinterpret(strings, pa.binary())], lengths


def check_properties_bytes(lengths: Ints) -> None:
    if (longest := int(lengths.max(initial=0))) > PROPERTIES_BYTES_MAX:
        raise TooLarge("the property string", longest, PROPERTIES_BYTES_MAX)


def _joint(opening: bytes, was_there: Bools, is_there: Bools) -> RowPart:
    """Return the part between two values: the end of the first and the name of the second, as far as they exist."""
    constants = [b"", opening, b"\x02", b"\x02" + opening]
    if (was_there.all() or not was_there.any()) and (is_there.all() or not is_there.any()):
        return constants[2 * was_there.any() + is_there.any()]
    return DictionaryPart(pa.array(constants, pa.binary()), 2 * was_there.astype(np.int32) + is_there)


def _map_strings(maps: pa.Array) -> pa.Array:
    """Return the property string of each map. The entries of a row are adjacent, so a row is only wider offsets."""
    if maps.null_count:  # there may be entries under a null, which take drops
        maps = maps.take(pa.array(np.arange(len(maps))))
    if not len(maps):
        return pa.array([], pa.binary())
    first = np.frombuffer(maps.buffers()[1], np.int32, len(maps) + 1, maps.offset * 4)
    names, values = (each.slice(first[0], first[-1] - first[0]) for each in (maps.keys, maps.items))
    first = first - first[0]
    if values.null_count:
        values = values.fill_null("")
    is_whole = (np.diff(data_and_offsets(names)[1]) > 0) & (np.diff(data_and_offsets(values)[1]) > 0)
    if not is_whole.all():
        names, values = names.filter(pa.array(is_whole)), values.filter(pa.array(is_whole))
        first = np.concatenate(([0], np.cumsum(is_whole)))[first]
    for texts, separators in ((names, (1, 2)), (values, (2,))):
        data, offsets = data_and_offsets(texts)
        for separator in separators:
            if (hits := np.flatnonzero(data == separator)).size:
                raise _holds_separator(names[int(np.searchsorted(offsets, hits[0], "right")) - 1].as_py())
    written = len(data_and_offsets(names)[0]) + len(data_and_offsets(values)[0]) + 2 * len(names)
    if written > BATCH_BYTES_MAX:
        raise TooLarge("the properties of a batch", written, BATCH_BYTES_MAX)
    entries = _interleaved(
        len(names), [reinterpret(names, pa.binary()), b"\x01", reinterpret(values, pa.binary()), b"\x02"]
    )
    _, offsets = data_and_offsets(entries)
    return binary_array(entries.buffers()[2], offsets[::4][first])


def _holds_separator(name: str) -> Refused:
    return Refused(f"property {name!r} contains a separator (U+0001 or U+0002), which would split it")


# -- laying parts end to end -----------------------------------------------------------------------


def repeat_struct(dtype: np.dtype[Any], rows: int, *, template: bytes | None = None, **fields: Any) -> NDArray[Any]:
    """Return `rows` equal items, except for the fields that are given as arrays."""
    one = np.frombuffer(bytearray(template or dtype.itemsize), dtype)
    for name, value in fields.items():
        if np.ndim(value) == 0:
            one[name] = value
    items = np.frombuffer(bytearray(one.tobytes()) * rows, dtype)
    for name, value in fields.items():
        if np.ndim(value):
            items[name] = value
    return items


def join_rows(
    sizes: Ints,
    headers: NDArray[Any],
    body: RowPart,
    field: bytes,
    properties: Sequence[RowPart],
    properties_bytes: Ints,
) -> pa.Buffer:
    """Join the parts of each row (header, body, `field`, properties length, properties) and all rows, end to end."""
    total = int(sizes.sum())
    if total > BATCH_BYTES_MAX:
        raise TooLarge("the batch of messages", total, BATCH_BYTES_MAX)
    middle = field + b"\0\0"
    if properties and isinstance(properties[0], bytes):  # the same in all rows; fewer parts are faster
        middle += properties[0]
        properties = properties[1:]
    length = np.dtype({"names": ["length"], "formats": [">u2"], "offsets": [len(field)], "itemsize": len(middle)})
    middles = repeat_struct(length, len(headers), template=middle, length=properties_bytes)
    rows = _interleaved(len(headers), [_fixed(headers), body, _fixed(middles), *properties]).buffers()[2]
    assert rows.size == total
    return rows


def _fixed(items: NDArray[Any]) -> pa.Array:
    """Return items of one size as a binary array, without a copy."""
    width = items.dtype.itemsize
    return binary_array(pa.py_buffer(items.data), np.arange(0, (len(items) + 1) * width, width, dtype=np.int32))


def _interleaved(rows: int, parts: Sequence[RowPart]) -> pa.Array:
    """Return all parts of row 0, then of row 1, and so on: rows * len(parts) items in one binary array.

    The caller guarantees that the size fits into 32 bits.
    """
    sources: list[pa.Array] = []
    first_of: dict[int, int] = {}
    places = np.empty((rows, len(parts)), np.int32)
    items = 0
    every_row = np.arange(rows, dtype=np.int32)
    for i, part in enumerate(parts):
        if isinstance(part, bytes):
            part = DictionaryPart(pa.array([part], pa.binary()), np.zeros(1, np.int32))
        source, which = part if isinstance(part, DictionaryPart) else DictionaryPart(part, every_row)
        if id(source) not in first_of:
            first_of[id(source)] = items
            sources.append(source)
            items += len(source)
        places[:, i] = which + np.int32(first_of[id(source)])
    try:
        strung = pa.concat_arrays(sources)
    except pa.ArrowInvalid as cause:  # the sources may be larger than the rows
        raise TooLarge("the batch of messages", sum(source.nbytes for source in sources), BATCH_BYTES_MAX) from cause
    return pc.take(strung, pa.array(places.reshape(-1)), boundscheck=False)

"""The columnar codec: decode records to Arrow columns and encode them, without a Python loop over messages.

`decode` reads bytes as columns; `encode`, then `stamp_offsets`, writes them. Log stores also validate records
(`find_valid`) and compute their index entries (`tags_codes`, `index_keys`). The rules are those of `record`. Python
loops remain only over record sizes (`find_starts`), over calls of a C checksum, and over compressed bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from ipaddress import ip_address
from typing import Any

import numpy as np
import pyarrow as pa

from sparrow.model.errors import ProtocolError, Refused
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from sparrow.wire.columns.encoder import EncodedRecords, body_crcs, encode
from sparrow.wire.columns.hashes import java_hashes
from sparrow.wire.columns.layout import (
    BATCH_BYTES_MAX,
    HEADER_DTYPE,
    QUEUE_ENTRY_DTYPE,
    BytesLike,
    Ints,
    RecordParts,
    as_strings,
    copy_short_slices,
    copy_slices,
    find_starts,
    join_slices,
    locate_valid_parts,
    reinterpret,
    starts_from_sizes,
    unaligned_view,
)
from sparrow.wire.columns.log_records import (
    LogRecords,
    RecordKeys,
    are_of_topic,
    find_valid,
    index_keys,
    stamp_offsets,
    stated_end,
    tags_codes,
)
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE, ParsedProperties, find_property
from sparrow.wire.compression import COMPRESSED_FLAG, COMPRESSION_TYPE_MASK, decompress
from sparrow.wire.record import (
    BORN_HOST_IPV6_FLAG,
    STORE_HOST_IPV6_FLAG,
    unpack_host,
)
from sparrow.wire.undecodable import UndecodableBodies

__all__ = [
    "COLUMN_DECODERS",
    "DEFAULT_COLUMNS",
    "HEADER_DTYPE",
    "QUEUE_ENTRY_DTYPE",
    "TABLE_COLUMNS",
    "EncodedRecords",
    "LogRecords",
    "RecordKeys",
    "are_of_topic",
    "decode",
    "encode",
    "find_starts",
    "find_valid",
    "index_keys",
    "java_hashes",
    "join_slices",
    "stamp_offsets",
    "starts_from_sizes",
    "stated_end",
    "tags_codes",
    "unaligned_view",
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
TABLE_COLUMNS = (*DEFAULT_COLUMNS, "decode_error")
"""The columns of a topic that is read as a table."""

_SINGLE = frozenset({"keys", "tags", "msg_id"})
"""Columns that are a single property."""
_FEW = 2
"""Up to this many, single properties are faster to find than to parse all of them."""


def decode(
    buf: BytesLike,
    starts: Any = None,
    *,
    sizes: Any = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    verify_crc: bool = False,
    expand: bool = True,
    undecodable: UndecodableBodies | None = None,
) -> pa.RecordBatch:
    """Decode the records at `starts` to these columns. Any bytes give a batch or a `ProtocolError`.

    `starts` must ascend and may leave gaps. Without it, records are laid end to end, with the given `sizes`; else the
    sizes are read, and a blank or incomplete record is the end. All records must have a valid layout. Bodies, topics
    and properties are checked only for columns that need them, and checksums only with `verify_crc`. `expand`
    decompresses bodies and clears the compression bits of the sys flag. `undecodable` decides about bodies that do not
    decompress, and counts them; without it, they raise `ProtocolError`. Bodies are decompressed only for the columns
    `body` and `decode_error`.
    """
    unknown = [name for name in columns if name not in COLUMN_DECODERS]
    if unknown:
        raise Refused(f"unknown column {unknown[0]!r}; known are {', '.join(COLUMN_DECODERS)}")
    schema = pa.schema([COLUMN_DECODERS[name][0] for name in columns])
    parts = locate_valid_parts(buf, starts, sizes)
    if not len(parts.starts):
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    asks_for_few = "properties" not in columns and len(_SINGLE.intersection(columns)) <= _FEW
    batch = _Batch(parts, expand, undecodable, asks_for_few=asks_for_few)
    if verify_crc:
        batch.verify_crc()
    decoded = pa.RecordBatch.from_arrays([COLUMN_DECODERS[name][1](batch) for name in columns], schema=schema)
    if batch.errors and undecodable is not None and undecodable.choice == "skip":
        return decoded.filter(batch.is_decoded())
    return decoded


class _Batch:
    """Valid records that are decoded to columns; results that several columns need are cached."""

    def __init__(
        self, parts: RecordParts, expand: bool, undecodable: UndecodableBodies | None, *, asks_for_few: bool
    ) -> None:
        self.parts, self._undecodable, self._asks_for_few = parts, undecodable, asks_for_few
        self.errors: dict[int, str] = {}
        """Row to cause, for the bodies that were to be decoded and do not decompress."""
        self._is_compressed = (
            (parts.sys_flag & COMPRESSED_FLAG != 0) if expand else np.zeros(len(parts.starts), np.bool_)
        )

    def verify_crc(self) -> None:
        parts = self.parts
        crcs = body_crcs(self._stored_body)
        is_wrong = (crcs != parts.header["crc"] & 0x7FFF_FFFF) & (parts.topic_length_at > parts.body_at)
        if is_wrong.any():
            at = parts.starts[np.argmax(is_wrong)]
            raise ProtocolError(f"the body of the record at byte {at} does not match its checksum")

    @cached_property
    def _stored_body(self) -> pa.Array:
        return copy_slices(self.parts.view, self.parts.body_at, self.parts.topic_length_at)

    @cached_property
    def body(self) -> pa.Array:
        stored = self._stored_body
        rows = np.flatnonzero(self._is_compressed)
        if not len(rows):
            return stored
        expanded: list[bytes | None] = []
        left = BATCH_BYTES_MAX - len(self.parts.view)
        for row, flag in zip(rows.tolist(), self.parts.sys_flag[rows].tolist(), strict=True):
            try:
                body, _ = decompress(stored[row].as_py(), flag)
            except ProtocolError as cause:
                if self._undecodable is None:
                    raise
                self._undecodable.add(int(self.parts.field("queue_offset")[row]), cause)
                self.errors[row] = str(cause)
                expanded.append(None)
                continue
            expanded.append(body)
            left -= len(body)
            if left < 0:
                raise ProtocolError(
                    f"the decompressed bodies are larger than {BATCH_BYTES_MAX} bytes: decode fewer records at once"
                )
        places = np.arange(len(stored))
        places[rows] = np.arange(len(stored), len(stored) + len(rows))
        return pa.concat_arrays([stored, pa.array(expanded, pa.binary())]).take(pa.array(places))

    def decode_error(self) -> pa.Array:
        _ = self.body
        rows = len(self.parts.starts)
        return pa.array(map(self.errors.get, range(rows)), pa.string()) if self.errors else pa.nulls(rows, pa.string())

    def is_decoded(self) -> pa.Array:
        mask = np.ones(len(self.parts.starts), np.bool_)
        mask[list(self.errors)] = False
        return pa.array(mask)

    def sys_flag(self) -> pa.Array:
        flag = self.parts.sys_flag
        return pa.array(np.where(self._is_compressed, flag & ~(COMPRESSED_FLAG | COMPRESSION_TYPE_MASK), flag))

    def topic(self) -> pa.Array:
        return as_strings(copy_short_slices(self.parts.view, self.parts.topic_at, self.parts.topic_end), "topics")

    @cached_property
    def properties_raw(self) -> pa.Array:
        return as_strings(copy_slices(self.parts.view, self.parts.properties_at, self.parts.end), "properties")

    @cached_property
    def properties(self) -> ParsedProperties:
        return ParsedProperties(self.properties_raw)

    def property(self, name: str) -> pa.Array:
        found = find_property(reinterpret(self.properties_raw, pa.binary()), name) if self._asks_for_few else None
        return reinterpret(self.properties.get(name) if found is None else found, pa.string())

    def number(self, name: str) -> pa.Array:
        return pa.array(self.parts.field(name))

    def timestamp(self, name: str) -> pa.Array:
        ms = self.parts.field(name)
        if ms.view(np.uint64).max() > _MS_MAX:  # also negative ones, which only invalid bytes contain
            ms = np.clip(ms, -_MS_MAX, _MS_MAX)
        return pa.array(ms * 1000).view(_TIMESTAMP)

    def host(self, at: int, extra: Ints | None, ipv6: int) -> pa.Array:
        starts = self.parts.starts + (at if extra is None else at + extra)
        packed = copy_short_slices(
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
    born_at, store_at = HEADER_DTYPE.fields["born_host"][1], HEADER_DTYPE.fields["store_host"][1]  # type: ignore[index]
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
        ("keys", pa.string(), lambda batch: batch.property(PROPERTY_KEYS)),
        ("tags", pa.string(), lambda batch: batch.property(PROPERTY_TAGS)),
        ("msg_id", pa.string(), lambda batch: batch.property(PROPERTY_UNIQUE_KEY)),
        ("properties", PROPERTY_MAP_TYPE, lambda batch: batch.properties.map()),
        ("properties_raw", pa.string(), lambda batch: batch.properties_raw),
        ("body", pa.binary(), lambda batch: batch.body),
        ("decode_error", pa.string(), _Batch.decode_error),
        ("born_host", pa.string(), lambda batch: batch.host(born_at, None, BORN_HOST_IPV6_FLAG)),
        ("store_host", pa.string(), lambda batch: batch.host(store_at, batch.parts.born_extra, STORE_HOST_IPV6_FLAG)),
    ]
    return {name: (pa.field(name, kind), make) for name, kind, make in makers}


COLUMN_DECODERS = _columns()
"""All columns: the Arrow field and the function that decodes it."""

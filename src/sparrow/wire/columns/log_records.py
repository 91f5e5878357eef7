"""What a store asks of a run of records: are they sound, what are they filed under; and the stamp of their place."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.model.errors import ProtocolError, Refused
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from sparrow.wire.checksum import body_crc
from sparrow.wire.columns.encoder import body_crcs
from sparrow.wire.columns.hashes import concat_hashes, hashes_and_units, java_hashes
from sparrow.wire.columns.layout import (
    BATCH_BYTES_MAX,
    IPV6_EXTRA_BYTES,
    Bools,
    BytesLike,
    Ints,
    as_strings,
    byte_view,
    copy_short_slices,
    copy_slices,
    data_and_offsets,
    locate_parts,
    locate_valid_parts,
    unaligned_view,
)
from sparrow.wire.columns.properties import ParsedProperties
from sparrow.wire.hashes import java_hash
from sparrow.wire.record import (
    BORN_HOST_IPV6_FLAG,
    HIDDEN_FLAG,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
    RECORD_BYTES_MIN,
    STORE_HOST_IPV6_FLAG,
    STORE_TIME_POSITION,
    SYS_FLAG_POSITION,
)


class LogRecords:
    """Records that lie soundly at `starts` (else `ProtocolError`), measured once for all questions."""

    def __init__(self, buf: BytesLike, starts: Any) -> None:
        self._parts = locate_valid_parts(buf, starts)
        self._topic: bytes | None = None

    def __len__(self) -> int:
        return len(self._parts.starts)

    def verify(self, *, topic: bytes, store_host_bytes: int, verify_crc: bool) -> None:
        """`ProtocolError` unless all may go into one queue: of this topic, with room for a store host of this kind,
        no half messages or roll-backs, text where it belongs, and bodies that match their checksum."""
        parts = self._parts
        flags = parts.sys_flag
        if (((flags & STORE_HOST_IPV6_FLAG) != 0) != (store_host_bytes == 20)).any():
            raise ProtocolError("the records were encoded for another kind of store host, IPv4 or IPv6")
        if (flags & HIDDEN_FLAG).any():
            raise ProtocolError("half messages and roll-backs cannot come in a run")
        is_same = _are_equal(parts.view, parts.topic_at, parts.topic_end, topic)
        if not is_same.all():
            raise ProtocolError(f"record {int(np.argmin(is_same))} is not of topic {topic.decode()!r}")
        self._topic = topic
        as_strings(self._property_strings, "properties")
        if verify_crc:
            is_right = _crcs(parts.view, parts.body_at, parts.topic_length_at) == parts.header["crc"] & 0x7FFF_FFFF
            is_right |= parts.topic_length_at == parts.body_at
            if not is_right.all():
                raise ProtocolError(f"the body of record {int(np.argmin(is_right))} does not match its checksum")

    def tags_codes(self) -> Ints:
        """What the consume queue keeps for each record's tag: its hash, 0 without one."""
        return java_hashes(self._properties.get(PROPERTY_TAGS)).astype(np.int64)

    def keys(self) -> RecordKeys:
        """What the key index files them under."""
        return RecordKeys(self._properties, *self._topic_hashes())

    def _topic_hashes(self) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """The hash of `topic#` for each distinct topic, and which of them each record has."""
        parts = self._parts
        if self._topic is not None:
            prefix = java_hash(f"{self._topic.decode()}#")
            return np.array([prefix & 0xFFFF_FFFF], np.uint32), np.zeros(1, np.int32)
        topics = copy_short_slices(parts.view, parts.topic_at, parts.topic_end).dictionary_encode()
        prefixes = hashes_and_units(topics.dictionary)[0] * np.uint32(31) + np.uint32(ord("#"))
        return prefixes, topics.indices.to_numpy(zero_copy_only=False)

    @cached_property
    def _property_strings(self) -> pa.Array:
        return copy_slices(self._parts.view, self._parts.properties_at, self._parts.end)

    @cached_property
    def _properties(self) -> ParsedProperties:
        return ParsedProperties(self._property_strings)


class RecordKeys:
    """The keys of a run, in a copy of its properties: they can be hashed later, when the run's bytes are long gone."""

    def __init__(self, properties: ParsedProperties, prefixes: NDArray[np.uint32], topic_of: NDArray[np.int32]) -> None:
        self._properties, self._prefixes, self._topic_of = properties, prefixes, topic_of

    @property
    def held_bytes(self) -> int:
        """How much memory it keeps from being freed."""
        return self._properties.held_bytes

    def hashes(self) -> tuple[Ints, NDArray[np.int32]]:
        """(which record, hash) for each key, a record's unique key before its other keys."""
        unique_rows, unique = _present(self._properties.get(PROPERTY_UNIQUE_KEY))
        token_rows, tokens = _tokens(self._properties.get(PROPERTY_KEYS))
        hashes = np.empty(len(unique_rows) + len(token_rows), np.int32)
        hashes[: len(unique_rows)] = self._filed_under(unique_rows, unique)
        hashes[len(unique_rows) :] = self._filed_under(token_rows, tokens)
        if len(unique_rows) == len(token_rows) == len(self._properties):  # one of each: they only interleave
            return np.repeat(unique_rows, 2), hashes.reshape(2, -1).T.reshape(-1)
        rows = np.concatenate((unique_rows, token_rows))
        order = np.argsort(rows, kind="stable")
        return rows[order], hashes[order]

    def _filed_under(self, rows: Ints, keys: pa.Array) -> NDArray[np.int32]:
        """The hash of `topic#key` for keys of these records, without joining the two."""
        key_hashes, key_units = hashes_and_units(keys)
        prefix = self._prefixes if len(self._prefixes) == 1 else self._prefixes[self._topic_of[rows]]
        # NumPy's abs, like Java's, leaves -2^31 as it is; the index files it under 0.
        hashes: NDArray[np.int32] = np.abs(concat_hashes(prefix, key_hashes, key_units).view(np.int32))
        return np.maximum(hashes, 0)


def _present(values: pa.Array) -> tuple[Ints, pa.Array]:
    """The rows that have a value, and the values."""
    if not values.null_count:
        return np.arange(len(values)), values
    is_there = values.is_valid()
    return np.flatnonzero(is_there).astype(np.int64), values.filter(is_there)


def _tokens(keys: pa.Array) -> tuple[Ints, pa.Array]:
    """The keys between single spaces, without empty ones, and the row of each."""
    if not keys.null_count and not (data_and_offsets(keys)[0] == ord(" ")).any():
        return np.arange(len(keys)), keys
    lists = pc.split_pattern(keys, " ")
    rows, tokens = pc.list_parent_indices(lists), pc.list_flatten(lists)
    is_token = pc.greater(pc.binary_length(tokens), 0)
    return rows.filter(is_token).to_numpy(zero_copy_only=False).astype(np.int64), tokens.filter(is_token)


def tags_codes(buf: BytesLike, starts: Any) -> Ints:
    """`LogRecords.tags_codes`, where nothing else is asked."""
    return LogRecords(buf, starts).tags_codes()


def index_keys(buf: BytesLike, starts: Any) -> tuple[Ints, NDArray[np.int32]]:
    """The hashes of `LogRecords.keys`, where nothing else is asked."""
    return LogRecords(buf, starts).keys().hashes()


# -- recovery ---------------------------------------------------------------------------------------------------------


def find_valid(buf: BytesLike, starts: Any, *, base: int | Ints, topic: bytes | None = None) -> Bools:
    """Which of the records at `starts` are sound: laid out rightly, at home, with text that is UTF-8, a body that
    matches its checksum, and of this topic if one is named. No bytes make it raise.

    At home: at `base` (of all, or of each) + start lies, by its own word, the record.
    """
    view, starts = byte_view(buf), np.asarray(starts, np.int64)
    is_sound: Bools = (starts >= 0) & (starts <= len(view) - RECORD_BYTES_MIN)
    if not is_sound.any():
        return is_sound
    home = (starts + base)[is_sound]
    parts = locate_parts(view, starts[is_sound])
    is_right = parts.is_sound & (parts.header["physical_offset"] == home)
    is_right[is_right] = _are_texts(view, parts.topic_at[is_right], parts.topic_end[is_right])
    if topic is not None:
        is_right[is_right] = _are_equal(view, parts.topic_at[is_right], parts.topic_end[is_right], topic)
    is_right[is_right] = _are_texts(view, parts.properties_at[is_right], parts.end[is_right])
    has_body = is_right & (parts.topic_length_at > parts.body_at)
    crcs = _crcs(view, parts.body_at[has_body], parts.topic_length_at[has_body])
    is_right[has_body] = crcs == parts.header["crc"][has_body] & 0x7FFF_FFFF
    is_sound[is_sound] = is_right
    return is_sound


def _are_equal(view: memoryview, at: Ints, end: Ints, wanted: bytes) -> Bools:
    """Which of the slices are these bytes."""
    is_same: Bools = end - at == len(wanted)
    if wanted and is_same.any():
        slices = unaligned_view(view, f"V{len(wanted)}")[at[is_same]].view(np.uint8).reshape(-1, len(wanted))
        is_same[is_same] = (slices == np.frombuffer(wanted, np.uint8)).all(axis=1)
    return is_same


def _are_texts(view: memoryview, at: Ints, end: Ints) -> Bools:
    """Which of the slices are UTF-8."""
    if not len(at):
        return np.ones(0, np.bool_)
    if (end[:-1] <= at[1:]).all():
        first = int(at[0])
        slices = copy_short_slices(view[first : int(end[-1])], at - first, end - first)
    else:  # overlapping ones cannot all be sound, but that is not for this function to say
        slices = pa.array([bytes(view[a:b]) for a, b in zip(at.tolist(), end.tolist(), strict=True)], pa.binary())
    try:
        as_strings(slices, "slices")
    except ProtocolError:
        return np.fromiter(map(_is_utf8, slices.to_pylist()), np.bool_, len(at))
    return np.ones(len(at), np.bool_)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _crcs(view: memoryview, at: Ints, end: Ints) -> NDArray[np.uint32]:
    if len(view) <= BATCH_BYTES_MAX and (end[:-1] <= at[1:]).all():
        return body_crcs(copy_slices(view, at, end))  # quicker than to slice one by one
    slices = (view[a:b] for a, b in zip(at.tolist(), end.tolist(), strict=True))
    return np.fromiter(map(body_crc, slices), np.uint32, len(at))


# -- the stamp --------------------------------------------------------------------------------------------------------


def stamp_offsets(
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
    if starts.min() < 0 or starts.max() > len(buf) - RECORD_BYTES_MIN:
        raise IndexError(f"a record to be stamped lies outside the {len(buf)} bytes of the buffer")
    # The last byte of the sys flag has the two bits that say IPv6.
    hosts = np.frombuffer(buf, np.uint8)[starts + (SYS_FLAG_POSITION + 3)]
    if store_host is not None and (((hosts & STORE_HOST_IPV6_FLAG) != 0) != (len(store_host) == 20)).any():
        raise Refused("the store host is not of the kind, IPv4 or IPv6, that the records were encoded for")
    late = (
        starts + np.where(hosts & BORN_HOST_IPV6_FLAG, IPV6_EXTRA_BYTES, 0)
        if (hosts & BORN_HOST_IPV6_FLAG).any()
        else starts
    )
    offsets = np.empty(len(starts), _TWO_OFFSETS)
    offsets["queue_offset"] = queue_offset
    offsets["physical_offset"] = physical_offset
    unaligned_view(buf, _OPAQUE_16, QUEUE_OFFSET_POSITION)[starts] = offsets.view(_OPAQUE_16)
    if queue_id is not None:
        unaligned_view(buf, ">i4", QUEUE_ID_POSITION)[starts] = queue_id
    # Time and host lie side by side.
    stored = np.empty(len(starts), np.dtype([("ms", ">i8"), ("host", f"V{len(store_host or b'')}")]))
    stored["ms"] = store_ms
    if store_host is not None:
        stored["host"] = np.void(store_host)
    opaque = np.dtype(f"V{stored.itemsize}")
    unaligned_view(buf, opaque, STORE_TIME_POSITION)[late] = stored.view(opaque)


_TWO_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
# Bytes as bytes: NumPy scatters them quicker than numbers in a foreign order.
_OPAQUE_16 = np.dtype("V16")

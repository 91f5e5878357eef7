"""Records of a commit log, many at once: validate them, compute tags codes and key hashes, stamp their offsets."""

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
    RecordParts,
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
    """Valid records, whose parts are located once for all methods."""

    def __init__(self, parts: RecordParts) -> None:
        """Take the parts of valid records; `locate` and `scan` find them."""
        self._parts = parts
        self._topic: bytes | None = None

    @classmethod
    def locate(cls, buf: BytesLike, starts: Any) -> LogRecords:
        """Return the records at `starts`, which must be valid; else `ProtocolError`. Checksums are not compared."""
        return cls(locate_valid_parts(buf, starts))

    @classmethod
    def scan(cls, buf: BytesLike, starts: Ints, *, base: int) -> LogRecords:
        """Return the records at `starts`, from `find_starts`, before the first one that `find_valid` does not accept.

        One pass serves the check and all methods, as long as every record is valid.
        """
        view = byte_view(buf)
        records = cls(locate_parts(view, starts)) if len(starts) else cls(locate_valid_parts(view, starts))
        if records._are_all_valid(base):
            return records
        is_valid = find_valid(view, starts, base=base)
        count = len(starts) if is_valid.all() else int(np.argmin(is_valid))
        return cls.locate(view, starts[:count])

    def _are_all_valid(self, base: int) -> bool:
        parts = self._parts
        if not (parts.is_sound & (parts.header["physical_offset"] == parts.starts + base)).all():
            return False
        topics, strings = self._topic_strings, self._property_strings
        if any(len(data) and data.max() >= 0x80 for data, _ in (data_and_offsets(topics), data_and_offsets(strings))):
            return False  # not ASCII: each text is looked at
        has_body = parts.topic_length_at > parts.body_at
        crcs = _crcs(parts.view, parts.body_at[has_body], parts.topic_length_at[has_body])
        return bool((crcs == parts.header["crc"][has_body] & 0x7FFF_FFFF).all())

    def __len__(self) -> int:
        return len(self._parts.starts)

    @property
    def view(self) -> memoryview:
        """The bytes that hold the records."""
        return self._parts.view

    @property
    def starts(self) -> Ints:
        """Where the records start."""
        return self._parts.starts

    @property
    def sizes(self) -> Ints:
        """The sizes of the records."""
        return self._parts.end - self._parts.starts

    def field(self, name: str) -> NDArray[Any]:
        """Return one fixed field of all records, by its name in the header."""
        return self._parts.field(name)

    def topics(self) -> tuple[list[str], NDArray[np.int32]]:
        """Return the distinct topics, and the index of each record's topic."""
        encoded = self._topic_strings.dictionary_encode()
        return as_strings(encoded.dictionary, "topics").to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)

    def verify(self, *, topic: bytes, store_host_bytes: int, verify_crc: bool) -> None:
        """Raise `ProtocolError` unless all records may be appended to one queue of this topic.

        They must have a store host of this size and UTF-8 properties, must not be half messages or rollbacks, and the
        bodies must match their checksums.
        """
        parts = self._parts
        flags = parts.sys_flag
        if (((flags & STORE_HOST_IPV6_FLAG) != 0) != (store_host_bytes == 20)).any():
            raise ProtocolError("the records were encoded for another kind of store host, IPv4 or IPv6")
        if (flags & HIDDEN_FLAG).any():
            raise ProtocolError("half messages and rollbacks cannot be appended in a batch")
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
        """Return the tags code of each record for the consume queue; 0 without a tag."""
        return java_hashes(self._properties.get(PROPERTY_TAGS)).astype(np.int64)

    def keys(self) -> RecordKeys:
        """Return the keys of the records, for the key index."""
        return RecordKeys(self._properties, *self._topic_hashes())

    def _topic_hashes(self) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Return the hash of `topic#` for each distinct topic, and the index of each record's topic."""
        if self._topic is not None:
            prefix = java_hash(f"{self._topic.decode()}#")
            return np.array([prefix & 0xFFFF_FFFF], np.uint32), np.zeros(1, np.int32)
        topics = self._topic_strings.dictionary_encode()
        prefixes = hashes_and_units(topics.dictionary)[0] * np.uint32(31) + np.uint32(ord("#"))
        return prefixes, topics.indices.to_numpy(zero_copy_only=False)

    @cached_property
    def _topic_strings(self) -> pa.Array:
        return copy_short_slices(self._parts.view, self._parts.topic_at, self._parts.topic_end)

    @cached_property
    def _property_strings(self) -> pa.Array:
        return copy_slices(self._parts.view, self._parts.properties_at, self._parts.end)

    @cached_property
    def _properties(self) -> ParsedProperties:
        return ParsedProperties(self._property_strings)


class RecordKeys:
    """The keys of records, in a copy of their properties: they can be hashed after the buffer was released."""

    def __init__(self, properties: ParsedProperties, prefixes: NDArray[np.uint32], topic_of: NDArray[np.int32]) -> None:
        self._properties, self._prefixes, self._topic_of = properties, prefixes, topic_of

    @property
    def held_bytes(self) -> int:
        """The memory that this object holds."""
        return self._properties.held_bytes

    def hashes(self) -> tuple[Ints, NDArray[np.int32]]:
        """Return (record index, hash) for each key, the unique key of a record before its other keys."""
        unique_rows, unique = _present(self._properties.get(PROPERTY_UNIQUE_KEY))
        token_rows, tokens = _tokens(self._properties.get(PROPERTY_KEYS))
        hashes = np.empty(len(unique_rows) + len(token_rows), np.int32)
        hashes[: len(unique_rows)] = self._index_hashes(unique_rows, unique)
        hashes[len(unique_rows) :] = self._index_hashes(token_rows, tokens)
        if np.array_equal(unique_rows, token_rows):  # one of each for the same records: interleave
            return np.repeat(unique_rows, 2), hashes.reshape(2, -1).T.reshape(-1)
        rows = np.concatenate((unique_rows, token_rows))
        order = np.argsort(rows, kind="stable")
        return rows[order], hashes[order]

    def _index_hashes(self, rows: Ints, keys: pa.Array) -> NDArray[np.int32]:
        """Return the hash of `topic#key` for keys of these records, without concatenating the texts."""
        key_hashes, key_units = hashes_and_units(keys)
        prefix = self._prefixes if len(self._prefixes) == 1 else self._prefixes[self._topic_of[rows]]
        # NumPy's abs, like Java's, keeps -2^31; the index uses 0 for it.
        hashes: NDArray[np.int32] = np.abs(concat_hashes(prefix, key_hashes, key_units).view(np.int32))
        return np.maximum(hashes, 0)


def _present(values: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the rows that have a value, and the values."""
    if not values.null_count:
        return np.arange(len(values)), values
    is_there = values.is_valid()
    return np.flatnonzero(is_there).astype(np.int64), values.filter(is_there)


def _tokens(keys: pa.Array) -> tuple[Ints, pa.Array]:
    """Split keys at single spaces. Return the row of each key, and the keys without empty ones."""
    if not keys.null_count and not (data_and_offsets(keys)[0] == ord(" ")).any():
        return np.arange(len(keys)), keys
    lists = pc.split_pattern(keys, " ")
    rows, tokens = pc.list_parent_indices(lists), pc.list_flatten(lists)
    is_token = pc.greater(pc.binary_length(tokens), 0)
    return rows.filter(is_token).to_numpy(zero_copy_only=False).astype(np.int64), tokens.filter(is_token)


def tags_codes(buf: BytesLike, starts: Any) -> Ints:
    """Return `LogRecords.tags_codes` of the records at `starts`."""
    return LogRecords.locate(buf, starts).tags_codes()


def index_keys(buf: BytesLike, starts: Any) -> tuple[Ints, NDArray[np.int32]]:
    """Return the hashes of `LogRecords.keys` of the records at `starts`."""
    return LogRecords.locate(buf, starts).keys().hashes()


# -- recovery ---------------------------------------------------------------------------------------------------------


def find_valid(buf: BytesLike, starts: Any, *, base: int | Ints, topic: bytes | None = None) -> Bools:
    """Return which of the records at `starts` are valid. It raises for no bytes.

    A valid record has a correct layout, UTF-8 texts, a body that matches its checksum, the physical offset
    `base` + start, and the given topic, if any. `base` is one number, or one for each record.
    """
    view, starts = byte_view(buf), np.asarray(starts, np.int64)
    is_sound: Bools = (starts >= 0) & (starts <= len(view) - RECORD_BYTES_MIN)
    if not is_sound.any():
        return is_sound
    expected_offset = (starts + base)[is_sound]
    parts = locate_parts(view, starts[is_sound])
    is_right = parts.is_sound & (parts.header["physical_offset"] == expected_offset)
    is_right[is_right] = _are_texts(view, parts.topic_at[is_right], parts.topic_end[is_right])
    if topic is not None:
        is_right[is_right] = _are_equal(view, parts.topic_at[is_right], parts.topic_end[is_right], topic)
    is_right[is_right] = _are_texts(view, parts.properties_at[is_right], parts.end[is_right])
    has_body = is_right & (parts.topic_length_at > parts.body_at)
    crcs = _crcs(view, parts.body_at[has_body], parts.topic_length_at[has_body])
    is_right[has_body] = crcs == parts.header["crc"][has_body] & 0x7FFF_FFFF
    is_sound[is_sound] = is_right
    return is_sound


def are_of_topic(buf: BytesLike, starts: Any, topic: bytes) -> Bools:
    """Return which of the valid records at `starts` are of a topic."""
    parts = locate_parts(byte_view(buf), np.asarray(starts, np.int64))
    return parts.is_sound & _are_equal(parts.view, parts.topic_at, parts.topic_end, topic)


def stated_end(buf: BytesLike, start: int) -> int | None:
    """Return where the record at `start` ends, if its lengths add up to its size; its content may be damaged."""
    view = byte_view(buf)
    if not 0 <= start <= len(view) - RECORD_BYTES_MIN:
        return None
    parts = locate_parts(view, np.array([start], np.int64))
    return int(parts.end[0]) if parts.is_sound[0] else None


def _are_equal(view: memoryview, at: Ints, end: Ints, wanted: bytes) -> Bools:
    """Return which of the slices equal these bytes."""
    is_same: Bools = end - at == len(wanted)
    if wanted and is_same.any():
        slices = unaligned_view(view, f"V{len(wanted)}")[at[is_same]].view(np.uint8).reshape(-1, len(wanted))
        is_same[is_same] = (slices == np.frombuffer(wanted, np.uint8)).all(axis=1)
    return is_same


def _are_texts(view: memoryview, at: Ints, end: Ints) -> Bools:
    """Return which of the slices are UTF-8."""
    if not len(at):
        return np.ones(0, np.bool_)
    if (end[:-1] <= at[1:]).all():
        first = int(at[0])
        slices = copy_short_slices(view[first : int(end[-1])], at - first, end - first)
    else:  # overlapping slices are rejected elsewhere
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
    is_long = len(at) > 0 and int(end[-1]) - int(at[0]) >= _LONG_BODY_BYTES * len(at)
    if not is_long and len(view) <= BATCH_BYTES_MAX and (end[:-1] <= at[1:]).all():
        return body_crcs(copy_slices(view, at, end))  # faster than slicing one by one
    slices = (view[a:b] for a, b in zip(at.tolist(), end.tolist(), strict=True))
    return np.fromiter(map(body_crc, slices), np.uint32, len(at))


_LONG_BODY_BYTES = 1024
"""From this size on, copying bodies costs more than slicing them one by one."""


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
    """Write offsets, store time and optionally queue id and store host into encoded records, in place.

    Values are scalars, or one for each record. The caller guarantees valid records at `starts`; in any case, nothing
    outside the buffer is written.
    """
    starts = np.asarray(starts, np.int64)
    if not len(starts):
        return
    if starts.min() < 0 or starts.max() > len(buf) - RECORD_BYTES_MIN:
        raise IndexError(f"a record start is outside the {len(buf)} bytes of the buffer")
    # The last byte of the sys flag has the two IPv6 bits.
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
    # Store time and store host are adjacent.
    stored = np.empty(len(starts), np.dtype([("ms", ">i8"), ("host", f"V{len(store_host or b'')}")]))
    stored["ms"] = store_ms
    if store_host is not None:
        stored["host"] = np.void(store_host)
    opaque = np.dtype(f"V{stored.itemsize}")
    unaligned_view(buf, opaque, STORE_TIME_POSITION)[late] = stored.view(opaque)


_TWO_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
# As opaque bytes: NumPy scatters them faster than numbers in another byte order.
_OPAQUE_16 = np.dtype("V16")

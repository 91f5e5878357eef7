"""Encoding of messages: a draft as the columns of a row, and rows as the records that clients read.

Layout of column `properties`, big-endian:

    at  bytes   field                       at  bytes   field
     0  1       version, 2                  22  8       physical offset of the half message
     1  1       length of the address       30  4       port of the sender
     2  4       flag, set by the user       34  2       length of the property string
     6  4       sys flag                    36  n       property string, as in a record
    10  8       born time, ms                .  0 / 16  address of the sender, if it is IPv6
    18  4       reconsume times

1. From byte 34 on, an IPv4 message has the bytes that end its record: reading it packs the header and copies the rest.
2. Rows of version 1, which older brokers stored, are read, and never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct, error
from typing import Any

import msgspec

from sparrow.model.errors import CorruptRecord
from sparrow.model.message import Draft
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec_v1 import draft_of_row_v1
from sparrow.wire import record
from sparrow.wire.checksum import crc32
from sparrow.wire.hashes import tags_code_in
from sparrow.wire.properties import property_bytes

MESSAGE_COLUMNS = 'id, body, source_ip, token, ref_key, "timestamp", properties'
RECORD_COLUMNS = 'id, body, source_ip, "timestamp", properties'
"""The columns that a record is encoded from."""
KEY_BYTES_MAX = 255
BODY_BYTES_MAX = (1 << 24) - 1
"""The limit of MySQL's MEDIUMBLOB."""

_VERSION = 2
_IPV6_BYTES = 16
_FIXED = Struct(">HiiqiqIH")
_pack_fixed, _unpack_fixed = _FIXED.pack, _FIXED.unpack_from
_FIXED_BYTES = _FIXED.size
_STRING_LENGTH_POSITION = _FIXED_BYTES - 2
_IPV4_START = _VERSION << 8
"""Version and length of the address as one number."""
_KEYS_MARK, _UNIQUE_KEY_MARK = f"{PROPERTY_KEYS}\x01".encode(), f"{PROPERTY_UNIQUE_KEY}\x01".encode()
_WITHOUT_HOST_FLAGS = ~(record.BORN_HOST_IPV6_FLAG | record.STORE_HOST_IPV6_FLAG)
_pack_header = record.IPV4_HEADER.pack


class NewRow(msgspec.Struct, frozen=True, gc=False):
    """The columns of a message that is to be inserted, except id and store time, which the transaction assigns."""

    body: bytes
    source_ip: int
    token: int
    ref_key: bytes | None
    properties: bytes
    extra_keys: tuple[bytes, ...] = ()
    """The keys after the first, which is `ref_key`."""


def row_of_draft(draft: Draft, token: int) -> NewRow:
    """Return the row of a message that is to be stored."""
    return rows_of_drafts((draft,), (token,))[0]


def rows_of_drafts(drafts: Iterable[Draft], tokens: Iterable[int]) -> list[NewRow]:
    """Return the rows of messages that are to be stored, each with the token of its sender.

    Called for every message that is sent.
    """
    rows: list[NewRow] = []
    packed_fields: tuple[Any, ...] = ()
    packed = ipv6 = b""
    source_ip = 0
    for draft, token in zip(drafts, tokens, strict=True):
        properties, body = draft.properties, draft.body
        fields = (
            draft.born_host,
            draft.flag,
            draft.sys_flag,
            draft.born_ms,
            draft.reconsume_times,
            draft.prepared_offset,
            len(properties),
        )
        if fields != packed_fields:  # in the batch of a client they are often the same
            packed_fields = fields
            source_ip, port, ipv6 = _source_of(draft.born_host)
            packed = _pack_fixed(
                _IPV4_START | len(ipv6),
                draft.flag,
                draft.sys_flag & _WITHOUT_HOST_FLAGS,
                draft.born_ms,
                draft.reconsume_times,
                draft.prepared_offset,
                port,
                len(properties),
            )
        key, extra_keys = _keys_in(properties)
        column = packed + properties + ipv6 if ipv6 else packed + properties
        rows.append(NewRow(body if type(body) is bytes else bytes(body), source_ip, token, key, column, extra_keys))
    return rows


@lru_cache(4096)
def _source_of(born_host: bytes) -> tuple[int, int, bytes]:
    """Return column `source_ip`, the port, and an IPv6 address, which that column cannot hold."""
    address, port = born_host[:-4], int.from_bytes(born_host[-4:], "big")
    if len(address) == _IPV6_BYTES:
        return 0, port, address
    return int.from_bytes(address, "big"), port, b""


def row_of_columns(body: bytes, source_ip: int, properties: bytes, token: int) -> NewRow:
    """Return the row of a message that is moved from another table."""
    draft, _ = draft_of_row(body, source_ip, properties)
    return row_of_draft(draft, token)


def _keys_in(properties: bytes) -> tuple[bytes | None, tuple[bytes, ...]]:
    """Return what a message is found by, the first and the others: its keys, and the unique id of its producer."""
    if properties.find(_KEYS_MARK) < 0:  # the usual case, without loops
        before, _, rest = properties.partition(_UNIQUE_KEY_MARK)
        value, _, others = rest.partition(b"\x02")
        is_property = not before or before[-1] == 2
        if is_property and 0 < len(value) <= KEY_BYTES_MAX and not (others and _UNIQUE_KEY_MARK in others):
            return value, ()
    unique_key = property_bytes(properties, PROPERTY_UNIQUE_KEY)
    keys = property_bytes(properties, PROPERTY_KEYS)
    found = tuple(key for key in dict.fromkeys((*keys.split(), unique_key)) if 0 < len(key) <= KEY_BYTES_MAX)
    return (found[0], found[1:]) if found else (None, ())


def draft_of_row(body: bytes, source_ip: int, properties: bytes) -> tuple[Draft, int]:
    """Return the message as it was sent, and the hash code of its tags."""
    if not properties or properties[0] != _VERSION:
        draft = draft_of_row_v1(body, source_ip, properties)
        return draft, tags_code_in(draft.properties)
    if len(properties) < _FIXED_BYTES:
        raise CorruptRecord(0, f"its properties have only {len(properties)} bytes")
    start, flag, sys_flag, born_ms, times, prepared, port, length = _unpack_fixed(properties)
    ipv6_bytes, end = start & 0xFF, _FIXED_BYTES + length
    if ipv6_bytes not in (0, _IPV6_BYTES) or len(properties) != end + ipv6_bytes:
        raise CorruptRecord(0, f"its properties have {len(properties)} bytes instead of {end + ipv6_bytes}")
    draft = Draft(
        body=body,
        properties=properties[_FIXED_BYTES:end],
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=(properties[end:] or source_ip.to_bytes(4, "big")) + port.to_bytes(4, "big"),
        reconsume_times=times,
        prepared_offset=prepared,
    )
    return draft, tags_code_in(draft.properties)


def tags_code_of(properties: bytes) -> int:
    """Return the hash code of the tags in a property column."""
    if properties and properties[0] == _VERSION and not properties[1]:
        return tags_code_in(properties[_FIXED_BYTES:])
    return draft_of_row(b"", 0, properties)[1]


class RowRecordEncoder:
    """Encodes rows of one lane as records."""

    def __init__(self, lane: Lane, topic: str, queue_id: int, store_host: bytes) -> None:
        self.lane, self.queue_id = lane, queue_id
        self._lane_bits = lane.physical_offset(0)
        self._topic_field, self._store_host = record.topic_field(topic.encode()), store_host

    def encode_all(self, rows: Iterable[Sequence[Any]]) -> tuple[bytes, list[int]]:
        """Return the records of rows in the order of `RECORD_COLUMNS`, laid end to end, and the size of each.

        Called for every message that is read from the database.
        """
        if len(self._store_host) != 8:
            records = [self.encode(*row)[0] for row in rows]
            return b"".join(records), [len(each) for each in records]
        topic, store_host, queue_id, lane_bits = self._topic_field, self._store_host, self.queue_id, self._lane_bits
        beside = record.FIXED_HEADER_BYTES + len(topic) - _STRING_LENGTH_POSITION
        magic = record.MAGIC_V1
        parts: list[bytes] = []
        sizes: list[int] = []
        for message_id, body, source_ip, store_ms, properties in rows:
            try:
                start, flag, sys_flag, born_ms, times, prepared, port, length = _unpack_fixed(properties)
            except (error, TypeError):  # a short column of version 1, or NULL
                start = length = 0
            if start != _IPV4_START:
                encoded = self.encode(message_id, body, source_ip, store_ms, properties)[0]
                parts.append(encoded)
                sizes.append(len(encoded))
                continue
            if length != len(properties) - _FIXED_BYTES:
                raise CorruptRecord(0, f"its properties have {len(properties)} bytes, its property string {length}")
            body_bytes = len(body)
            size = beside + body_bytes + len(properties)
            parts += (
                _pack_header(
                    size,
                    magic,
                    crc32(body) & 0x7FFFFFFF,
                    queue_id,
                    flag,
                    message_id - 1,
                    lane_bits | message_id,
                    sys_flag,
                    born_ms,
                    source_ip,
                    port,
                    store_ms,
                    store_host,
                    times,
                    prepared,
                    body_bytes,
                ),
                body,
                topic,
                properties[_STRING_LENGTH_POSITION:],
            )
            sizes.append(size)
        return b"".join(parts), sizes

    def encode_row(self, row: Sequence[Any]) -> bytes:
        """Return the record of a row in the order of `MESSAGE_COLUMNS`."""
        message_id, body, source_ip, _, _, store_ms, properties = row
        return self.encode(message_id, body, source_ip, store_ms, properties)[0]

    def encode(
        self, message_id: int, body: bytes, source_ip: int, store_ms: int, properties: bytes
    ) -> tuple[bytes, int]:
        """Return the record of a row, and the hash code of its tags."""
        draft, tags = draft_of_row(body, source_ip, properties)
        encoded = record.encode(
            draft,
            self._topic_field,
            size=record.record_size(draft, self._topic_field, self._store_host),
            queue_id=self.queue_id,
            queue_offset=message_id - 1,
            physical_offset=self._lane_bits | message_id,
            store_ms=store_ms,
            store_host=self._store_host,
        )
        return encoded, tags

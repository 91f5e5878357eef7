"""Encoding of messages: a draft as the columns of a row, and a row as the record that clients read.

Layout of column `properties`, big-endian, text in UTF-8:

    version 1 byte | count 2 bytes | count times: name length 2 bytes | value length 4 bytes | name | value

Names that start with `sys.` belong to the broker: fields of a record that the table has no columns for.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

import msgspec

from sparrow.model.errors import CorruptRecord
from sparrow.model.message import Draft
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY
from sparrow.store.sql.lanes import Lane
from sparrow.wire import record
from sparrow.wire.hashes import tags_code_in

MESSAGE_COLUMNS = 'id, body, source_ip, token, ref_key, "timestamp", properties'
RECORD_COLUMNS = 'id, body, source_ip, "timestamp", properties'
"""The columns that a record is encoded from."""
KEY_BYTES_MAX = 255
BODY_BYTES_MAX = (1 << 24) - 1
"""The limit of MySQL's MEDIUMBLOB."""

_VERSION = 1
_START = Struct(">BH")
_LENGTHS = Struct(">HI")
_pack_lengths, _read_lengths = _LENGTHS.pack, _LENGTHS.unpack_from
_BORN, _FLAG, _SYS_FLAG = b"sys.born", b"sys.flag", b"sys.sysflag"
_TIMES, _PREPARED, _PORT, _SOURCE = b"sys.times", b"sys.prepared", b"sys.port", b"sys.src"
_KEYS, _UNIQUE_KEY = PROPERTY_KEYS.encode(), PROPERTY_UNIQUE_KEY.encode()


class NewRow(msgspec.Struct, frozen=True, gc=False):
    """The columns of a message that is to be inserted, except id and store time, which the transaction assigns."""

    body: bytes
    source_ip: int
    token: int
    ref_key: bytes | None
    properties: bytes
    extra_keys: tuple[bytes, ...] = ()
    """The keys after the first, which is `ref_key`."""


def pack_properties(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode the property column."""
    parts: list[bytes] = []
    count = 0
    for name, value in pairs:
        count += 1
        parts += (_LENGTHS.pack(len(name), len(value)), name, value)
    return _START.pack(_VERSION, count) + b"".join(parts)


def unpack_properties(packed: bytes) -> list[tuple[bytes, bytes]]:
    """Decode a property column into its pairs, in order."""
    at, pairs = 3, []
    for _ in range(_count_in(packed)):
        name_bytes, value_bytes = _read_lengths(packed, at)
        middle = at + 6 + name_bytes
        end = middle + value_bytes
        pairs.append((packed[at + 6 : middle], packed[middle:end]))
        at = end
    _check_end(packed, at)
    return pairs


def _split(packed: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Decode a column into the sender's property string and the broker's pairs. Called for every message read."""
    at, parts, system = 3, [], {}
    for _ in range(_count_in(packed)):
        name_bytes, value_bytes = _read_lengths(packed, at)
        middle = at + 6 + name_bytes
        end = middle + value_bytes
        name = packed[at + 6 : middle]
        if name[:4] == b"sys.":
            system[name] = packed[middle:end]
        else:
            parts.append(b"%b\x01%b\x02" % (name, packed[middle:end]))
        at = end
    _check_end(packed, at)
    return b"".join(parts), system


def _count_in(packed: bytes) -> int:
    if not packed:
        return 0
    version, count = _START.unpack_from(packed)
    if version != _VERSION:
        raise CorruptRecord(0, f"its properties have version {version}; this Sparrow reads version {_VERSION}")
    return int(count)


def _check_end(packed: bytes, at: int) -> None:
    if packed and at != len(packed):
        raise CorruptRecord(0, f"its properties have {len(packed)} bytes instead of {at}")


def row_of_draft(draft: Draft, token: int) -> NewRow:
    """Return the row of a message that is to be stored."""
    parts = [b""]
    count = 1
    keys = unique_key = b""
    for pair in draft.properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if value and name and name[:4] != b"sys.":
            count += 1
            parts += (_pack_lengths(len(name), len(value)), name, value)
            if name == _UNIQUE_KEY:
                unique_key = value
            elif name == _KEYS:
                keys = value
    born = b"%d" % draft.born_ms
    parts += (_pack_lengths(8, len(born)), _BORN, born)
    source_ip, more = _source_of(draft.born_host)
    if draft.flag or draft.sys_flag or draft.reconsume_times or draft.prepared_offset or more:
        more = (*_numbers(draft), *more)
        count += len(more)
        for name, value in more:
            parts += (_pack_lengths(len(name), len(value)), name, value)
    parts[0] = _START.pack(_VERSION, count)
    found = _found_by(keys, unique_key)
    return NewRow(bytes(draft.body), source_ip, token, found[0] if found else None, b"".join(parts), found[1:])


def _numbers(draft: Draft) -> Iterator[tuple[bytes, bytes]]:
    """Yield the numbers that are not 0; in most messages all are."""
    for name, number in (
        (_FLAG, draft.flag),
        (_SYS_FLAG, draft.sys_flag),
        (_TIMES, draft.reconsume_times),
        (_PREPARED, draft.prepared_offset),
    ):
        if number:
            yield name, b"%d" % number


@lru_cache(4096)
def _source_of(born_host: bytes) -> tuple[int, tuple[tuple[bytes, bytes], ...]]:
    """Return column `source_ip`, and the properties for port and IPv6 address, which it cannot hold."""
    ip, port = born_host[:-4], int.from_bytes(born_host[-4:], "big")
    more = ((_PORT, b"%d" % port),) if port else ()
    if len(ip) == 16:
        return 0, (*more, (_SOURCE, str(ipaddress.IPv6Address(ip)).encode()))
    return int.from_bytes(ip, "big"), more


@lru_cache(4096)
def _born_host(source_ip: int, port: bytes | None, source: bytes | None) -> bytes:
    """Return the born host of a record: the inverse of `_source_of`."""
    ip = ipaddress.IPv6Address(source.decode()).packed if source is not None else source_ip.to_bytes(4, "big")
    return ip + int(port or 0).to_bytes(4, "big")


def row_of_columns(body: bytes, source_ip: int, properties: bytes, token: int) -> NewRow:
    """Return the row of a message that is moved from another table."""
    keys = keys_in(dict(unpack_properties(properties)))
    return NewRow(body, source_ip, token, keys[0] if keys else None, properties, keys[1:])


def keys_in(properties: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """Return what a message is found by: its keys, and the unique id that its producer gave it."""
    return _found_by(properties.get(_KEYS, b""), properties.get(_UNIQUE_KEY, b""))


def _found_by(keys: bytes, unique_key: bytes) -> tuple[bytes, ...]:
    if not keys and 0 < len(unique_key) <= KEY_BYTES_MAX:  # the usual case
        return (unique_key,)
    found = dict.fromkeys((*keys.split(), unique_key))
    return tuple(key for key in found if 0 < len(key) <= KEY_BYTES_MAX)


class RowRecordEncoder:
    """Encodes rows of one lane as records."""

    def __init__(self, lane: Lane, topic: str, queue_id: int, store_host: bytes) -> None:
        self.lane, self.queue_id = lane, queue_id
        self._lane_bits = lane.physical_offset(0)
        self._topic_field, self._store_host = record.topic_field(topic.encode()), store_host

    def encode_row(self, row: Sequence[Any]) -> tuple[bytes, int]:
        """Return the record of a row in the order of `MESSAGE_COLUMNS`, and the hash code of its tags."""
        message_id, body, source_ip, _, _, store_ms, properties = row
        return self.encode(message_id, body, source_ip, store_ms, properties)

    def encode_new(self, message_id: int, row: NewRow, store_ms: int) -> tuple[bytes, int]:
        """Return the same for a row that was just inserted."""
        return self.encode(message_id, row.body, row.source_ip, store_ms, row.properties)

    def encode(
        self, message_id: int, body: bytes, source_ip: int, store_ms: int, properties: bytes
    ) -> tuple[bytes, int]:
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


def draft_of_row(body: bytes, source_ip: int, properties: bytes) -> tuple[Draft, int]:
    """Return the message as it was sent, and the hash code of its tags."""
    sender_properties, system = _split(properties)
    born_host = _born_host(source_ip, system.get(_PORT), system.get(_SOURCE))
    draft = Draft(body=body, properties=sender_properties, born_ms=int(system.get(_BORN, 0)), born_host=born_host)
    if len(system) > 1 or _BORN not in system:
        draft.flag, draft.sys_flag = int(system.get(_FLAG, 0)), int(system.get(_SYS_FLAG, 0))
        draft.reconsume_times, draft.prepared_offset = int(system.get(_TIMES, 0)), int(system.get(_PREPARED, 0))
    return draft, tags_code_in(sender_properties)

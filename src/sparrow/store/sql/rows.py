"""A message as a row, and a row as the record that clients read.

The property column: a version byte, the count (2 bytes), and for each pair the length of its name (2 bytes), the length
of its value (4 bytes), name, value; all big-endian, text as UTF-8. Names that start with `sys.` are the broker's: what
a record knows of a message beyond the columns of the table.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

from sparrow.model.errors import CorruptRecord
from sparrow.model.message import KEYS, TAGS, UNIQUE_KEY, Draft
from sparrow.store.sql.names import Lane
from sparrow.wire import record
from sparrow.wire.tags import tags_code

COLUMNS = 'id, body, source_ip, token, ref_key, "timestamp", properties'
KEY_BYTES_MAX = 255
BODY_BYTES_MAX = (1 << 24) - 1
"""What a MEDIUMBLOB holds."""

_VERSION = 1
_START = Struct(">BH")
_LENGTHS = Struct(">HI")
_BORN, _FLAG, _SYS_FLAG = b"sys.born", b"sys.flag", b"sys.sysflag"
_TIMES, _PREPARED, _PORT, _SOURCE = b"sys.times", b"sys.prepared", b"sys.port", b"sys.src"
_KEYS, _UNIQUE_KEY, _TAGS = KEYS.encode(), UNIQUE_KEY.encode(), TAGS.encode()


class Entry(NamedTuple):
    """What is inserted of a message, but for what the transaction adds: id and time."""

    body: bytes
    source_ip: int
    token: int
    ref_key: bytes | None
    properties: bytes
    more_keys: tuple[bytes, ...] = ()
    """Keys beside the first."""


class Row(NamedTuple):
    """What is read of a message, in the order of `COLUMNS`."""

    id: int
    body: bytes
    source_ip: int
    token: int
    ref_key: bytes | None
    store_ms: int
    properties: bytes


def pack(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The property column of a map."""
    parts: list[bytes] = []
    count = 0
    for name, value in pairs:
        count += 1
        parts += (_LENGTHS.pack(len(name), len(value)), name, value)
    return _START.pack(_VERSION, count) + b"".join(parts)


def unpack(packed: bytes) -> list[tuple[bytes, bytes]]:
    """The pairs of a property column, in order."""
    if not packed:
        return []
    version, count = _START.unpack_from(packed)
    if version != _VERSION:
        raise CorruptRecord(0, f"its properties are of version {version}, only {_VERSION} is known")
    at, pairs = 3, []
    read = _LENGTHS.unpack_from
    for _ in range(count):
        name_bytes, value_bytes = read(packed, at)
        middle = at + 6 + name_bytes
        end = middle + value_bytes
        pairs.append((packed[at + 6 : middle], packed[middle:end]))
        at = end
    if at != len(packed):
        raise CorruptRecord(0, f"its properties should take {at} bytes, they take {len(packed)}")
    return pairs


def entry_of(draft: Draft, token: int) -> Entry:
    """The columns of a message on its way in."""
    pairs = [
        (name, value)
        for name, middle, value in (part.partition(b"\x01") for part in draft.properties.split(b"\x02"))
        if name and value and not name.startswith(b"sys.")
    ]
    keys = keys_in(dict(pairs))
    ip, port = draft.born_host[:-4], int.from_bytes(draft.born_host[-4:], "big")
    pairs.append((_BORN, b"%d" % draft.born_ms))
    for name, number in (
        (_FLAG, draft.flag),
        (_SYS_FLAG, draft.sys_flag),
        (_TIMES, draft.reconsume_times),
        (_PREPARED, draft.prepared_offset),
        (_PORT, port),
    ):
        if number:
            pairs.append((name, b"%d" % number))
    source_ip = int.from_bytes(ip, "big") if len(ip) == 4 else 0
    if len(ip) == 16:
        pairs.append((_SOURCE, str(ipaddress.IPv6Address(ip)).encode()))
    return Entry(bytes(draft.body), source_ip, token, keys[0] if keys else None, pack(pairs), keys[1:])


def entry_from(body: bytes, source_ip: int, properties: bytes, token: int) -> Entry:
    """The columns of a message that lay in another table."""
    keys = keys_in(dict(unpack(properties)))
    return Entry(body, source_ip, token, keys[0] if keys else None, properties, keys[1:])


def keys_in(properties: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """What a message is found by: each of its keys, and the unique id its producer gave it."""
    found = dict.fromkeys((*properties.get(_KEYS, b"").split(), properties.get(_UNIQUE_KEY, b"")))
    return tuple(key for key in found if 0 < len(key) <= KEY_BYTES_MAX)


class Records:
    """Makes the records of one lane: what it is for the wire."""

    def __init__(self, lane: Lane, topic: str, queue_id: int, store_host: bytes) -> None:
        self.lane, self.queue_id = lane, queue_id
        self._topic_field, self._store_host = record.topic_field(topic.encode()), store_host

    def of(self, row: Sequence[Any]) -> tuple[bytes, int]:
        """The record of a row in the order of `COLUMNS`, and the code of its tags."""
        message_id, body, source_ip, _, _, store_ms, properties = row
        return self.made(message_id, body, source_ip, store_ms, properties)

    def made(self, message_id: int, body: bytes, source_ip: int, store_ms: int, properties: bytes) -> tuple[bytes, int]:
        draft, tags = draft_of(body, source_ip, properties)
        made = record.encode(
            draft,
            self._topic_field,
            size=record.size_of(draft, self._topic_field, self._store_host),
            queue_id=self.queue_id,
            queue_offset=message_id - 1,
            physical_offset=self.lane.place(message_id),
            store_ms=store_ms,
            store_host=self._store_host,
        )
        return made, tags


def draft_of(body: bytes, source_ip: int, properties: bytes) -> tuple[Draft, int]:
    """What the sender said, and the code of its tags."""
    said: dict[bytes, bytes] = {}
    parts: list[bytes] = []
    tags = 0
    for pair in unpack(properties):
        name, value = pair
        if name.startswith(b"sys."):
            said[name] = value
        else:
            parts.append(b"%b\x01%b\x02" % pair)
            if name == _TAGS:
                tags = tags_code(value.decode())
    source = said.get(_SOURCE)
    ip = ipaddress.IPv6Address(source.decode()).packed if source is not None else source_ip.to_bytes(4, "big")
    draft = Draft(
        body=body,
        properties=b"".join(parts),
        flag=int(said.get(_FLAG, 0)),
        sys_flag=int(said.get(_SYS_FLAG, 0)),
        born_ms=int(said.get(_BORN, 0)),
        born_host=ip + int(said.get(_PORT, 0)).to_bytes(4, "big"),
        reconsume_times=int(said.get(_TIMES, 0)),
        prepared_offset=int(said.get(_PREPARED, 0)),
    )
    return draft, tags

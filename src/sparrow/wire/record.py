"""Encode and decode records of the commit log, which are also the body of a pull response.

All integers are big-endian and signed. A host is 4 or 16 bytes of address and a 4-byte port.

    at  bytes   field                       at  bytes   field
     0  4       total size                  40  8       born time, ms
     4  4       magic                       48  8 / 20  born host
     8  4       CRC of the body, 31 bits    56  8       store time, ms
    12  4       queue id                    64  8 / 20  store host
    16  4       flag, set by the user       72  4       reconsume times
    20  8       queue offset                76  8       physical offset of the half message
    28  8       physical offset             84  4 + n   body
    36  4       sys flag                     .  1 + n   topic (V2: 2 + n)
                                             .  2 + n   properties

1. The total size is exactly the sum of the parts.
2. Sys-flag bits say which hosts are IPv6; each shifts the following fields by 12 bytes.
3. The CRC covers only the body.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct

from sparrow.model.errors import ProtocolError, TooLarge
from sparrow.model.message import Draft, Host, StoredMessage
from sparrow.model.queue import PhysicalOffset, QueueOffset
from sparrow.wire import properties
from sparrow.wire.checksum import body_crc
from sparrow.wire.compression import COMPRESSED_FLAG, decompress

MAGIC_V1 = 0xDAA320A7 - 0x1_0000_0000
MAGIC_V2 = 0xDAA320AB - 0x1_0000_0000
"""V2 has two bytes for the topic length. Sparrow only reads it: RocketMQ 4.9 and Go clients do not know it."""
MAGIC_BLANK = 0xCBD43194 - 0x1_0000_0000
"""Marks the unused rest of a segment."""

BORN_HOST_IPV6_FLAG, STORE_HOST_IPV6_FLAG = 0x10, 0x20
IPV6_FLAGS = BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG
TRANSACTION_TYPE_MASK, TRANSACTION_PREPARED, TRANSACTION_COMMITTED, TRANSACTION_ROLLED_BACK = 0xC, 0x4, 0x8, 0xC
HIDDEN_FLAG = 0x4
"""Set only in half messages and rollbacks, which are in the log but in no consume queue of a topic."""

FIXED_HEADER_BYTES = 88
"""Size of the fields before the body, with two IPv4 hosts."""
RECORD_BYTES_MIN = FIXED_HEADER_BYTES + 3
_WITHOUT_HOSTS = FIXED_HEADER_BYTES - 16 + 2
QUEUE_ID_POSITION, QUEUE_OFFSET_POSITION, PHYSICAL_OFFSET_POSITION, SYS_FLAG_POSITION, STORE_TIME_POSITION = (
    12,
    20,
    28,
    36,
    56,
)

_LAYOUT = {
    0: Struct(">iiIiiqqiq8sq8siqi"),
    BORN_HOST_IPV6_FLAG: Struct(">iiIiiqqiq20sq8siqi"),
    STORE_HOST_IPV6_FLAG: Struct(">iiIiiqqiq8sq20siqi"),
    BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG: Struct(">iiIiiqqiq20sq20siqi"),
}
IPV4_HEADER = Struct(">iiIiiqqiqIIq8siqi")
"""The fields before the body, with two IPv4 hosts: the born host as two numbers, the store host in bytes."""
_SIZE_AND_MAGIC = Struct(">ii")
_INT = Struct(">i")
_PORT = Struct(">i")
_PROPERTIES_LENGTH = Struct(">H")

_pack_ipv4 = _LAYOUT[0].pack
_pack_properties_length = _PROPERTIES_LENGTH.pack


def pack_host(host: Host) -> bytes:
    """Encode a host: 8 bytes for IPv4, 20 for IPv6."""
    if len(host.ip) not in (4, 16):
        raise ProtocolError(f"an address has 4 or 16 bytes, not {len(host.ip)}")
    return host.ip + _PORT.pack(host.port)


def unpack_host(packed: bytes) -> Host:
    """Decode a host of 8 or 20 bytes."""
    return Host(packed[:-4], _PORT.unpack(packed[-4:])[0])


def record_size(draft: Draft, topic: bytes, store_host: bytes) -> int:
    """Return the size of the record of a draft. `topic` is the result of `topic_field`."""
    hosts = len(draft.born_host) + len(store_host)
    return _WITHOUT_HOSTS + hosts + len(draft.body) + len(topic) + len(draft.properties)


def encode(
    draft: Draft,
    topic: bytes,
    *,
    size: int,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    store_ms: int,
    store_host: bytes,
) -> bytes:
    """Encode the V1 record of a draft at its offsets. `topic` comes from `topic_field`, `size` from `record_size`."""
    body, props = draft.body, draft.properties
    sys_flag = draft.sys_flag & ~IPV6_FLAGS
    pack = _pack_ipv4
    if len(draft.born_host) != 8 or len(store_host) != 8:
        layout, host_flags = layout_of(draft.born_host, store_host)
        sys_flag, pack = sys_flag | host_flags, layout.pack
    fixed = pack(
        size,
        MAGIC_V1,
        body_crc(body),
        queue_id,
        draft.flag,
        queue_offset,
        physical_offset,
        sys_flag,
        draft.born_ms,
        draft.born_host,
        store_ms,
        store_host,
        draft.reconsume_times,
        draft.prepared_offset,
        len(body),
    )
    return b"".join((fixed, body, topic, _pack_properties_length(len(props)), props))


def layout_of(born_host: bytes, store_host: bytes) -> tuple[Struct, int]:
    """Return the layout of the fields before the body, and the sys-flag bits of packed hosts."""
    flags = (BORN_HOST_IPV6_FLAG if len(born_host) == 20 else 0) | (
        STORE_HOST_IPV6_FLAG if len(store_host) == 20 else 0
    )
    return _LAYOUT[flags], flags


def topic_field(topic: bytes) -> bytes:
    """Encode the topic field of a V1 record: length and name."""
    if len(topic) > 255:
        raise TooLarge("the topic name", len(topic), 255)
    return len(topic).to_bytes(1, "big") + topic


def encode_message(message: StoredMessage) -> bytes:
    """Encode a stored message. The inverse of `decode`."""
    draft = Draft(
        body=message.body,
        properties=properties.encode(message.properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_ms=message.born_ms,
        born_host=pack_host(message.born_host),
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
    )
    topic, store_host = topic_field(message.topic.encode()), pack_host(message.store_host)
    return encode(
        draft,
        topic,
        size=record_size(draft, topic, store_host),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        store_ms=message.store_ms,
        store_host=store_host,
    )


def decode(
    buffer: bytes | memoryview,
    at: int = 0,
    *,
    verify_crc: bool = True,
    expand: bool = True,
) -> StoredMessage:
    """Decode the record at `at`. Any bytes give a message or a `ProtocolError`.

    `expand` decompresses the body and clears the compression bits of the sys flag.
    """
    size, magic, sys_flag = _checked_start(buffer, at)
    layout = _LAYOUT[sys_flag & (BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG)]
    end = at + size
    body_at = at + layout.size
    if body_at + 3 > end:
        raise ProtocolError(f"the record at byte {at} is too short ({size} bytes) for its own header")
    (
        _,
        _,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        _,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        body_bytes,
    ) = layout.unpack_from(buffer, at)
    topic_at = body_at + body_bytes
    length_bytes = 1 if magic == MAGIC_V1 else 2
    if body_bytes < 0 or topic_at + length_bytes + 2 > end:
        raise ProtocolError(f"the record at byte {at} has {size} bytes, its body claims {body_bytes}")
    name_at = topic_at + length_bytes
    name_end = name_at + int.from_bytes(buffer[topic_at:name_at], "big")
    if name_end + 2 > end:
        raise ProtocolError(f"the record at byte {at} is shorter than its topic")
    properties_at = name_end + 2
    if properties_at + int.from_bytes(buffer[name_end:properties_at], "big") != end:
        raise ProtocolError(f"the parts of the record at byte {at} do not add up to its {size} bytes")
    body = bytes(buffer[body_at:topic_at])
    if verify_crc and body and body_crc(body) != crc & 0x7FFFFFFF:
        raise ProtocolError(f"the body of the record at byte {at} does not match its checksum")
    if expand and sys_flag & COMPRESSED_FLAG:
        body, sys_flag = decompress(body, sys_flag)
    try:
        topic = str(buffer[name_at:name_end], "utf-8")
    except UnicodeDecodeError as cause:
        raise ProtocolError(f"the topic of the record at byte {at} is not UTF-8") from cause
    return StoredMessage(
        topic=topic,
        body=body,
        properties=properties.decode(buffer[properties_at:end]),
        flag=flag,
        queue_id=queue_id,
        queue_offset=QueueOffset(queue_offset),
        physical_offset=PhysicalOffset(physical_offset),
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=unpack_host(born_host),
        store_ms=store_ms,
        store_host=unpack_host(store_host),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
    )


def decode_all(buffer: bytes | memoryview, *, verify_crc: bool = True, expand: bool = True) -> list[StoredMessage]:
    """Decode records that are laid end to end, as in a pull response.

    The common kind of record (V1, IPv4, not compressed) is decoded in this loop; all others, and invalid ones, by
    `decode`.
    """
    data = bytes(buffer)
    messages: list[StoredMessage] = []
    keep = messages.append
    at, end = 0, len(data)
    unpack, layout_bytes = _LAYOUT[0].unpack_from, _LAYOUT[0].size
    uncommon = BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG | (COMPRESSED_FLAG if expand else 0)
    while at < end:
        if end - at >= RECORD_BYTES_MIN:
            (
                size,
                magic,
                crc,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_ms,
                born_host,
                store_ms,
                store_host,
                reconsume_times,
                prepared_offset,
                body_bytes,
            ) = unpack(data, at)
            body_at = at + layout_bytes
            topic_at = body_at + body_bytes
            record_end = at + size
            if magic == MAGIC_V1 and not sys_flag & uncommon and body_bytes >= 0 and topic_at + 3 <= record_end <= end:
                name_end = topic_at + 1 + data[topic_at]
                properties_at = name_end + 2
                body = data[body_at:topic_at]
                if (
                    properties_at <= record_end
                    and properties_at + (data[name_end] << 8 | data[name_end + 1]) == record_end
                    and (not verify_crc or not body or body_crc(body) == crc & 0x7FFFFFFF)
                ):
                    keep(
                        StoredMessage(
                            topic=_topic_of(data[topic_at + 1 : name_end]),
                            body=body,
                            properties=properties.decode(data[properties_at:record_end]),
                            flag=flag,
                            queue_id=queue_id,
                            queue_offset=queue_offset,
                            physical_offset=physical_offset,
                            sys_flag=sys_flag,
                            born_ms=born_ms,
                            born_host=_host_of(born_host),
                            store_ms=store_ms,
                            store_host=_host_of(store_host),
                            reconsume_times=reconsume_times,
                            prepared_offset=prepared_offset,
                        )
                    )
                    at = record_end
                    continue
        keep(decode(data, at, verify_crc=verify_crc, expand=expand))
        at += _INT.unpack_from(data, at)[0]
    return messages


@lru_cache(maxsize=4096)
def _topic_of(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as cause:
        raise ProtocolError("the topic of a record is not UTF-8") from cause


_host_of = lru_cache(maxsize=4096)(unpack_host)


def _checked_start(buffer: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """Return size, magic and sys flag of a record that is completely inside the buffer."""
    if len(buffer) - at < RECORD_BYTES_MIN:
        raise ProtocolError(f"no record fits into the {len(buffer) - at} bytes from byte {at} on")
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ProtocolError(f"no record starts at byte {at}: magic {magic & 0xFFFFFFFF:#010x}")
    if size < RECORD_BYTES_MIN or size > len(buffer) - at:
        raise ProtocolError(f"the record at byte {at} claims {size} bytes of the {len(buffer) - at} there are")
    return size, magic, _INT.unpack_from(buffer, at + SYS_FLAG_POSITION)[0]


def decode_valid(buffer: bytes | memoryview) -> Iterator[StoredMessage]:
    """Decode records that are laid end to end, skip invalid ones, and stop at an invalid size."""
    at, end = 0, len(buffer)
    while end - at >= RECORD_BYTES_MIN:
        size = _INT.unpack_from(buffer, at)[0]
        if not RECORD_BYTES_MIN <= size <= end - at:
            return
        try:
            yield decode(buffer, at)
        except ProtocolError:
            pass
        at += size


def draft_from_record(record: bytes | memoryview) -> Draft:
    """Return the contents of a record as a draft, to store it elsewhere. Body and properties are not decoded."""
    size, magic, sys_flag = _checked_start(record, 0)
    layout = _LAYOUT[sys_flag & (BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG)]
    if layout.size + 3 > size:
        raise ProtocolError(f"the record is too short ({size} bytes) for its own header")
    _, _, _, _, flag, _, _, _, born_ms, born_host, _, _, times, prepared, body_bytes = layout.unpack_from(record)
    topic_at = layout.size + body_bytes
    length_bytes = 1 if magic == MAGIC_V1 else 2
    name_end = topic_at + length_bytes + int.from_bytes(record[topic_at : topic_at + length_bytes], "big")
    if body_bytes < 0 or name_end + 2 > size:
        raise ProtocolError(f"the parts of the record do not add up to its {size} bytes")
    return Draft(
        body=bytes(record[layout.size : topic_at]),
        properties=bytes(record[name_end + 2 : size]),
        flag=flag,
        sys_flag=sys_flag & ~(BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG),
        born_ms=born_ms,
        born_host=born_host,
        reconsume_times=times,
        prepared_offset=prepared,
    )


def properties_of(record: bytes | memoryview) -> bytes:
    """Return the property string of a valid record, not decoded."""
    sys_flag = _INT.unpack_from(record, SYS_FLAG_POSITION)[0]
    body_at = _LAYOUT[sys_flag & (BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG)].size
    topic_at = body_at + _INT.unpack_from(record, body_at - 4)[0]
    if _INT.unpack_from(record, 4)[0] == MAGIC_V1:
        return bytes(record[topic_at + 3 + record[topic_at] :])
    return bytes(record[topic_at + 4 + int.from_bytes(record[topic_at : topic_at + 2], "big") :])


def queue_offset_of(record: bytes | memoryview) -> int:
    """Return the queue offset in a record."""
    return int.from_bytes(record[QUEUE_OFFSET_POSITION : QUEUE_OFFSET_POSITION + 8], "big")


def physical_offset_of(record: bytes | memoryview) -> int:
    """Return the physical offset in a record."""
    return int.from_bytes(record[PHYSICAL_OFFSET_POSITION : PHYSICAL_OFFSET_POSITION + 8], "big")

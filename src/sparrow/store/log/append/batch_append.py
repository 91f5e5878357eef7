"""Batch appends: the body of a batch send becomes records in one loop, without an object for each message.

For batches of up to a few hundred messages: columns cost about a millisecond for a batch of any size. What the records
have in common is packed once; what depends on a length only, once for each length.
"""

from __future__ import annotations

from struct import Struct
from typing import cast

from sparrow.model.errors import TooLarge, TooManyMessages
from sparrow.model.queue import PhysicalOffset
from sparrow.store.log.append.writer import LogWriter, check_properties
from sparrow.store.log.commit_log.commit_log import BLANK_RECORD_BYTES
from sparrow.store.log.consume_queues.consume_queue import ENTRY, ConsumeQueue
from sparrow.store.spi import AppendResult, BatchFields
from sparrow.wire import batch as batch_codec
from sparrow.wire import record
from sparrow.wire.checksum import CRC_MASK, crc32
from sparrow.wire.hashes import tags_code_in
from sparrow.wire.properties import PROPERTIES_BYTES_MAX

_Member = tuple[int, int, bytes, bytes]
"""Size of the record, flag, body, and property string without the properties that the broker adds."""

_MESSAGES_MAX = 2_000
"""Messages of a batch that are encoded one after the other at most: for many more, that would hold the event loop."""

_unpack_fixed = Struct(">i8xii").unpack_from
_unpack_length = Struct(">h").unpack_from
_pack_properties_length = Struct(">H").pack
_pack_body_length = Struct(">i").pack
_pack_front = Struct(">iiIiiqq").pack
"""The fields of a record that differ from message to message: those before the sys flag."""
_pack_entry = ENTRY.pack
_FRONT_BYTES = record.SYS_FLAG_POSITION


def append_batch(
    writer: LogWriter, queue: ConsumeQueue, batch: bytes, common: BatchFields, *, messages_max: int
) -> AppendResult | None:
    """Append the messages of a batch back to back in one segment, completely or not at all.

    Return None, without appending, if there are so many that columns must encode them.
    """
    extra, topic, host, queue_id = common.extra_properties, queue.topic_field, writer.store_host, queue.queue.id
    layout, host_flags = record.layout_of(common.born_host, host)
    members = _members(batch, extra, layout.size + len(topic) + 2)
    if members is None:
        return None
    if len(members) > messages_max:
        raise TooManyMessages(messages_max)
    total = sum([member[0] for member in members])
    if total + BLANK_RECORD_BYTES > writer.log.segment_bytes or not members:
        raise TooLarge("the batch", total, writer.log.segment_bytes - BLANK_RECORD_BYTES)
    sys_flag = common.sys_flag & ~record.IPV6_FLAGS | host_flags
    codes = _tags_codes(batch, members, extra) if queue.delay_ms is None else None
    parts: list[bytes] = []
    places: list[int] = []
    entries: list[bytes] = []
    middles: dict[int, bytes] = {}
    """The fields between front and body, by the length of the body."""
    ends: dict[int, bytes] = {}
    """The fields between body and properties, by the length of the properties."""
    with writer.lock:
        writer.check_may_append(queue)
        segment, at = writer.log.allocate(total)
        store_ms = writer.store_ms()
        first, place = queue.end, int(at)
        if codes is None:
            codes = [store_ms + cast(int, queue.delay_ms)] * len(members)
        same = layout.pack(
            *(0, 0, 0, 0, 0, 0, 0, sys_flag, common.born_ms, common.born_host, store_ms, host),
            *(common.reconsume_times, 0, 0),
        )[_FRONT_BYTES:-4]
        for offset, (size, flag, body, properties), code in zip(
            range(first, first + len(members)), members, codes, strict=True
        ):
            body_bytes, properties_bytes = len(body), len(properties)
            if body_bytes not in middles:
                middles[body_bytes] = same + _pack_body_length(body_bytes)
            if properties_bytes not in ends:
                ends[properties_bytes] = topic + _pack_properties_length(properties_bytes + len(extra))
            parts += (
                _pack_front(size, record.MAGIC_V1, crc32(body) & CRC_MASK, queue_id, flag, offset, place),
                middles[body_bytes],
                body,
                ends[properties_bytes],
                properties,
                extra,
            )
            places.append(place)
            entries.append(_pack_entry(place, size, code))
            place += size
        end = PhysicalOffset(place)
        writer.log.write(segment, b"".join(parts))
        writer.key_backlog.add_offsets(places)
        queue.extend(b"".join(entries))
        writer.publish_growth(queue, end)
    return AppendResult(queue.queue, first, cast(list[PhysicalOffset], places), end, store_ms)


def _tags_codes(batch: bytes, members: list[_Member], extra: bytes) -> list[int]:
    """Return the tags code of each message."""
    if b"TAGS" in extra:
        return [tags_code_in(member[3] + extra) for member in members]
    if b"TAGS" in batch:  # searching the whole batch once is cheaper than searching each message
        return [tags_code_in(member[3]) for member in members]
    return [0] * len(members)


def _members(batch: bytes, extra: bytes, overhead: int) -> list[_Member] | None:
    """Return the messages, to whose properties `extra` will be added; None if there are more than `_MESSAGES_MAX`.

    `overhead`: the other bytes of a record. Any bytes give messages or the error of the batch codec.
    """
    members: list[_Member] = []
    at, end = 0, len(batch)
    overhead += len(extra)
    properties_bytes_max = PROPERTIES_BYTES_MAX - len(extra)
    while at < end:
        if len(members) == _MESSAGES_MAX:
            return None
        if end - at < batch_codec.BATCH_MESSAGE_BYTES_MIN:
            raise batch_codec.unsound(batch)
        size, flag, body_bytes = _unpack_fixed(batch, at)
        body_at, next_at = at + batch_codec.FIXED_BYTES, at + size
        length_at = body_at + body_bytes
        if body_bytes < 0 or next_at > end or length_at + 2 > next_at:
            raise batch_codec.unsound(batch)
        properties = batch[length_at + 2 : next_at]
        if _unpack_length(batch, length_at)[0] != len(properties):
            raise batch_codec.unsound(batch)
        # The last 0x02 may be missing; without it, `extra` would become part of the last value.
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if len(properties) > properties_bytes_max or not properties.isascii():
            check_properties(properties + extra)
        members.append((overhead + body_bytes + len(properties), flag, batch[body_at:length_at], properties))
        at = next_at
    return members

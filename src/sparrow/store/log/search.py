"""Search for messages by physical offset, by store time and by key."""

from __future__ import annotations

from sparrow.model.message import StoredMessage
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY
from sparrow.model.queue import QueueOffset
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.consume_queues.queue_table import ConsumeQueueTable
from sparrow.store.log.key_index.key_index import KeyIndex
from sparrow.store.log.reader import LogReader
from sparrow.wire import record
from sparrow.wire.hashes import index_hash

_CANDIDATES_MAX = 1024


def record_at(log: CommitLog, reader: LogReader, queues: ConsumeQueueTable, physical_offset: int) -> bytes | None:
    """Return the record that starts exactly at an offset, which a client may have invented.

    A body may contain the bytes of a record with the physical offset at which they lie. So a record counts only where
    the entry of its queue, or the start of a segment, says that one starts.
    """
    data, segment = reader.record_at(physical_offset), log.segment_at(physical_offset)
    if data is None or (segment is not None and segment.base == physical_offset):
        return data
    message = record.decode(data, verify_crc=False, expand=False)
    queue = queues.get(message.queue)
    if queue is None or not queue.first <= message.queue_offset < queue.end:
        return None
    return data if queue.physical_offset_at(message.queue_offset) == physical_offset else None


def offset_at(log: CommitLog, queue: ConsumeQueue, time_ms: int, *, upper: bool) -> QueueOffset:
    """Return the first offset stored at or after a time; with `upper` the last one stored at or before it."""
    first, end = queue.bounds

    def is_older(physical_offset: int, _size: int) -> bool:
        at = _store_ms(log, physical_offset)
        return at is not None and (at <= time_ms if upper else at < time_ms)

    point = queue.partition_point(first, end, is_older)
    if upper:
        return QueueOffset(point - 1 if point > first else 0)  # 0 where all are newer, as RocketMQ answers
    return QueueOffset(point)


def _store_ms(log: CommitLog, physical_offset: int) -> int | None:
    segment = log.segment_at(physical_offset)
    if segment is None:
        return None
    head = segment.pread(physical_offset - segment.base, record.FIXED_HEADER_BYTES)
    if len(head) < record.FIXED_HEADER_BYTES:
        return None
    sys_flag = int.from_bytes(head[record.SYS_FLAG_POSITION : record.SYS_FLAG_POSITION + 4], "big")
    at = record.STORE_TIME_POSITION + (12 if sys_flag & record.BORN_HOST_IPV6_FLAG else 0)
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def _is_visible(queues: ConsumeQueueTable, message: StoredMessage) -> bool:
    """Return whether readers of the queue see it: the topic may be deleted, or the message not be durable yet."""
    queue = queues.get(message.queue)
    if queue is None or not queue.bounds.first <= message.queue_offset < queue.visible_end:
        return False
    return queue.physical_offset_at(message.queue_offset) == message.physical_offset


def find_by_key(
    index: KeyIndex,
    reader: LogReader,
    queues: ConsumeQueueTable,
    topic: str,
    key: str,
    *,
    limit: int,
    begin_ms: int,
    end_ms: int,
) -> list[bytes]:
    """Return the newest records with the key, oldest first. Hashes collide, so each record is checked."""
    found: dict[int, bytes] = {}
    for at in index.candidates(index_hash(topic, key), begin_ms, end_ms, _CANDIDATES_MAX):
        if len(found) >= limit:
            break
        data = reader.record_at(at) if at not in found else None
        if data is None:
            continue
        message = record.decode(data, expand=False)
        names = message.properties
        has_key = names.get(PROPERTY_UNIQUE_KEY) == key or key in names.get(PROPERTY_KEYS, "").split(" ")
        is_wanted = has_key and message.topic == topic and begin_ms <= message.store_ms <= end_ms
        if is_wanted and _is_visible(queues, message):
            found[at] = data
    return [found[at] for at in sorted(found)]

"""Starting and ending offsets of each queue, from the options: offsets, timestamps, a group, earliest, latest."""

from __future__ import annotations

import time

from sparrow.model.errors import Refused, SparrowError, Unavailable, UnknownTopic
from sparrow.spark.source.metadata import QueueExtents, SourceMetadata, fetch_extents
from sparrow.spark.source.options import EARLIEST_OFFSET, GROUP_PREFIX, LATEST_OFFSET, OffsetsByQueue, SourceOptions
from sparrow.wire.bodies import QueueRef

ResolvedOffsets = dict[QueueRef, int]


def fetch_extents_with_retries(options: SourceOptions, metadata: SourceMetadata) -> QueueExtents:
    """Call `fetch_extents`, and retry while a broker is unavailable. Its topics may be unknown meanwhile, too."""
    for left in range(options.offset_retries, -1, -1):
        try:
            return fetch_extents(options, metadata, is_fresh=True)
        except (Unavailable, UnknownTopic, TimeoutError):
            if not left:
                raise
            time.sleep(options.offset_retry_ms / 1000)
    raise AssertionError("unreachable")


def resolve_starting_offsets(
    options: SourceOptions, metadata: SourceMetadata, extents: QueueExtents, *, default: str
) -> ResolvedOffsets:
    """Return the first offset to read of each queue. Timestamps take precedence over offsets."""
    if options.starting_ms is not None or options.starting_times is not None:
        found = {}
        for queue, extent in extents.items():
            wanted = options.starting_ms
            if options.starting_times is not None:
                wanted = _entry_of(options.starting_times, queue, extents)
            if wanted is None:
                found[queue] = extent.end if default == "latest" else extent.first
                continue
            at = metadata.offset_at(queue, wanted)
            if at >= extent.end and extent.end > extent.first and options.starting_time_strategy == "error":
                raise Refused(
                    f"no message of {format_queue_name(queue)} was stored at or after {wanted} ms. Set "
                    "startingOffsetsByTimestampStrategy=latest to start at the end of such queues"
                )
            found[queue] = min(max(at, extent.first), extent.end)
        return found
    return _by_offsets(options.starting_offsets or default, metadata, extents)


def resolve_ending_offsets(options: SourceOptions, metadata: SourceMetadata, extents: QueueExtents) -> ResolvedOffsets:
    """Return the first offset not to read of each queue."""
    if options.ending_ms is not None or options.ending_times is not None:
        found = {}
        for queue, extent in extents.items():
            wanted = options.ending_ms
            if options.ending_times is not None:
                wanted = _entry_of(options.ending_times, queue, extents)
            found[queue] = extent.end if wanted is None else min(metadata.offset_at(queue, wanted), extent.end)
        return found
    return _by_offsets(options.ending_offsets or "latest", metadata, extents)


def _by_offsets(given: str | OffsetsByQueue, metadata: SourceMetadata, extents: QueueExtents) -> ResolvedOffsets:
    if given == "earliest":
        return {queue: extent.first for queue, extent in extents.items()}
    if given == "latest":
        return {queue: extent.end for queue, extent in extents.items()}
    if isinstance(given, str):
        committed = metadata.committed(given.removeprefix(GROUP_PREFIX), extents)
        return {queue: committed.get(queue, extent.first) for queue, extent in extents.items()}
    found = {}
    for queue, extent in extents.items():
        offset = _entry_of(given, queue, extents)
        if offset is None:
            raise Refused(
                f"the offsets have no entry for queue {format_queue_name(queue)}: list every queue; -2 means "
                "earliest, -1 latest"
            )
        found[queue] = {EARLIEST_OFFSET: extent.first, LATEST_OFFSET: extent.end}.get(offset, offset)
    _refuse_unread_topics(given, extents)
    return found


def _entry_of(table: OffsetsByQueue, queue: QueueRef, extents: QueueExtents) -> int | None:
    """Return the entry of a queue in the JSON: by broker and queue id, or by queue id if the topic has one broker."""
    of_topic = table.get(queue.topic, {})
    of_broker = of_topic.get(queue.broker_name)
    if isinstance(of_broker, dict):
        return of_broker.get(str(queue.queue_id))
    plain = of_topic.get(str(queue.queue_id))
    if isinstance(plain, int):
        if len({each.broker_name for each in extents if each.topic == queue.topic}) > 1:
            raise Refused(f"topic {queue.topic!r} is on several brokers: use JSON by topic, broker and queue id")
        return plain
    return None


def _refuse_unread_topics(table: OffsetsByQueue, extents: QueueExtents) -> None:
    unread = sorted(set(table) - {queue.topic for queue in extents})
    if unread:
        raise Refused(f"the offsets contain topic {unread[0]!r}, which the query does not read: remove it")


def format_queue_name(queue: QueueRef) -> str:
    """Return `topic/broker/queue id`."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


class MessagesGone(SparrowError):
    """The store no longer holds messages that a query has to read."""

    def __init__(self, queue: QueueRef, offset: int, first: int, end: int) -> None:
        super().__init__(queue, offset, first, end)
        self.queue, self.offset, self.first, self.end = queue, offset, first, end

    def __str__(self) -> str:
        return (
            f"{format_queue_name(self.queue)} no longer holds offset {self.offset}; it holds {self.first} to "
            f"{self.end}. Retention deleted the messages, or the topic was created again. Set failOnDataLoss=false "
            "to skip them"
        )

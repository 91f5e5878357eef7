"""Bodies of offset tables and statistics, which tools request."""

# ruff: noqa: RUF012  (msgspec gives every struct an empty list or dict of its own)
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sparrow.model.queue import QueueRef
from sparrow.wire.bodies.clients import SubscriptionData
from sparrow.wire.bodies.codec import Body


class TopicOffset(Body, frozen=True):
    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class TopicStats(Body, frozen=True):
    """The offsets of each queue, including empty ones: tools treat an empty table as an error."""

    offset_table: dict[QueueRef, TopicOffset] = {}
    topic_put_tps: float = 0.0


class QueueConsumeStats(Body, frozen=True):
    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int = 0


class ConsumeStats(Body, frozen=True):
    offset_table: dict[QueueRef, QueueConsumeStats] = {}
    consume_tps: float = 0.0


class ConsumeStatsList(Body, frozen=True):
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


class OffsetTable(Body, frozen=True):
    """The new offset of each queue after a reset: for tools (222) and members (220)."""

    offset_table: dict[QueueRef, int] = {}


class OffsetListEntry(Body, frozen=True):
    broker_name: str
    topic: str
    queue_id: int
    offset: int


class OffsetList(Body, frozen=True):
    """`OffsetTable` as a list, for C++ clients, which cannot parse objects as keys."""

    offset_table: list[OffsetListEntry] = []

    @classmethod
    def of(cls, offsets: OffsetTable) -> OffsetList:
        return cls(
            [
                OffsetListEntry(queue.broker_name, queue.topic, queue.queue_id, offset)
                for queue, offset in offsets.offset_table.items()
            ]
        )


class ConsumerStatus(Body, frozen=True):
    """The offsets of one client (221: `message_queue_table`), or of all (223: `consumer_table`)."""

    message_queue_table: dict[QueueRef, int] = {}
    consumer_table: dict[str, dict[QueueRef, int]] = {}


class QueueTimeSpan(Body, frozen=True):
    message_queue: QueueRef
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class ConsumeTimeSpans(Body, frozen=True):
    consume_time_span_set: list[QueueTimeSpan] = []


class CorrectedOffsets(Body, frozen=True):
    correction_offsets: dict[int, int] = {}


class StatsItem(Body, frozen=True):
    sum: int = 0
    tps: float = 0.0
    average: float = msgspec.field(default=0.0, name="avgpt")


class BrokerStats(Body, frozen=True):
    stats_minute: StatsItem = StatsItem()
    stats_hour: StatsItem = StatsItem()
    stats_day: StatsItem = StatsItem()


class ConsumeQueueEntry(Body, frozen=True):
    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = True
    msg: str | None = None


class ConsumeQueueEntries(Body, frozen=True):
    queue_data: list[ConsumeQueueEntry] = []
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class ConsumerOffsets(Body, frozen=True):
    """All committed offsets of a broker (43): `topic@group` to queue to offset."""

    offset_table: Mapping[str, Mapping[int, int]] = {}
    data_version: dict[str, Any] | None = None

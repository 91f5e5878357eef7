"""Reads of a topic into an Arrow table: large pulls of several queues at a time, decoded by columns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime

import pyarrow as pa

from sparrow import clock
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullStatus, pull
from sparrow.client.consume.subscription import Subscription
from sparrow.client.options import StartPosition
from sparrow.model.errors import DataLost, Unavailable
from sparrow.model.queue import QueueRef
from sparrow.wire import columns as codec
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import OffsetResponse, QueueRequest, SearchOffset
from sparrow.wire.undecodable import OnUndecodable, UndecodableBodies

log = logging.getLogger(__name__)

PULL_COUNT_MAX = 65_536
PULL_BYTES_MAX = 4 << 20
"""What Sparrow's brokers return at most. RocketMQ's return 32 messages, so they need more pulls."""
CONCURRENT_QUEUES_MAX = 4


async def read_table(
    session: ClientSession,
    group: str,
    topic: str,
    start: StartPosition | int,
    end: StartPosition | int,
    *,
    expression: str,
    columns: Iterable[str] | None,
    on_undecodable: OnUndecodable = "null",
) -> pa.Table:
    """Read every queue from `start` up to, not including, `end`.

    An int is a time in ms. Rows are sorted by broker and queue. Messages whose bodies do not decompress are logged once
    for each queue.
    """
    names = tuple(columns) if columns is not None else codec.TABLE_COLUMNS
    route = await session.route(topic)
    subscription = Subscription.of(topic, expression, version_ms=clock.now_ms())
    turns = asyncio.Semaphore(CONCURRENT_QUEUES_MAX)

    async def one(queue: QueueRef) -> list[pa.RecordBatch]:
        async with turns:
            first = await _offset_of(session, queue, start)
            last = await _offset_of(session, queue, end)
            undecodable = UndecodableBodies(on_undecodable, _queue_name(queue))
            batches = await _read_queue(session, group, queue, subscription, first, last, names, undecodable)
            undecodable.report(log)
            return batches

    reads = [asyncio.ensure_future(one(queue)) for queue in sorted(route.read_queues)]
    try:
        batches = [batch for read in await asyncio.gather(*reads) for batch in read]
    finally:
        for read in reads:
            read.cancel()
    schema = pa.schema([codec.COLUMN_DECODERS[name][0] for name in names])
    return pa.Table.from_batches(batches, schema=schema)


async def _read_queue(
    session: ClientSession,
    group: str,
    queue: QueueRef,
    subscription: Subscription,
    offset: int,
    end: int,
    names: Sequence[str],
    undecodable: UndecodableBodies,
) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    while offset < end:
        answer = await pull(
            session,
            queue,
            offset,
            group=group,
            subscription=subscription,
            count_max=min(PULL_COUNT_MAX, end - offset),
            bytes_max=PULL_BYTES_MAX,
            includes_subscription=True,
        )
        if answer.status is PullStatus.OFFSET_MOVED:
            if answer.next_offset <= offset:
                break
            raise DataLost(_queue_name(queue), offset, answer.next_offset)
        if answer.status is PullStatus.NO_NEW_MESSAGE:
            break
        if answer.status is PullStatus.FOUND:
            batch = codec.decode(answer.records, columns=_needed(names, subscription), undecodable=undecodable)
            batches.append(_exactly(batch, names, subscription, end))
        offset = answer.next_offset
    return batches


def _queue_name(queue: QueueRef) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _needed(names: Sequence[str], subscription: Subscription) -> list[str]:
    """Return the columns for the exact filter, too: brokers compare only hashes of tags, and count matches."""
    return list(dict.fromkeys((*names, "tags", "queue_offset"))) if subscription.tags else list(names)


def _exactly(batch: pa.RecordBatch, names: Sequence[str], subscription: Subscription, end: int) -> pa.RecordBatch:
    if not subscription.tags:
        return batch
    import pyarrow.compute as pc

    has_tag = pc.is_in(batch.column("tags"), value_set=pa.array(subscription.tags, pa.string()))
    wanted = pc.and_(has_tag, pc.less(batch.column("queue_offset"), end))
    return batch.filter(wanted).select(list(names))


async def _offset_of(session: ClientSession, queue: QueueRef, position: StartPosition | int) -> int:
    route = session.cached_route(queue.topic)
    address = route.address_of(queue.broker_name) if route is not None else None
    if address is None:
        raise Unavailable(f"the route of topic {queue.topic!r} has no broker {queue.broker_name!r}")
    if position == "first" or position == "last":
        code = RequestCode.GET_MIN_OFFSET if position == "first" else RequestCode.GET_MAX_OFFSET
        answer = await session.invoke(address, code, QueueRequest(queue.topic, queue.queue_id, queue.broker_name))
    else:
        time_ms = int(position.timestamp() * 1000) if isinstance(position, datetime) else int(position)
        header = SearchOffset(queue.topic, queue.queue_id, time_ms, broker_name=queue.broker_name)
        answer = await session.invoke(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return max(0, headers.read(OffsetResponse, answer.ext).offset)

"""Writer for `delivery=atLeastOnce`: sends rows as ordinary messages, to any RocketMQ broker.

1. Rows with a queue or a key keep their order: one batch after the other to each queue. Other rows go to any queue.
2. Rows that brokers refuse in batches (with a delivery time or a priority) are sent as single messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparrow.client.aio.produce.bulk.bulk_sender import BATCH_BYTES_MAX
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.aio.produce.sender import Sender, SendPayload
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import Refused
from sparrow.model.message import Message
from sparrow.model.protocol import (
    PROPERTY_KEYS,
    PROPERTY_PRIORITY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
)
from sparrow.spark.sink.commit_messages import StagedRows
from sparrow.spark.sink.message_columns import MessageRows
from sparrow.spark.sink.ordered_sends import OrderedSends
from sparrow.spark.sink.queue_selection import ANY_QUEUE, select_queues, sort_by_queue, split_by_topic
from sparrow.spark.sink.record_encoder import DELAY_PROPERTIES, UNSET_VALUES, split_rows
from sparrow.spark.sink.write_context import WriteContext
from sparrow.wire.bodies import QueueRef
from sparrow.wire.columns.batch import encode_batches

_CONCURRENT_ANY_QUEUE = 4
"""Concurrent batches of rows that may go to any queue."""
_CONCURRENT_SINGLES = 64
_SINGLE_OVERHEAD_BYTES = 1024
_RETRIES = 2


class AtLeastOnceWriter:
    """Sends rows in batches, and single messages where a broker requires it."""

    def __init__(self, work: WriteContext) -> None:
        self._work = work
        options = work.options
        self._sender = Sender(
            work.client.session, group=options.group, retries=_RETRIES, default_topic_queues=options.topic_queues
        )
        self._producer: Producer | None = None
        self._sends = OrderedSends(options.max_in_flight_bytes)
        self._any_queue_keys = cycle(range(_CONCURRENT_ANY_QUEUE))
        self._single_keys = cycle(range(_CONCURRENT_SINGLES))

    def add(self, rows: MessageRows) -> None:
        for topic, topic_rows in split_by_topic(rows, self._work.topic):
            route = self._work.routes[topic]
            is_single = find_unbatchable(topic_rows, in_lanes=bool(route.lane_brokers))
            if is_single.any():
                self._send_singly(topic_rows.take(np.flatnonzero(is_single)), route)
                topic_rows = topic_rows.take(np.flatnonzero(~is_single))
            for piece in split_rows(topic_rows):
                self._send(piece, route)

    def _send(self, rows: MessageRows, route: TopicRoute) -> None:
        if not len(rows):
            return
        order, shares = sort_by_queue(select_queues(rows, len(route.write_queues), allows_any_queue=True))
        if len(shares) > 1:
            rows = rows.take(order)
        for place, share in shares:
            part = rows.slice(share.start, share.stop - share.start)
            queue = None if place == ANY_QUEUE else route.write_queues[place]
            for batch in encode_batches(
                part.body,
                keys=part.keys,
                tags=part.tags,
                unique_keys=self._work.ids.fill(part.msg_id, len(part)),
                properties=part.all_properties(),
                bytes_max=BATCH_BYTES_MAX,
            ):
                payload = SendPayload(batch.data, is_batch=True)
                order_key = next(self._any_queue_keys) if queue is None else queue
                self._submit(order_key, len(batch.data), partial(self._deliver, route.topic, payload, queue))

    async def _deliver(self, topic: str, payload: SendPayload, queue: QueueRef | None) -> object:
        timeout_ms = self._work.options.client.timeout_ms
        return await self._sender.send(topic, payload, queue=queue, timeout_ms=timeout_ms)

    def _send_singly(self, rows: MessageRows, route: TopicRoute) -> None:
        if self._producer is None:
            self._producer = Producer(
                group=self._work.options.group,
                timeout_ms=self._work.options.client.timeout_ms,
                default_topic_queues=self._work.options.topic_queues,
                compress_above_bytes=None,
                session=self._work.client.session,
            )
            self._work.client.run(self._producer.open())
        places = select_queues(rows, len(route.write_queues), allows_any_queue=True)
        for place, message in zip(places.tolist(), to_messages(rows, route.topic), strict=True):
            queue = None if place == ANY_QUEUE else route.write_queues[place]
            send = partial(self._producer.send, message, queue=queue)
            order_key = ("alone", next(self._single_keys) if queue is None else queue)
            self._submit(order_key, len(message.body) + _SINGLE_OVERHEAD_BYTES, send)

    def _submit(self, order_key: Any, size: int, send: Callable[[], Any]) -> None:
        self._work.client.run(
            self._sends.submit(order_key, size, lambda: self._work.brokers.retry_while_unavailable(send))
        )

    def finish(self) -> tuple[StagedRows, ...]:
        self._work.client.run(self._sends.finish())
        self._close()
        return ()

    def abandon(self) -> None:
        self._work.client.run(self._sends.abandon())
        self._close()

    def _close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            self._work.client.run(producer.close())


def find_unbatchable(rows: MessageRows, *, in_lanes: bool) -> NDArray[np.bool_]:
    """Return a mask of the rows that brokers refuse in a batch. `in_lanes`: the topic has priority lanes."""
    found = np.zeros(len(rows), np.bool_)
    if rows.deliver_ms is not None:
        found |= rows.deliver_ms.is_valid().to_numpy(zero_copy_only=False)
    for row, name, value in rows.entries(
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_TIMER_DELIVER_MS,
        *DELAY_PROPERTIES,
        *((PROPERTY_PRIORITY,) if in_lanes else ()),
    ):
        if value not in UNSET_VALUES:
            if name == PROPERTY_TRANSACTION_PREPARED:
                raise Refused(
                    f"row {rows.row_number(row)} of its partition has the property {name}, so the broker "
                    "would store it as a half message: remove the property, or set delivery=exactlyOnce"
                )
            found[row] = True
    return found


def to_messages(rows: MessageRows, topic: str) -> list[Message]:
    """Convert each row to a message."""
    columns = (rows.body, rows.all_properties(), rows.keys, rows.tags, rows.msg_id, rows.deliver_ms)
    values = [column.to_pylist() if column is not None else [None] * len(rows) for column in columns]
    made = []
    for body, properties, keys, tags, msg_id, deliver_ms in zip(*values, strict=True):
        all_properties = {
            PROPERTY_KEYS: keys,
            PROPERTY_TAGS: tags,
            PROPERTY_UNIQUE_KEY: msg_id,
            **dict(properties or ()),
        }
        if deliver_ms is not None:
            all_properties[PROPERTY_TIMER_DELIVER_MS] = str(deliver_ms)
        made.append(
            Message(topic=topic, body=body, properties={name: text for name, text in all_properties.items() if text})
        )
    return made

"""Batches of messages: what is collected for one request, and when it is complete.

1. A batch holds messages of one topic, and of one queue if they ask for one. It is stored in one queue.
2. It is complete when its time is up, or when it is full; a message larger than a batch is one by itself.
3. Within a batch, and between batches of one key, messages keep their order.

The module neither waits nor sends: time is an argument, and complete batches are returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container

from sparrow.client.aio.produce.sender import SendOutcome
from sparrow.model.errors import ProtocolError
from sparrow.model.message import AnyMessage
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendResult
from sparrow.wire import headers
from sparrow.wire.batch import BATCH_MESSAGE_BYTES_MIN
from sparrow.wire.headers import SendMessageResponse

BatchKey = str | QueueRef | tuple[str | QueueRef, str]
"""What the messages of a batch share: the topic if any queue will do, otherwise the queue; and the priority, where
the queue depends on it."""

SendFuture = asyncio.Future[SendResult]
"""Also a `concurrent.futures.Future`, where the caller is in another thread."""


class MessageBatch:
    """Messages that are sent in one request, and the futures of their results."""

    __slots__ = (
        "alone",
        "cost",
        "due",
        "futures",
        "given_ids",
        "members",
        "queue",
        "settled",
        "size",
        "timeout_ms",
        "topic",
    )

    def __init__(self, topic: str, queue: QueueRef | None, due: float) -> None:
        self.topic, self.queue, self.due = topic, queue, due
        self.members: list[tuple[int, bytes, bytes]] = []
        """Flag, body and property string of each, without the unique id that the encoder adds."""
        self.given_ids: list[str | None] = []
        """The unique ids that the callers gave; None where the encoder makes one."""
        self.futures: list[SendFuture] = []
        self.size = 0
        """Bytes of the request."""
        self.cost = 0
        """Bytes of the memory budget, released when the batch is settled."""
        self.alone: tuple[AnyMessage, bytes, bytes, str] | None = None
        """A message that is sent in a request of its own: itself, its body, its property string and its id."""
        self.timeout_ms: int | None = None
        self.settled: asyncio.Future[None] | None = None

    def settle(self, delivery: SendOutcome, message_ids: list[str]) -> None:
        """Set the result of each message."""
        for future, result in zip(self.futures, send_results(delivery, message_ids), strict=True):
            if not future.done():
                future.set_result(result)

    def fail(self, error: BaseException) -> int:
        """Set the error of each message that has no result yet, and return how many there are."""
        waiting = [future for future in self.futures if not future.done()]
        for future in waiting:
            future.set_exception(error)
        return len(waiting)


def send_results(delivery: SendOutcome, message_ids: list[str]) -> list[SendResult]:
    """Return one result for each message, in order: the broker reports the offset of the first, the others follow."""
    (topic, broker_name), status = (delivery.queue.topic, delivery.queue.broker_name), delivery.status
    sent = headers.read(SendMessageResponse, delivery.answer.ext)
    queue_id, offset = sent.queue_id, sent.queue_offset
    offset_ids = sent.message_id.split(",")
    if len(offset_ids) != len(message_ids):
        if len(offset_ids) != 1:
            raise ProtocolError(f"the broker returned {len(offset_ids)} ids for {len(message_ids)} messages")
        offset_ids *= len(message_ids)  # RocketMQ 5 stores some batches as one record, with one id
    handle, region, is_traced = sent.recall_handle, sent.region, sent.trace_on is not False
    return [
        SendResult(status, message_id, offset_id, topic, broker_name, queue_id, at, handle, region, is_traced)
        for at, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True), offset)
    ]


class OpenBatches:
    """The batches that still accept messages, the oldest first."""

    def __init__(self, *, linger_s: float, bytes_max: int, count_max: int, id_bytes: int = 0) -> None:
        """Prepare for batches of limited size. `id_bytes`: what each message grows by when it gets its unique id."""
        self._linger_s, self._bytes_max, self._count_max = linger_s, bytes_max, count_max
        self._message_bytes_min = BATCH_MESSAGE_BYTES_MIN + id_bytes
        # A dict keeps the order of insertion, and all linger equally long: the first is due first.
        self.open: dict[BatchKey, MessageBatch] = {}

    def start(self, key: BatchKey, topic: str, queue: QueueRef | None, now: float) -> MessageBatch:
        assert key not in self.open
        batch = self.open[key] = MessageBatch(topic, queue, now + self._linger_s)
        return batch

    def add(
        self,
        key: BatchKey,
        flag: int,
        body: bytes,
        properties: bytes,
        given_id: str | None,
        future: SendFuture,
        cost: int,
    ) -> bool | None:
        """Add a message to the open batch of that key. Return whether the batch is full now.

        None: there is no open batch, or no space in it. Close it and start another.
        """
        batch = self.open.get(key)
        if batch is None:
            return None
        futures = batch.futures
        size = batch.size + self._message_bytes_min + len(body) + len(properties)
        if size > self._bytes_max and futures:
            return None
        batch.size = size
        batch.cost += cost
        batch.members.append((flag, body, properties))
        batch.given_ids.append(given_id)
        futures.append(future)
        return size >= self._bytes_max or len(futures) >= self._count_max

    def seal(self, key: BatchKey) -> MessageBatch | None:
        """Close the batch of that key, and return it."""
        return self.open.pop(key, None)

    def seal_due(self, now: float, busy: Container[BatchKey] = ()) -> list[MessageBatch]:
        """Close and return the batches whose time is up. Those of a busy queue could not be sent yet, and may grow."""
        due = []
        for key, batch in list(self.open.items()):
            if batch.due > now:
                break
            if key not in busy:
                due.append(self.open.pop(key))
        return due

    def is_due(self, key: BatchKey, now: float) -> bool:
        """Return whether the batch of that key has lingered long enough."""
        batch = self.open.get(key)
        return batch is not None and batch.due <= now

    def next_due(self, busy: Container[BatchKey] = ()) -> float | None:
        """Return when the next batch is due that can be sent."""
        return next((batch.due for key, batch in self.open.items() if key not in busy), None)

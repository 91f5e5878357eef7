"""Messages that wait a little for each other and travel together.

1. A lot holds messages of one topic, and of one queue if they ask for one. All of it goes to one queue.
2. It leaves when its time is up, or when it is full; a message larger than a whole lot is one by itself.
3. In a lot, and from lot to lot of one key, messages keep the order in which they came.

Nothing here waits or sends: time is an argument, and full lots are handed back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container

from sparrow.client.aio.produce.sender import SendOutcome, SendPayload
from sparrow.model.errors import ProtocolError
from sparrow.model.message import AnyMessage
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendResult
from sparrow.wire import batch, headers
from sparrow.wire.batch import BATCH_MESSAGE_BYTES_MIN
from sparrow.wire.headers import SendMessageResponse

BatchKey = str | QueueRef | tuple[str | QueueRef, str]
"""What messages of one lot share: the topic when any queue will do, else the queue; and the priority, where the queue
they get depends on it."""

SendFuture = asyncio.Future[SendResult]


class MessageBatch:
    """Messages on their way together, and those who wait for each of them."""

    __slots__ = ("alone", "cost", "due", "futures", "ids", "members", "queue", "settled", "size", "timeout_ms", "topic")

    def __init__(self, topic: str, queue: QueueRef | None, due: float) -> None:
        self.topic, self.queue, self.due = topic, queue, due
        self.members: list[tuple[int, bytes, bytes]] = []
        """Flag, body and property string of each."""
        self.ids: list[str] = []
        self.futures: list[SendFuture] = []
        self.size = 0
        """Bytes of the request."""
        self.cost = 0
        """What the messages were charged for; given back when the lot is settled."""
        self.alone: tuple[AnyMessage, bytes, bytes] | None = None
        """A message that shares its request with no other: itself, its body and its property string."""
        self.timeout_ms: int | None = None
        self.settled: asyncio.Future[None] | None = None

    def packed(self) -> SendPayload:
        return SendPayload(batch.encode(self.members), is_batch=True)

    def settle(self, delivery: SendOutcome) -> None:
        """Tell each sender where its message lies."""
        for future, result in zip(self.futures, send_results(delivery, self.ids), strict=True):
            if not future.done():
                future.set_result(result)

    def fail(self, error: BaseException) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)


def send_results(delivery: SendOutcome, message_ids: list[str]) -> list[SendResult]:
    """One result a message, in order: the broker says where the first one lies, and the others follow it."""
    (topic, broker_name), status = (delivery.queue.topic, delivery.queue.broker_name), delivery.status
    sent = headers.read(SendMessageResponse, delivery.answer.ext)
    queue_id, offset = sent.queue_id, sent.queue_offset
    offset_ids = sent.message_id.split(",")
    if len(offset_ids) != len(message_ids):
        if len(offset_ids) != 1:
            raise ProtocolError(f"the broker gave {len(offset_ids)} ids for {len(message_ids)} messages")
        offset_ids *= len(message_ids)  # RocketMQ 5 keeps some batches as one record, with one id
    handle, region, is_traced = sent.recall_handle, sent.region, sent.trace_on is not False
    return [
        SendResult(status, message_id, offset_id, topic, broker_name, queue_id, at, handle, region, is_traced)
        for at, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True), offset)
    ]


class OpenBatches:
    """The lots that are still open, the oldest first."""

    def __init__(self, *, linger_s: float, bytes_max: int, count_max: int) -> None:
        self._linger_s, self._bytes_max, self._count_max = linger_s, bytes_max, count_max
        # A dict keeps the order in which lots were started, and all linger equally long: the first is due first.
        self.open: dict[BatchKey, MessageBatch] = {}

    def start(self, key: BatchKey, topic: str, queue: QueueRef | None, now: float) -> MessageBatch:
        assert key not in self.open
        lot = self.open[key] = MessageBatch(topic, queue, now + self._linger_s)
        return lot

    def add(
        self, key: BatchKey, flag: int, body: bytes, properties: bytes, message_id: str, future: SendFuture, cost: int
    ) -> bool | None:
        """Into the open lot of that key. Whether the lot is full now; None if there is none, or no room in it: seal
        what is open and start another."""
        lot = self.open.get(key)
        if lot is None:
            return None
        futures = lot.futures
        size = lot.size + BATCH_MESSAGE_BYTES_MIN + len(body) + len(properties)
        if size > self._bytes_max and futures:
            return None
        lot.size = size
        lot.cost += cost
        lot.members.append((flag, body, properties))
        lot.ids.append(message_id)
        futures.append(future)
        return size >= self._bytes_max or len(futures) >= self._count_max

    def seal(self, key: BatchKey) -> MessageBatch | None:
        return self.open.pop(key, None)

    def seal_due(self, now: float, busy: Container[BatchKey] = ()) -> list[MessageBatch]:
        """The lots whose time is up. Those for a busy queue could not leave yet, and may as well grow."""
        due = []
        for key, lot in list(self.open.items()):
            if lot.due > now:
                break
            if key not in busy:
                due.append(self.open.pop(key))
        return due

    def is_due(self, key: BatchKey, now: float) -> bool:
        lot = self.open.get(key)
        return lot is not None and lot.due <= now

    def next_due(self, busy: Container[BatchKey] = ()) -> float | None:
        """When the next lot is due that can leave."""
        return next((lot.due for key, lot in self.open.items() if key not in busy), None)

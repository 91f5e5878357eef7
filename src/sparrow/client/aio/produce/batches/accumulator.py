"""The accumulator of a lingering producer: collects messages into batches and sends them, with one timer.

1. Batches for any queue are sent concurrently. Batches for one queue follow each other, so that order survives a retry.
2. A message that cannot be batched keeps its position: what was collected before it for its queue is sent first.
3. One timer serves all batches.
"""

from __future__ import annotations

import asyncio
from collections import deque

from sparrow.client.aio.produce.batches.message_batch import BatchKey, MessageBatch, OpenBatches, SendFuture
from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_encoder import MessageEncoder, must_be_sent_alone
from sparrow.client.aio.produce.sender import Sender, SendPayload
from sparrow.model.errors import Closed, Refused
from sparrow.model.message import AnyMessage
from sparrow.model.protocol import PROPERTY_PRIORITY
from sparrow.model.queue import QueueRef


class Accumulator:
    """Sends the messages of one producer in batches."""

    def __init__(
        self,
        sender: Sender,
        encoder: MessageEncoder,
        budget: MemoryBudget,
        open_batches: OpenBatches,
        *,
        timeout_ms: int,
    ) -> None:
        self._sender, self._encoder, self._budget = sender, encoder, budget
        self._open_batches, self._timeout_ms = open_batches, timeout_ms
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._queues_busy: dict[QueueRef, deque[MessageBatch]] = {}
        self._unsettled: set[MessageBatch] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        cost: int,
        timeout_ms: int | None = None,
        future: SendFuture | None = None,
    ) -> SendFuture:
        """Add a message to the open batch of its queue, and return a future of its result."""
        if queue is not None and queue.topic != message.topic:
            raise Refused(f"a message of topic {message.topic!r} cannot go to a queue of {queue.topic!r}")
        body, properties, given_id = self._encoder.encode_without_id(message)
        if future is None:
            future = self._loop.create_future()
        key: BatchKey = message.topic if queue is None else queue
        if (
            message.properties
            and (priority := message.properties.get(PROPERTY_PRIORITY))
            and self._may_be_in_lanes(queue)
        ):
            key = (message.topic if queue is None else queue, priority)
        if (
            len(body) > self._encoder.plain_bytes_max
            or timeout_ms is not None
            or (message.properties and must_be_sent_alone(message))
        ):
            self._add_alone(message, key, queue, cost, timeout_ms, future, (body, properties, given_id))
            return future
        is_full = self._open_batches.add(key, message.flag, body, properties, given_id, future, cost)
        if is_full is None:
            self._start(key, message.topic, queue)
            is_full = self._open_batches.add(key, message.flag, body, properties, given_id, future, cost)
        if is_full:
            self._close(key)
        return future

    def _may_be_in_lanes(self, queue: QueueRef | None) -> bool:
        """Return whether the queue may have priority lanes.

        Only then are priorities sent apart: in one queue they would lose their order.
        """
        if queue is None:
            return True
        route = self._sender.cached_route(queue.topic)
        return route is not None and queue.broker_name in route.lane_brokers

    def _add_alone(
        self,
        message: AnyMessage,
        key: BatchKey,
        queue: QueueRef | None,
        cost: int,
        timeout_ms: int | None,
        future: SendFuture,
        checked: tuple[bytes, bytes, str | None],
    ) -> None:
        if queue is not None:
            self._close(key)
        body, properties, given_id = checked
        properties, message_id = self._encoder.with_id(properties, given_id)
        batch = MessageBatch(message.topic, queue, 0.0)
        batch.alone, batch.timeout_ms, batch.cost = (message, body, properties, message_id), timeout_ms, cost
        batch.futures.append(future)
        self._dispatch(batch)

    def _start(self, key: BatchKey, topic: str, queue: QueueRef | None) -> None:
        self._close(key)
        batch = self._open_batches.start(key, topic, queue, self._loop.time())
        if self._timer is None:
            self._timer = self._loop.call_at(batch.due, self._send_due)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _close(self, key: BatchKey) -> None:
        batch = self._open_batches.seal(key)
        if batch is not None:
            self._dispatch(batch)

    def _send_due(self) -> None:
        self._timer = None
        for batch in self._open_batches.seal_due(self._loop.time(), self._queues_busy):
            self._dispatch(batch)
        self._watch()

    def _watch(self) -> None:
        """Set the timer for the batch that can be sent next."""
        due = self._open_batches.next_due(self._queues_busy)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._send_due) if due is not None else None

    def _dispatch(self, batch: MessageBatch) -> None:
        self._unsettled.add(batch)
        if batch.queue is None:
            self._spawn(batch)
            return
        waiting = self._queues_busy.get(batch.queue)
        if waiting is not None:
            waiting.append(batch)
            return
        self._queues_busy[batch.queue] = deque()
        self._spawn(batch)

    def _spawn(self, batch: MessageBatch) -> None:
        task = self._loop.create_task(self._send_in_order(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_in_order(self, batch: MessageBatch) -> None:
        """Send this batch and, if it is for one queue, those that were added for the queue meanwhile."""
        queue = batch.queue
        if queue is None:
            await self._send(batch)
            return
        waiting = self._queues_busy[queue]
        await self._send(batch)
        while waiting or self._open_batches.is_due(queue, self._loop.time()):
            if not waiting:
                self._close(queue)
            await self._send(waiting.popleft())
        del self._queues_busy[queue]
        if queue in self._open_batches.open:
            self._watch()

    async def _send(self, batch: MessageBatch) -> None:
        try:
            payload, message_ids = await self._payload(batch)
            timeout_ms = batch.timeout_ms or self._timeout_ms
            outcome = await self._sender.send(batch.topic, payload, queue=batch.queue, timeout_ms=timeout_ms)
            batch.settle(outcome, message_ids)
        except Exception as error:  # the senders get it, and the next batch is sent
            batch.fail(error)
        except asyncio.CancelledError:
            self._budget.lost_count += batch.fail(Closed("the producer"))
            raise
        finally:
            self._unsettled.discard(batch)
            self._budget.release(batch.cost)
            if batch.settled is not None:
                batch.settled.set_result(None)

    async def _payload(self, batch: MessageBatch) -> tuple[SendPayload, list[str]]:
        """Return what is sent, and the unique ids of the messages."""
        if batch.alone is not None:
            message, body, properties, message_id = batch.alone
            return await self._encoder.single_payload(message, body, properties), [message_id]
        packed, message_ids = self._encoder.complete_batch(batch.members, batch.given_ids)
        return SendPayload(packed, is_batch=True), message_ids

    async def flush(self) -> None:
        """Wait until everything added so far is stored or has failed."""
        for key in list(self._open_batches.open):
            self._close(key)
        waited = []
        for batch in self._unsettled:
            if batch.settled is None:
                batch.settled = self._loop.create_future()
            waited.append(batch.settled)
        if waited:
            await asyncio.wait(waited)

    @property
    def unsettled_count(self) -> int:
        """How many messages are neither stored nor failed."""
        batches = (*self._open_batches.open.values(), *self._unsettled)
        return sum(not future.done() for batch in batches for future in batch.futures)

"""Gathers messages and ships them: the shell around `batching`, with its timer and its tasks.

1. Lots for any queue travel side by side. Lots for one queue follow each other, so that order survives a retry.
2. A message that cannot share a request keeps its place: what was gathered before it for its queue leaves first.
3. One timer serves all lots.
"""

from __future__ import annotations

import asyncio
from collections import deque

from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_batch import BatchKey, MessageBatch, OpenBatches, SendFuture
from sparrow.client.aio.produce.message_encoder import MessageEncoder, must_be_sent_alone
from sparrow.client.aio.produce.sender import Sender
from sparrow.model.errors import Closed, Refused
from sparrow.model.message import AnyMessage
from sparrow.model.protocol import PROPERTY_PRIORITY
from sparrow.model.queue import QueueRef


class Accumulator:
    def __init__(
        self,
        sender: Sender,
        encoder: MessageEncoder,
        budget: MemoryBudget,
        gathering: OpenBatches,
        *,
        timeout_ms: int,
    ) -> None:
        self._sender, self._encoder, self._budget = sender, encoder, budget
        self._gathering, self._timeout_ms = gathering, timeout_ms
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._lanes: dict[QueueRef, deque[MessageBatch]] = {}
        self._unsettled: set[MessageBatch] = set()
        self._carriers: set[asyncio.Task[None]] = set()

    def add(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        cost: int,
        timeout_ms: int | None = None,
        future: SendFuture | None = None,
    ) -> SendFuture:
        if queue is not None and queue.topic != message.topic:
            raise Refused(f"a message of topic {message.topic!r} cannot go to a queue of {queue.topic!r}")
        body, properties, message_id = self._encoder.encode(message)
        if future is None:
            future = self._loop.create_future()
        key: BatchKey = message.topic if queue is None else queue
        if message.properties and (word := message.properties.get(PROPERTY_PRIORITY)) and self._may_be_in_lanes(queue):
            key = (message.topic if queue is None else queue, word)
        if (
            len(body) > self._encoder.plain_bytes_max
            or timeout_ms is not None
            or (message.properties and must_be_sent_alone(message))
        ):
            self._add_alone(message, key, queue, cost, timeout_ms, future, (body, properties, message_id))
            return future
        is_full = self._gathering.add(key, message.flag, body, properties, message_id, future, cost)
        if is_full is None:
            self._start(key, message.topic, queue)
            is_full = self._gathering.add(key, message.flag, body, properties, message_id, future, cost)
        if is_full:
            self._seal(key)
        return future

    def _may_be_in_lanes(self, queue: QueueRef | None) -> bool:
        """Only then messages of different priorities travel apart: in one queue they would lose their order."""
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
        checked: tuple[bytes, bytes, str],
    ) -> None:
        if queue is not None:
            self._seal(key)
        body, properties, message_id = checked
        lot = MessageBatch(message.topic, queue, 0.0)
        lot.alone, lot.timeout_ms, lot.cost = (message, body, properties), timeout_ms, cost
        lot.ids.append(message_id)
        lot.futures.append(future)
        self._ship(lot)

    def _start(self, key: BatchKey, topic: str, queue: QueueRef | None) -> None:
        self._seal(key)
        lot = self._gathering.start(key, topic, queue, self._loop.time())
        if self._timer is None:
            self._timer = self._loop.call_at(lot.due, self._ship_due)

    # -- shipping -----------------------------------------------------------------------------------------------------

    def _seal(self, key: BatchKey) -> None:
        lot = self._gathering.seal(key)
        if lot is not None:
            self._ship(lot)

    def _ship_due(self) -> None:
        self._timer = None
        for lot in self._gathering.seal_due(self._loop.time(), self._lanes):
            self._ship(lot)
        self._watch()

    def _watch(self) -> None:
        """The timer waits for the lot that can leave next."""
        due = self._gathering.next_due(self._lanes)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._ship_due) if due is not None else None

    def _ship(self, lot: MessageBatch) -> None:
        self._unsettled.add(lot)
        if lot.queue is None:
            self._spawn(lot)
            return
        lane = self._lanes.get(lot.queue)
        if lane is not None:
            lane.append(lot)
            return
        self._lanes[lot.queue] = deque()
        self._spawn(lot)

    def _spawn(self, lot: MessageBatch) -> None:
        task = self._loop.create_task(self._carry_all(lot))
        self._carriers.add(task)
        task.add_done_callback(self._carriers.discard)

    async def _carry_all(self, lot: MessageBatch) -> None:
        """This lot and, if it is for one queue, those that came for the queue meanwhile."""
        queue = lot.queue
        if queue is None:
            await self._carry(lot)
            return
        lane = self._lanes[queue]
        await self._carry(lot)
        while lane or self._gathering.is_due(queue, self._loop.time()):
            if not lane:
                self._seal(queue)
            await self._carry(lane.popleft())
        del self._lanes[queue]
        if queue in self._gathering.open:
            self._watch()

    async def _carry(self, lot: MessageBatch) -> None:
        try:
            payload = lot.packed() if lot.alone is None else await self._encoder.single_payload(*lot.alone)
            timeout_ms = lot.timeout_ms or self._timeout_ms
            lot.settle(await self._sender.send(lot.topic, payload, queue=lot.queue, timeout_ms=timeout_ms))
        except Exception as error:  # whatever it is, it belongs to those who wait, and the next lot goes on
            lot.fail(error)
        except asyncio.CancelledError:
            lot.fail(Closed("the producer"))
            raise
        finally:
            self._unsettled.discard(lot)
            self._budget.release(lot.cost)
            if lot.settled is not None:
                lot.settled.set_result(None)

    async def flush(self) -> None:
        """Returns once everything that had been added is stored, or has failed."""
        for key in list(self._gathering.open):
            self._seal(key)
        waited = []
        for lot in self._unsettled:
            if lot.settled is None:
                lot.settled = self._loop.create_future()
            waited.append(lot.settled)
        if waited:
            await asyncio.wait(waited)

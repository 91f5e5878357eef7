"""Sends of messages in batches. A message whose queue a selector chooses waits for the route of its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sparrow.client.aio.produce.batches.accumulator import Accumulator
from sparrow.client.aio.produce.batches.message_batch import OpenBatches, SendFuture
from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.aio.produce.sender import Sender
from sparrow.client.aio.produce.single_sender import SingleSender
from sparrow.client.message_spans import start_send_span
from sparrow.client.produce.queue_selection import QueueSelector
from sparrow.model.errors import SparrowError
from sparrow.model.message import AnyMessage
from sparrow.model.queue import QueueRef

_Waiting = tuple[AnyMessage, QueueSelector, int, int | None, SendFuture]
"""A message, its selector, its memory cost, its timeout, and the future of its result."""


class BatchSender:
    """Sends messages in batches for a producer."""

    def __init__(
        self,
        sender: Sender,
        encoder: MessageEncoder,
        budget: MemoryBudget,
        single: SingleSender,
        open_batches: OpenBatches,
        *,
        timeout_ms: int,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Prepare to send. `single` has the producer's selector and its tracer."""
        self._sender, self._budget, self._single, self._spawn = sender, budget, single, spawn
        self._timeout_ms = timeout_ms
        self.accumulator = Accumulator(sender, encoder, budget, open_batches, timeout_ms=timeout_ms)
        self._unrouted: dict[str, list[_Waiting]] = {}
        """Messages by topic that wait for its route."""

    def send(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        cost: int,
        future: SendFuture | None = None,
    ) -> SendFuture:
        """Add a message to a batch, and return a future of its result: a new one, or that of the caller.

        Its `cost` is released with the batch.
        """
        message, span = start_send_span(message)
        try:
            future = self._add(message, queue, selector, timeout_ms, cost=cost, future=future)
        except BaseException as error:
            self._budget.release(cost)
            if span is not None:
                span.fail(error)
            raise
        if self._single.tracer is not None:
            self._single.tracer.follow(message, future)
        if span is not None:
            span.follow(future)
        return future

    def _add(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        cost: int,
        future: SendFuture | None,
    ) -> SendFuture:
        if queue is None:
            # Checked here too: most messages have neither properties nor a selector.
            if message.properties or selector is not None or self._single.selector is not None:
                selector = self._single.selector_for(message, selector)
            if selector is not None:
                return self._add_selected(message, selector, cost, timeout_ms, future)
        return self.accumulator.add(message, queue, cost, timeout_ms, future)

    def _add_selected(
        self,
        message: AnyMessage,
        selector: QueueSelector,
        cost: int,
        timeout_ms: int | None,
        future: SendFuture | None,
    ) -> SendFuture:
        """Add a message now if the route is known, otherwise once it is, in order."""
        if future is None:
            future = asyncio.get_running_loop().create_future()
        topic = message.topic
        route = self._sender.cached_route(topic)
        waiting = self._unrouted.get(topic)
        if waiting is not None:
            waiting.append((message, selector, cost, timeout_ms, future))
        elif route is not None:
            self._select(route.write_queues, (message, selector, cost, timeout_ms, future))
        else:
            self._unrouted[topic] = [(message, selector, cost, timeout_ms, future)]
            self._spawn(self._find_route(topic))
        return future

    async def _find_route(self, topic: str) -> None:
        try:
            queues = (await self._sender.route_within(topic, self._timeout_ms)).write_queues
        except SparrowError as error:
            for _, _, cost, _, future in self._unrouted.pop(topic):
                self._budget.release(cost)
                if not future.done():
                    future.set_exception(error)
            return
        for waiting in self._unrouted.pop(topic):
            self._select(queues, waiting)

    def _select(self, queues: Sequence[QueueRef], waiting: _Waiting) -> None:
        message, selector, cost, timeout_ms, future = waiting
        try:
            self.accumulator.add(message, selector(queues, message), cost, timeout_ms, future)
        except Exception as error:  # the selector is the caller's code, so the caller gets its error
            self._budget.release(cost)
            if not future.done():
                future.set_exception(error)

"""Assignment of queues by selectors: messages wait for the route of their topic, and are batched in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sparrow.client.aio.produce.accumulator import Accumulator
from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_batch import SendFuture
from sparrow.client.aio.produce.sender import Sender
from sparrow.client.queue_selection import QueueSelector
from sparrow.model.errors import SparrowError
from sparrow.model.message import AnyMessage
from sparrow.model.queue import QueueRef

_Waiting = tuple[AnyMessage, QueueSelector, int, int | None, SendFuture]
"""A message, its selector, its memory cost, its timeout, and the future of its result."""


class QueueAssigner:
    """Passes messages to the accumulator once a selector has chosen their queue."""

    def __init__(
        self,
        sender: Sender,
        accumulator: Accumulator,
        budget: MemoryBudget,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._sender, self._accumulator, self._budget, self._spawn = sender, accumulator, budget, spawn
        self._unrouted: dict[str, list[_Waiting]] = {}
        """Messages by topic that wait for its route."""

    def add(self, message: AnyMessage, selector: QueueSelector, cost: int, timeout_ms: int | None) -> SendFuture:
        """Add a message now if the route is known, otherwise once it is, in order."""
        future: SendFuture = asyncio.get_running_loop().create_future()
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
            queues = (await self._sender.route(topic)).write_queues
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
            self._accumulator.add(message, selector(queues, message), cost, timeout_ms, future)
        except Exception as error:  # the selector is the caller's code, so the caller gets its error
            self._budget.release(cost)
            if not future.done():
                future.set_exception(error)

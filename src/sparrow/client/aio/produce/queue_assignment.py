"""Messages whose queue a selector chooses: gathered in the order in which they came, also before the route is known."""

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
"""A message, who chooses its queue, what it is charged, its time-out, and who waits for it."""


class QueueAssigner:
    def __init__(
        self,
        sender: Sender,
        accumulator: Accumulator,
        budget: MemoryBudget,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._sender, self._accumulator, self._budget, self._spawn = sender, accumulator, budget, spawn
        self._unrouted: dict[str, list[_Waiting]] = {}
        """Messages whose queue cannot be chosen before the route is known."""

    def add(self, message: AnyMessage, selector: QueueSelector, cost: int, timeout_ms: int | None) -> SendFuture:
        """Now if the route is known, else once it is: in the order in which they came."""
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
        except Exception as error:  # a selector is the caller's, and so is whatever it raises
            self._budget.release(cost)
            if not future.done():
                future.set_exception(error)

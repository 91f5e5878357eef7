"""Sends of one message in a request of its own, and the choice of its queue by a selector."""

from __future__ import annotations

import asyncio
import time

from sparrow.client.aio.produce.batches.message_batch import send_results
from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.aio.produce.sender import Sender
from sparrow.client.aio.tracer import Tracer
from sparrow.client.message_spans import start_send_span, with_current_context
from sparrow.client.produce.queue_selection import QueueSelector, by_sharding_key
from sparrow.model.message import AnyMessage, body_length
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendResult
from sparrow.wire.record import TRANSACTION_PREPARED

MESSAGE_COST_BYTES = 1024
"""Approximate memory of a message that is sent alone, besides its body."""


class SingleSender:
    """Sends messages one by one for a producer."""

    def __init__(
        self,
        sender: Sender,
        encoder: MessageEncoder,
        budget: MemoryBudget,
        selector: QueueSelector | None,
        *,
        timeout_ms: int,
    ) -> None:
        self._sender, self._encoder, self._budget = sender, encoder, budget
        self._timeout_ms = timeout_ms
        self.selector = selector
        """The producer's own selector; None: any queue."""
        self._by_sharding_key = by_sharding_key()
        self.tracer: Tracer | None = None

    async def send(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        is_half: bool = False,
    ) -> SendResult:
        """Send a message, and return where it is stored. `is_half`: it is the half message of a transaction."""
        message, span = start_send_span(message)
        if span is None:
            return await self._send(message, queue, selector, timeout_ms, is_half=is_half)
        sending = asyncio.ensure_future(self._send(message, queue, selector, timeout_ms, is_half=is_half))
        span.follow(sending)
        return await sending

    async def _send(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        is_half: bool,
    ) -> SendResult:
        body, properties, message_id = self._encoder.encode(message)
        payload = await self._encoder.single_payload(message, body, properties)
        if is_half:
            payload = payload._replace(sys_flag=payload.sys_flag | TRANSACTION_PREPARED)
        begun, timeout_ms = time.monotonic(), timeout_ms or self._timeout_ms
        target = queue or await self._selected_queue(message, selector, timeout_ms)
        left_ms = min(timeout_ms, max(1, timeout_ms - int((time.monotonic() - begun) * 1000)))
        result = None
        try:
            outcome = await self._sender.send(message.topic, payload, queue=target, timeout_ms=left_ms)
            result = send_results(outcome, [message_id])[0]
            return result
        finally:
            if self.tracer is not None:
                self.tracer.published(message, message_id, begun, result)

    async def send_within_budget(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        is_half: bool = False,
    ) -> SendResult:
        """Send a message once the memory budget allows it."""
        cost = body_length(message) + MESSAGE_COST_BYTES
        await self._budget.acquire(cost)
        try:
            return await self.send(message, queue, selector, timeout_ms, is_half=is_half)
        finally:
            self._budget.release(cost)

    async def send_one_way(self, message: AnyMessage, queue: QueueRef | None, selector: QueueSelector | None) -> None:
        """Write the request to the connection, without an acknowledgement."""
        message = with_current_context(message)
        body, properties, _ = self._encoder.encode(message)
        payload = await self._encoder.single_payload(message, body, properties)
        target = queue or await self._selected_queue(message, selector, self._timeout_ms)
        await self._sender.send_one_way(message.topic, payload, queue=target, timeout_ms=self._timeout_ms)

    def selector_for(self, message: AnyMessage, selector: QueueSelector | None) -> QueueSelector | None:
        """Return the selector of the call, else that of the producer, else the one for the message's sharding key."""
        selector = selector or self.selector
        if selector is None and message.properties and PROPERTY_SHARDING_KEY in message.properties:
            return self._by_sharding_key
        return selector

    async def _selected_queue(
        self, message: AnyMessage, selector: QueueSelector | None, timeout_ms: int
    ) -> QueueRef | None:
        """Return the queue that the selector chooses; None if any queue will do."""
        selector = self.selector_for(message, selector)
        if selector is None:
            return None
        return selector((await self._sender.route_within(message.topic, timeout_ms)).write_queues, message)

"""The sender of bulk sends: large batches, several requests at a time. No loop runs over messages.

1. Batches for any queue are sent concurrently. Batches for one queue follow each other, so that order survives a retry.
2. After a failure no further batch is begun, and no later one of the same queue is sent. `PartialSend` says which
   messages are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.sender import Sender, SendOutcome, SendPayload
from sparrow.model.errors import PartialSend, Refused
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import BulkSendResult, SentRange
from sparrow.wire import headers
from sparrow.wire.headers import SendMessageResponse

BATCH_BYTES_MAX = 1024 * 1024
"""Of one request: larger ones are not faster, and brokers accept 4 MiB at most."""
BATCH_MESSAGES_MAX = 10_000
"""Of one request: the default limit of brokers is twice as many (`broker.batch_messages_max`)."""


class RowBatch(NamedTuple):
    """The body of one request."""

    data: memoryview
    indexes: Sequence[int]
    """Which of the messages it contains, in order."""
    queue: QueueRef | None
    """None: any queue will do."""


class BulkSender:
    """One bulk send to a topic."""

    def __init__(self, sender: Sender, budget: MemoryBudget, topic: str, *, in_flight: int, timeout_ms: int) -> None:
        """Prepare to send at most `in_flight` batches at a time."""
        if in_flight < 1:
            raise Refused(f"in_flight is {in_flight}: use 1 or more")
        self._sender, self._budget, self._topic = sender, budget, topic
        self._in_flight, self._timeout_ms = in_flight, timeout_ms
        self._stored: list[SentRange] = []
        self._failure: BaseException | None = None
        self._running: set[asyncio.Task[SentRange | None]] = set()
        self._last_of_queue: dict[QueueRef, asyncio.Task[SentRange | None]] = {}

    async def send(self, batches: Iterator[RowBatch], total: int) -> BulkSendResult:
        """Send all batches. Raise `PartialSend` if one fails, or the error of a first one that cannot be encoded."""
        try:
            for batch in batches:
                while len(self._running) >= self._in_flight:
                    await self._settle("FIRST_COMPLETED")
                if self._failure is not None:
                    break
                await self._budget.acquire(len(batch.data))
                self._begin(batch)
            while self._running:
                await self._settle("ALL_COMPLETED")
        except asyncio.CancelledError:
            for task in self._running:
                task.cancel()
            raise
        except Exception as error:  # a message that cannot be encoded; earlier ones may be in flight
            while self._running:
                await self._settle("ALL_COMPLETED")
            if not self._stored and self._failure is None:
                raise
            self._failure = self._failure or error
        stored = tuple(sorted(self._stored, key=lambda each: each.indexes[0]))
        if self._failure is not None:
            raise PartialSend(self._topic, total, stored) from self._failure
        return BulkSendResult(self._topic, stored)

    def _begin(self, batch: RowBatch) -> None:
        before = None if batch.queue is None else self._last_of_queue.get(batch.queue)
        task = asyncio.create_task(self._deliver(batch, before))
        size = len(batch.data)
        task.add_done_callback(lambda _: self._budget.release(size))
        self._running.add(task)
        if batch.queue is not None:
            self._last_of_queue[batch.queue] = task

    async def _deliver(self, batch: RowBatch, before: asyncio.Task[SentRange | None] | None) -> SentRange | None:
        """Send a batch; return None if it is not sent, because the one before it in its queue failed."""
        if before is not None:
            await asyncio.wait([before])
            if before.cancelled() or before.exception() is not None or before.result() is None:
                return None
        payload = SendPayload(batch.data, is_batch=True)
        outcome = await self._sender.send(self._topic, payload, queue=batch.queue, timeout_ms=self._timeout_ms)
        return _sent_range(outcome, batch.indexes)

    async def _settle(self, when: str) -> None:
        done, self._running = await asyncio.wait(self._running, return_when=when)
        for task in done:
            error = task.exception()
            if error is not None:
                self._failure = self._failure or error
            elif (stored := task.result()) is not None:
                self._stored.append(stored)


def _sent_range(outcome: SendOutcome, indexes: Sequence[int]) -> SentRange:
    answer = headers.read(SendMessageResponse, outcome.answer.ext)
    queue = QueueRef(outcome.queue.topic, outcome.queue.broker_name, answer.queue_id)
    return SentRange(outcome.status, queue, answer.queue_offset, indexes)

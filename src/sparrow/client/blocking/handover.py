"""The handover of messages from the threads of an application to the event loop of their producer.

1. Messages are passed on in the order of `add`, many in one turn of the loop, which is woken once for all of them.
   Batches settle the futures of the application's threads themselves: no future and callback of the loop for each.
2. At most `HANDOVER_BYTES_MAX` wait; a faster sender blocks. The memory budget of the producer limits what follows.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from functools import partial

from sparrow.client import aio
from sparrow.client.aio.produce.producer import add_to_batch
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.client.blocking.send_future import ThreadSendFuture
from sparrow.client.produce.queue_selection import QueueSelector
from sparrow.model.errors import Busy, Closed
from sparrow.model.message import AnyMessage, body_length
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendResult

HANDOVER_BYTES_MAX = 8 * 1024 * 1024
"""Messages that may wait for the loop thread; a faster sender blocks."""
_COST_BYTES = 512
HANDOVER_COUNT_MAX = 256
"""Messages handed over before the event loop serves its sockets again, because senders may never pause."""


_HandedOver = tuple[AnyMessage, QueueRef | None, QueueSelector | None, int | None, ThreadSendFuture]
"""A message on its way to the loop thread, how it is sent, and the future of its result."""


class Handover:
    """The messages of one producer that its event loop has not got yet, and those that are not settled."""

    def __init__(self, client: aio.Producer) -> None:
        self._client = client
        self._waiting: deque[_HandedOver] = deque()
        self._waiting_bytes = 0
        self._space_freed = threading.Condition(threading.Lock())
        self._is_handing_over = False
        self._task: asyncio.Task[None] | None = None
        self._unsettled = 0
        """Messages that are handed over and neither stored nor failed."""
        self.failed = 0
        """Messages that have failed since the last `flush`."""
        self.failure: BaseException | None = None
        """Why the last one failed."""

    def add(
        self,
        loop: LoopThread,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
    ) -> Future[SendResult]:
        """Hand a message over, and return the future of its result. Blocks while too many wait."""
        cost = body_length(message) + _COST_BYTES
        future = ThreadSendFuture(self)
        with self._space_freed:
            # A callback of a future runs on the loop thread, which must not wait for itself.
            while self._waiting_bytes > HANDOVER_BYTES_MAX and not loop.is_current:
                self._space_freed.wait()
            self._waiting.append((message, queue, selector, timeout_ms, future))
            self._waiting_bytes += cost
            if self._is_handing_over:
                return future
            self._is_handing_over = True
        loop.call_soon(self._start)
        return future

    @property
    def unstored_count(self) -> int:
        """How many messages are neither stored nor counted by a `flush`."""
        return len(self._waiting) + self._unsettled + self.failed

    # -- on the loop --------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until every message is stored or has failed."""
        if self._task is not None:
            await self._task
        await self._client.flush()

    async def flush_and_close(self) -> None:
        """Send what is unsent, and close the producer."""
        await self.flush()
        await self._client.close()

    def count_stored(self) -> None:
        """Count a message that is stored."""
        self._unsettled -= 1

    def count_failed(self, error: BaseException | None) -> None:
        """Count a message that has failed."""
        self._unsettled -= 1
        self.failed += 1
        self.failure = error

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._hand_over_all())

    async def _hand_over_all(self) -> None:
        """Pass the messages on to the asyncio producer, in order, until none is left. One task serves them all."""
        while True:
            with self._space_freed:
                if not self._waiting:
                    self._is_handing_over = False
                    return
                taken, self._waiting = self._waiting, deque()
                self._unsettled += len(taken)
                self._waiting_bytes = 0
                self._space_freed.notify_all()
            for number, sent in enumerate(taken, start=1):
                if not sent[-1].set_running_or_notify_cancel():
                    self._unsettled -= 1
                elif not self._is_added(sent):
                    await self._send_alone(*sent)
                if number % HANDOVER_COUNT_MAX == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _is_added(self, sent: _HandedOver) -> bool:
        """Add a message to a batch; return False if it cannot be added now."""
        try:
            return add_to_batch(self._client, *sent)
        except Exception as error:
            sent[-1].set_exception(error)
            return True

    async def _send_alone(
        self,
        message: AnyMessage,
        queue: QueueRef | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        future: ThreadSendFuture,
    ) -> None:
        """Send a message of a producer that does not linger, or one that must wait for memory."""
        try:
            sending = self._client.send_soon(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        except Busy:
            # `send` waits for memory; the messages after this one wait with it.
            sending = asyncio.ensure_future(
                self._client.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
            )
            await asyncio.wait([sending])
        except Exception as error:
            future.set_exception(error)
            return
        sending.add_done_callback(partial(_settle, future))


def _settle(future: ThreadSendFuture, done: asyncio.Future[SendResult]) -> None:
    if done.cancelled():
        future.set_exception(Closed("the producer"))
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())

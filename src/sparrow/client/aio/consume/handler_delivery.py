"""How messages reach a handler: many at a time, or in order. `on_request` has those that an application asks for.

1. A message is done when its handler returned. One that failed is given back to the broker to come again later; where
   that cannot be had, it is tried again here after a while. Until then it holds back what may be committed.
2. In order: of one queue, one batch at a time, and only while the broker holds the queue for us. One that failed is
   tried again in place, as often as retries are allowed; then it is buried, and the queue goes on.
3. A handler may choose: `raise Later(level)`, `raise Bury()`.
4. Of a topic with lanes, what has the highest priority is handed out first. In order every queue has its own runner, so
   there nothing waits for another lane.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from sparrow import clock
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, QueueFetcher, mark_consumed
from sparrow.client.aio.consume.topic_lanes import TopicLanes
from sparrow.client.priority_lanes import PriorityLanes
from sparrow.client.retry import DeadLetter, RetryLater, is_handler_decision
from sparrow.model.message import StoredMessage

log = logging.getLogger(__name__)

MessageHandler = Callable[[Any], Awaitable[object]]
"""Takes a message, or a list of them where batches were asked for. Raising means: not now, bring it again."""

SendBackCallback = Callable[[QueueFetcher, StoredMessage, Exception], Awaitable[bool]]
"""Asks the broker to take a message back after that failure of its handler. False: it cannot."""

LOCAL_RETRY_S = 5.0
ORDERLY_SUSPEND_S = 1.0
RELEASE_WAIT_S = 1.0
"""How long to wait for a handler before a queue is let go of; then others are seen to first."""


class MessageDelivery(Protocol):
    def arrived(self, feed: QueueFetcher, messages: list[StoredMessage]) -> None: ...
    async def release_queue(self, feed: QueueFetcher) -> bool:
        """Begin nothing more of a queue. False: something of it is in hand that nobody else may begin meanwhile."""
        ...

    async def handle_directly(self, message: StoredMessage) -> None:
        """Out of turn, and only once."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Nothing new is begun; what is being handled gets a while to finish."""
        ...


class _InHand:
    """Counts what is being handled; one may wait until nothing is."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._count += 1
        self._none.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def none(self, grace_s: float) -> None:
        try:
            async with asyncio.timeout(grace_s):
                await self._none.wait()
        except TimeoutError:
            pass


class ConcurrentDelivery:
    """Some workers, each with a message (or a batch) in hand; no order, but that of priorities."""

    def __init__(
        self,
        handler: MessageHandler,
        *,
        workers: int,
        batch: int | None,
        send_back: SendBackCallback,
        lanes: TopicLanes,
    ) -> None:
        self._handler, self._batch, self._send_back, self._lanes = handler, batch, send_back, lanes
        self._size = batch or 1
        # Lanes stand in line once for each batch that waits in them. What is in the batch is decided when its turn
        # comes; if others came to be in earlier ones, it may be empty.
        self._line: asyncio.Queue[list[FetchedMessage] | PriorityLanes[FetchedMessage]] = asyncio.Queue()
        self._is_stopping = False
        self._in_hand = _InHand()
        self._workers = [asyncio.create_task(self._work(), name=f"consume {number}") for number in range(workers)]

    def arrived(self, feed: QueueFetcher, messages: list[StoredMessage]) -> None:
        plain, in_lanes = self._lanes.add(feed, messages)
        for start in range(0, len(plain), self._size):
            self._line.put_nowait([(feed, message) for message in plain[start : start + self._size]])
        for lanes, count in in_lanes:
            for _ in range(0, count, self._size):
                self._line.put_nowait(lanes)

    async def release_queue(self, feed: QueueFetcher) -> bool:
        """What is in line of it is passed over when its turn comes."""
        return True

    async def handle_directly(self, message: StoredMessage) -> None:
        await self._handler(message if self._batch is None else [message])

    async def _work(self) -> None:
        while True:
            turn = await self._line.get()
            if isinstance(turn, PriorityLanes):
                items = [item for item in turn.take(self._size, clock.now_ms()) if not item[0].is_stopping]
            else:  # all of one queue
                items = [] if turn[0][0].is_stopping else turn
            if items and not self._is_stopping:
                with self._in_hand:
                    await self._handle(items)

    async def _handle(self, items: list[FetchedMessage]) -> None:
        feed, message = items[0]
        given = message if self._batch is None else [message for _, message in items]
        failure = await _failure(self._handler, given, feed)
        if failure is not None:
            items = [item for item in items if await self._sent_back(item, failure)]
        mark_consumed(items)

    async def _sent_back(self, item: FetchedMessage, failure: Exception) -> bool:
        feed, message = item
        if feed.is_dropped or await self._send_back(feed, message, failure):
            return True
        asyncio.get_running_loop().call_later(LOCAL_RETRY_S, self._line.put_nowait, [item])
        return False

    async def stop(self, grace_s: float) -> None:
        self._is_stopping = True
        await self._in_hand.none(grace_s)
        await _cancelled(self._workers)


class OrderlyDelivery:
    """One runner a queue. Without `retries_max` a message is tried until its handler takes it, or buries it."""

    def __init__(
        self, handler: MessageHandler, *, batch: int | None, retries_max: int | None, dead_letter: SendBackCallback
    ) -> None:
        self._handler, self._batch = handler, batch
        self._retries_max, self._dead_letter = retries_max, dead_letter
        self._lines: dict[QueueFetcher, deque[StoredMessage]] = {}
        self._runners: dict[QueueFetcher, asyncio.Task[None]] = {}
        self._is_stopping = False
        self._in_hand = _InHand()

    def arrived(self, feed: QueueFetcher, messages: list[StoredMessage]) -> None:
        self._lines.setdefault(feed, deque()).extend(messages)
        if feed not in self._runners and not self._is_stopping:
            self._runners[feed] = asyncio.create_task(self._run(feed), name=f"consume {feed.queue}")

    async def release_queue(self, feed: QueueFetcher) -> bool:
        self._lines.pop(feed, None)
        runner = self._runners.get(feed)
        if runner is not None:
            await asyncio.wait([runner], timeout=RELEASE_WAIT_S)
        return runner is None or runner.done()

    async def handle_directly(self, message: StoredMessage) -> None:
        await self._handler(message if self._batch is None else [message])

    async def _run(self, feed: QueueFetcher) -> None:
        """Until nothing is in line. A new runner is started by what arrives then."""
        try:
            while (line := self._lines.get(feed)) and not feed.is_dropped and not self._is_stopping:
                if not feed.is_locked:
                    await asyncio.sleep(ORDERLY_SUSPEND_S / 10)
                    continue
                chunk = [line[place] for place in range(min(self._batch or 1, len(line)))]
                failure = await self._failure(feed, chunk)
                count = len(chunk) if failure is None else await self._dead_lettered(feed, chunk, failure)
                for _ in range(min(count, len(line))):
                    line.popleft()
                feed.done([message.queue_offset for message in chunk[:count]])
                if failure is not None and count < len(chunk):
                    await feed.pause(_pause_s(failure))
                    if feed.is_stopping:  # it will not be let go of while we try
                        break
        finally:
            self._runners.pop(feed, None)

    async def _failure(self, feed: QueueFetcher, chunk: list[StoredMessage]) -> Exception | None:
        with self._in_hand:
            return await _failure(self._handler, chunk[0] if self._batch is None else chunk, feed)

    async def _dead_lettered(self, feed: QueueFetcher, chunk: list[StoredMessage], failure: Exception) -> int:
        """How many were, from the first on. The others have been tried once more."""
        count = 0
        while count < len(chunk) and self._is_hopeless(chunk[count], failure) and not feed.is_dropped:
            if not await self._dead_letter(feed, chunk[count], failure):
                break
            count += 1
        for message in chunk[count:]:
            message.reconsume_times += 1
        return count

    def _is_hopeless(self, message: StoredMessage, failure: Exception) -> bool:
        return isinstance(failure, DeadLetter) or (
            self._retries_max is not None and message.reconsume_times >= self._retries_max
        )

    async def stop(self, grace_s: float) -> None:
        self._is_stopping = True
        await self._in_hand.none(grace_s)
        await _cancelled(list(self._runners.values()))


async def _failure(
    handler: MessageHandler, given: StoredMessage | list[StoredMessage], feed: QueueFetcher
) -> Exception | None:
    """Why the handler did not take it; None if it did."""
    try:
        await handler(given)
        return None
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # it is us who are being stopped, not something the handler waited for
        failure: Exception = RuntimeError("something it waited for was cancelled")
        failure.__cause__ = error
    except Exception as error:
        if is_handler_decision(error):
            return error
        failure = error
    log.warning("a handler failed", extra={"queue": str(feed.queue), "why": repr(failure)}, exc_info=failure)
    return failure


def _pause_s(failure: Exception) -> float:
    """Before a queue in order goes on with what it could not handle."""
    if isinstance(failure, RetryLater) and failure.delay_ms is not None:
        return failure.delay_ms / 1000
    return ORDERLY_SUSPEND_S


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

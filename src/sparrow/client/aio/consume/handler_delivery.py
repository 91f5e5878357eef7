"""Delivery of messages to a handler, concurrently or in order. `polled_delivery` serves applications that poll.

1. A message is consumed when its handler has returned. After a failure it is sent back to the broker, to be delivered
   again later; where that is impossible, it is retried here after a while. Until then it limits the committable offset.
2. In order: one batch of a queue at a time, and only while the broker has locked the queue for us. A failed message is
   retried in place, as often as retries are allowed; then it becomes a dead letter, and the queue continues.
3. A handler may decide: `raise RetryLater(level)`, `raise DeadLetter()`.
4. With `commit_first` (at most once), messages are committed before their handler is called, and a failed message is
   not delivered again.
5. In a topic with priority lanes, the highest priority is delivered first. In order, every queue has a runner of its
   own, so no lane waits for another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from sparrow import clock
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, QueueFetcher, mark_consumed
from sparrow.client.aio.consume.send_back import FailurePolicy
from sparrow.client.aio.consume.topic_lanes import TopicLanes
from sparrow.client.consume.priority_lanes import PriorityLanes
from sparrow.client.consume.retry import DeadLetter, RetryLater, is_handler_decision
from sparrow.model.errors import SparrowError
from sparrow.model.message import StoredMessage

log = logging.getLogger(__name__)

MessageHandler = Callable[[Any], Awaitable[object]]
"""Gets a message, or a list of messages if batches are used. If it raises, the message is delivered again later."""

SendBackCallback = Callable[[QueueFetcher, StoredMessage, Exception], Awaitable[bool]]
"""Sends a message back to the broker after a failure of its handler. Returns False if that is impossible now."""

CommitFirst = Callable[[Sequence[FetchedMessage]], Awaitable[list[FetchedMessage]]]
"""Commits messages before they are delivered, and returns those that may be. Raises if that is impossible now."""

LOCAL_RETRY_S = 5.0
COMMIT_RETRY_S = 1.0
"""Pause before messages are committed again that must be committed before they are delivered."""
ORDERLY_SUSPEND_S = 1.0
RELEASE_WAIT_S = 1.0
"""How long releasing a queue waits for its handler; then other queues are rebalanced first."""


class MessageDelivery(Protocol):
    """What receives the fetched messages of a consumer."""

    def arrived(self, fetcher: QueueFetcher, messages: list[StoredMessage]) -> None: ...
    async def release_queue(self, fetcher: QueueFetcher) -> bool:
        """Deliver no more of a queue. Return False if a handler still works on it and must finish first."""
        ...

    async def handle_directly(self, message: StoredMessage) -> None:
        """Pass a message to the handler once, beside the usual delivery."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Start no more handlers, and give running ones some time to finish."""
        ...


class _RunningHandlers:
    """Counts running handlers; callers can wait until none runs."""

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
    """Delivers messages, or batches, to several concurrent workers; the only order is that of priorities."""

    def __init__(
        self,
        handler: MessageHandler,
        *,
        workers: int,
        batch: int | None,
        send_back: SendBackCallback,
        lanes: TopicLanes,
        commit_first: CommitFirst | None = None,
    ) -> None:
        self._handler, self._batch, self._send_back, self._lanes = handler, batch, send_back, lanes
        self._commit_first = commit_first
        self._size = batch or 1
        # Lanes are queued once for each batch that waits in them. The content of a batch is decided when its turn
        # comes; it may be empty if its messages were delivered in earlier ones.
        self._line: asyncio.Queue[list[FetchedMessage] | PriorityLanes[FetchedMessage]] = asyncio.Queue()
        self._is_stopping = False
        self._running = _RunningHandlers()
        self._workers = [asyncio.create_task(self._work(), name=f"consume {number}") for number in range(workers)]

    def arrived(self, fetcher: QueueFetcher, messages: list[StoredMessage]) -> None:
        plain, in_lanes = self._lanes.add(fetcher, messages)
        for start in range(0, len(plain), self._size):
            self._line.put_nowait([(fetcher, message) for message in plain[start : start + self._size]])
        for lanes, count in in_lanes:
            for _ in range(0, count, self._size):
                self._line.put_nowait(lanes)

    async def release_queue(self, fetcher: QueueFetcher) -> bool:
        """Release a queue; its waiting messages are skipped when they are due."""
        return True

    async def handle_directly(self, message: StoredMessage) -> None:
        await self._handler(message if self._batch is None else [message])

    async def _work(self) -> None:
        while True:
            turn = await self._line.get()
            if isinstance(turn, PriorityLanes):
                items = [item for item in turn.take(self._size, clock.now_ms()) if not item[0].is_stopping]
            else:  # a batch of one queue
                items = [] if turn[0][0].is_stopping else turn
            if items and not self._is_stopping:
                with self._running:
                    await self._handle(items)

    async def _handle(self, items: list[FetchedMessage]) -> None:
        if self._commit_first is not None:
            items = await self._committed(items, self._commit_first)
            if not items:
                return
        fetcher, message = items[0]
        given = message if self._batch is None else [message for _, message in items]
        failure = await _failure(self._handler, given, fetcher)
        if failure is not None:
            items = [item for item in items if await self._sent_back(item, failure)]
        mark_consumed(items)

    async def _committed(self, items: list[FetchedMessage], commit_first: CommitFirst) -> list[FetchedMessage]:
        """Commit messages, and return those that may be delivered.

        While a broker cannot be reached, this worker takes no other messages: they would be lost with these in a crash.
        """
        while not self._is_stopping:
            try:
                return await commit_first(items)
            except SparrowError:  # it has been reported
                await asyncio.sleep(COMMIT_RETRY_S)
        return []

    async def _sent_back(self, item: FetchedMessage, failure: Exception) -> bool:
        fetcher, message = item
        if fetcher.is_dropped or await self._send_back(fetcher, message, failure):
            return True
        asyncio.get_running_loop().call_later(LOCAL_RETRY_S, self._line.put_nowait, [item])
        return False

    async def stop(self, grace_s: float) -> None:
        self._is_stopping = True
        await self._running.none(grace_s)
        await _cancelled(self._workers)


class OrderlyDelivery:
    """Delivers the messages of each queue one after the other.

    Without `retries_max`, a message is retried until its handler succeeds or raises `DeadLetter`.
    """

    def __init__(
        self,
        handler: MessageHandler,
        *,
        batch: int | None,
        retries_max: int | None,
        dead_letter: SendBackCallback,
        commit_first: CommitFirst | None = None,
    ) -> None:
        self._handler, self._batch, self._commit_first = handler, batch, commit_first
        self._retries_max, self._dead_letter = retries_max, dead_letter
        self._lines: dict[QueueFetcher, deque[StoredMessage]] = {}
        self._runners: dict[QueueFetcher, asyncio.Task[None]] = {}
        self._is_stopping = False
        self._running = _RunningHandlers()

    def arrived(self, fetcher: QueueFetcher, messages: list[StoredMessage]) -> None:
        self._lines.setdefault(fetcher, deque()).extend(messages)
        if fetcher not in self._runners and not self._is_stopping:
            self._runners[fetcher] = asyncio.create_task(self._run(fetcher), name=f"consume {fetcher.queue}")

    async def release_queue(self, fetcher: QueueFetcher) -> bool:
        self._lines.pop(fetcher, None)
        runner = self._runners.get(fetcher)
        if runner is not None:
            await asyncio.wait([runner], timeout=RELEASE_WAIT_S)
        return runner is None or runner.done()

    async def handle_directly(self, message: StoredMessage) -> None:
        await self._handler(message if self._batch is None else [message])

    async def _run(self, fetcher: QueueFetcher) -> None:
        """Deliver until no message waits. Messages that arrive later start a new runner."""
        try:
            while (line := self._lines.get(fetcher)) and not fetcher.is_dropped and not self._is_stopping:
                if not fetcher.is_locked:
                    await asyncio.sleep(ORDERLY_SUSPEND_S / 10)
                    continue
                chunk = [line[place] for place in range(min(self._batch or 1, len(line)))]
                with self._running:
                    if not await self._is_committed(fetcher, chunk):
                        await fetcher.pause(COMMIT_RETRY_S)
                        continue
                    failure = await self._failure(fetcher, chunk)
                count = len(chunk) if failure is None else await self._dead_lettered(fetcher, chunk, failure)
                for _ in range(min(count, len(line))):
                    line.popleft()
                fetcher.done([message.queue_offset for message in chunk[:count]])
                if failure is not None and count < len(chunk):
                    await fetcher.pause(_pause_s(failure))
                    if fetcher.is_stopping:  # it cannot be released while we retry
                        break
        finally:
            self._runners.pop(fetcher, None)

    async def _is_committed(self, fetcher: QueueFetcher, chunk: list[StoredMessage]) -> bool:
        """Commit messages if that comes first, and return whether they may be delivered."""
        if self._commit_first is None:
            return True
        try:
            return len(await self._commit_first([(fetcher, message) for message in chunk])) == len(chunk)
        except SparrowError:  # it has been reported
            return False

    async def _failure(self, fetcher: QueueFetcher, chunk: list[StoredMessage]) -> Exception | None:
        return await _failure(self._handler, chunk[0] if self._batch is None else chunk, fetcher)

    async def _dead_lettered(self, fetcher: QueueFetcher, chunk: list[StoredMessage], failure: Exception) -> int:
        """Make messages dead letters that cannot be retried, from the first on, and return how many.

        Count a retry of the others.
        """
        count = 0
        while count < len(chunk) and self._is_exhausted(chunk[count], failure) and not fetcher.is_dropped:
            if not await self._dead_letter(fetcher, chunk[count], failure):
                break
            count += 1
        for message in chunk[count:]:
            message.reconsume_times += 1
        return count

    def _is_exhausted(self, message: StoredMessage, failure: Exception) -> bool:
        return isinstance(failure, DeadLetter) or (
            self._retries_max is not None and message.reconsume_times >= self._retries_max
        )

    async def stop(self, grace_s: float) -> None:
        self._is_stopping = True
        await self._running.none(grace_s)
        await _cancelled(list(self._runners.values()))


def make_delivery(
    handler: MessageHandler,
    policy: FailurePolicy,
    *,
    workers: int | None,
    batch: int | None,
    retries_max: int | None,
    lanes: TopicLanes,
    commit_first: CommitFirst | None,
) -> ConcurrentDelivery | OrderlyDelivery:
    """Return a delivery by some workers; without any, one that keeps the order of each queue."""
    if workers is None:
        return OrderlyDelivery(
            handler, batch=batch, retries_max=retries_max, dead_letter=policy.dead_letter, commit_first=commit_first
        )
    return ConcurrentDelivery(
        handler, workers=workers, batch=batch, send_back=policy.send_back, lanes=lanes, commit_first=commit_first
    )


async def _failure(
    handler: MessageHandler, given: StoredMessage | list[StoredMessage], fetcher: QueueFetcher
) -> Exception | None:
    """Run the handler; return why it failed, or None."""
    try:
        await handler(given)
        return None
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # this task is cancelled, not something that the handler awaited
        failure: Exception = RuntimeError("something that the handler awaited was cancelled")
        failure.__cause__ = error
    except Exception as error:
        if is_handler_decision(error):
            return error
        failure = error
    log.warning(
        "handler failed with a message of %(queue)s: %(error)r",
        {"queue": str(fetcher.queue), "error": failure},
        exc_info=failure,
    )
    return failure


def _pause_s(failure: Exception) -> float:
    """Return how long a queue in order waits before it retries."""
    if isinstance(failure, RetryLater) and failure.delay_ms is not None:
        return failure.delay_ms / 1000
    return ORDERLY_SUSPEND_S


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""Following a topic without a group: messages from a position on, as they arrive.

1. Each queue has a task that pulls into a bounded buffer. Nothing is committed, and no group appears at the brokers.
2. Messages that were stored before the call come in the order of store time over all queues; later ones as they arrive.
3. A broker that cannot be reached is tried again; what the other brokers have is delivered meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from sparrow import clock
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.clusters import gather_all
from sparrow.client.aio.admin.queue_bounds import SizedQueueBounds, fetch_queue_bounds
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullStatus, pull
from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import Refused, Unavailable
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import EXPRESSION_TAG, SUBSCRIBE_ALL, TOOLS_GROUP
from sparrow.model.queue import QueueRef
from sparrow.operations.messages import MessageView, SearchFilter, view_message
from sparrow.wire import record

log = logging.getLogger(__name__)

_PULL_COUNT = 256
_BUFFERED_MAX = 1_024
"""Messages of a queue that are pulled before they are delivered."""
_LONG_POLL_MS = 15_000
_RETRY_S = 1.0


TailPosition = dict[str, int]
"""`broker/queue id` to the offset of the next message."""


class TailStart(msgspec.Struct, frozen=True, kw_only=True):
    """Where to begin in each queue; without anything, at its end."""

    is_first: bool = False
    """At the oldest message."""
    newest: int | None = None
    """At this many messages before the end."""
    time_ms: int | None = None
    """At the first message stored at or after this time."""
    offset: int | None = None
    positions: Mapping[str, int] = {}
    """Where to resume; queues that it does not name begin as the other fields say."""


class TailFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What to follow of a topic."""

    expression: str = SUBSCRIBE_ALL
    """Tags such as `a || b`, or an SQL92 condition."""
    expression_type: str = EXPRESSION_TAG
    content: SearchFilter = SearchFilter()
    """What the client compares after the broker has filtered."""
    broker: str | None = None
    queue_id: int | None = None

    def selects(self, queue: QueueRef) -> bool:
        """Return whether the queue is followed."""
        return self.broker in (None, queue.broker_name) and self.queue_id in (None, queue.queue_id)


async def follow_topic(
    admin: Admin,
    topic: str,
    start: TailStart = TailStart(),  # noqa: B008  (frozen)
    wanted: TailFilter = TailFilter(),  # noqa: B008  (frozen)
    *,
    stops_at_end: bool = False,
) -> AsyncIterator[tuple[MessageView, TailPosition]]:
    """Yield the messages of a topic from a position on, each with the position after it.

    `stops_at_end`: stop after the newest message at the time of the call. Otherwise it ends when the caller closes it.
    """
    session = admin.session
    subscription = Subscription.of(
        topic, wanted.expression, expression_type=wanted.expression_type, version_ms=clock.now_ms()
    )
    route = await admin.route(topic)
    bounds = await fetch_queue_bounds(session, [topic])
    queues = [queue for queue in route.read_queues if queue in bounds and wanted.selects(queue)]
    if not queues:
        raise Refused(f"topic {topic!r} has no queue {wanted.queue_id} on {wanted.broker or 'any broker'}")
    offsets = await gather_all(_first_offset(admin, queue, bounds[queue], start) for queue in queues)
    position = {_name(queue): offset for queue, offset in zip(queues, offsets, strict=True)}
    changed = asyncio.Event()
    tails = [
        _QueueTail(session, queue, offset, bounds[queue].end, subscription, changed.set)
        for queue, offset in zip(queues, offsets, strict=True)
    ]
    try:
        for tail in tails:
            tail.begin(stops_at_end=stops_at_end)
        while True:
            for tail in tails:
                tail.raise_error()
            ready = [tail for tail in tails if tail.buffer]
            if ready and all(tail.buffer or tail.is_caught_up for tail in tails):
                oldest = min(ready, key=lambda tail: tail.buffer[0].store_ms)
                message = oldest.take()
                position[_name(oldest.queue)] = message.queue_offset + 1
                if wanted.content.is_match(message):
                    yield view_message(message, oldest.queue.broker_name), dict(position)
            elif stops_at_end and all(tail.is_caught_up for tail in tails):
                return
            else:
                changed.clear()
                await changed.wait()
    finally:
        await asyncio.gather(*(tail.stop() for tail in tails))


def _name(queue: QueueRef) -> str:
    return f"{queue.broker_name}/{queue.queue_id}"


async def _first_offset(admin: Admin, queue: QueueRef, bounds: SizedQueueBounds, start: TailStart) -> int:
    if (known := start.positions.get(_name(queue))) is not None:
        return max(bounds.first, min(known, bounds.end))
    if start.is_first:
        return bounds.first
    if start.newest is not None:
        return max(bounds.first, bounds.end - start.newest)
    if start.offset is not None:
        return max(bounds.first, min(start.offset, bounds.end))
    if start.time_ms is not None and bounds.first < bounds.end:
        return max(bounds.first, min(await admin.offset_at(queue, start.time_ms), bounds.end))
    return bounds.end


class _QueueTail:
    """Pulls one queue into a bounded buffer."""

    def __init__(
        self,
        session: ClientSession,
        queue: QueueRef,
        offset: int,
        end: int,
        subscription: Subscription,
        notify: Callable[[], None],
    ) -> None:
        self._session, self.queue, self._offset, self._end = session, queue, offset, end
        self._subscription, self._notify = subscription, notify
        self.buffer: deque[StoredMessage] = deque()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that was stored at the start is in the buffer, or was taken."""
        return self._offset >= self._end

    def begin(self, *, stops_at_end: bool) -> None:
        self._task = asyncio.create_task(self._pull_all(stops_at_end=stops_at_end))
        self._task.add_done_callback(lambda _: self._notify())

    def take(self) -> StoredMessage:
        message = self.buffer.popleft()
        if len(self.buffer) < _BUFFERED_MAX:
            self._has_room.set()
        return message

    def raise_error(self) -> None:
        """Raise what ended the task, if something did."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _pull_all(self, *, stops_at_end: bool) -> None:
        is_out = False
        while not (stops_at_end and self.is_caught_up):
            await self._has_room.wait()
            try:
                await self._pull(0 if stops_at_end else _LONG_POLL_MS)
            except Unavailable as error:
                if not is_out:
                    log.warning(
                        "queue %(queue)s cannot be read: %(error)s; it is tried again",
                        {"queue": _name(self.queue), "error": str(error)},
                    )
                is_out = True
                await asyncio.sleep(_RETRY_S)
                await self._session.refresh([self.queue.topic])  # the broker may be back at another address
                continue
            is_out = False

    async def _pull(self, long_poll_ms: int) -> None:
        answer = await pull(
            self._session,
            self.queue,
            self._offset,
            group=TOOLS_GROUP,
            subscription=self._subscription,
            count_max=_PULL_COUNT,
            long_poll_ms=long_poll_ms,
            includes_subscription=True,
        )
        if answer.status is PullStatus.FOUND:
            messages = record.decode_all(answer.records)
            self.buffer.extend(each for each in messages if self._subscription.matches(each.tags))
            if len(self.buffer) >= _BUFFERED_MAX:
                self._has_room.clear()
        elif answer.status is PullStatus.NO_NEW_MESSAGE and not long_poll_ms:
            self._end = min(self._end, self._offset)
        self._offset = max(self._offset, answer.next_offset)
        self._notify()

"""One queue being read: pulls ahead of its consumer, as far as the limits allow, and knows what may be committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullResult, PullStatus, pull
from sparrow.client.offset_window import OffsetWindow
from sparrow.client.subscription import Subscription
from sparrow.model.errors import ProtocolError, RequestTimeout, SparrowError
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import PROPERTY_RETRY_TOPIC, RETRY_TOPIC_PREFIX
from sparrow.model.queue import QueueRef
from sparrow.wire import record

log = logging.getLogger(__name__)

_AFTER_ERROR_S = 1.0
"""A pull that failed is tried again after so long: the broker may be restarting."""
FIRST_PULL_WAIT_S = 1.0
"""How long lanes that are begun together wait for each other."""


class Prefetch(msgspec.Struct, frozen=True, kw_only=True):
    """How far a consumer reads ahead, for each queue."""

    count_max: int = 1_000
    bytes_max: int = 64 << 20
    """Of bodies. A message larger than a pull may be comes alone, and counts for whatever it is."""
    span_max: int = 20_000
    """Between the first and the last message in hand: so many may come again after a crash."""
    pull_count_max: int = 32
    pull_bytes_max: int = 256 << 10
    long_poll_ms: int = 15_000


MessagesCallback = Callable[["QueueFetcher", list[StoredMessage]], None]


class FirstPullBarrier:
    """Lanes that are begun together hand over nothing before each was looked into, or a while has passed: whichever
    broker answers first, what has the highest priority is to come first."""

    def __init__(self, lanes: int) -> None:
        self._missing = lanes
        self._all = asyncio.Event()

    def looked(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._all.set()

    async def all(self) -> None:
        try:
            async with asyncio.timeout(FIRST_PULL_WAIT_S):
                await self._all.wait()
        except TimeoutError:
            pass


class QueueFetcher:
    """A queue this consumer has been given. Once dropped, it delivers and commits nothing more."""

    def __init__(
        self,
        session: ClientSession,
        queue: QueueRef,
        *,
        group: str,
        subscription: Subscription,
        start: int,
        prefetch: Prefetch,
        arrived: MessagesCallback,
        commits_with_pulls: bool,
        includes_subscription: bool = False,
        lane: Priority | None = None,
        first_pull_barrier: FirstPullBarrier | None = None,
    ) -> None:
        """`includes_subscription`: with each pull, for the brokers hear of it in no other way."""
        self.queue, self.subscription = queue, subscription
        self.lane = lane
        """The priority of what comes from here; None in a topic without lanes."""
        self.is_retry = queue.topic.startswith(RETRY_TOPIC_PREFIX)
        self.window = OffsetWindow(start)
        self.is_stopping = False
        """Nothing more is pulled; what is being handled may still be done."""
        self.is_dropped = False
        self.is_paused = False
        self.is_locked = True
        """Whether the broker holds the queue for us; always, unless messages must come in order."""
        self.committed: int | None = None
        self._session, self._group = session, group
        self._appetite, self._arrived = prefetch, arrived
        # At most half of what may be in hand, so that one half is on its way while the other is being handled.
        self._pull_count = min(prefetch.pull_count_max, max(1, prefetch.count_max // 2))
        self._pull_bytes = min(prefetch.pull_bytes_max, max(1, prefetch.bytes_max // 2))
        self._commits_with_pulls, self._tells_subscription = commits_with_pulls, includes_subscription
        self._first_look = first_pull_barrier
        self._room = asyncio.Event()
        self._broker_id = 0
        self._task = asyncio.create_task(self._run(), name=f"feed {queue.topic}/{queue.broker_name}/{queue.queue_id}")

    # -- for whoever consumes -----------------------------------------------------------------------------------------

    def done(self, offsets: Iterable[int]) -> None:
        """These messages are dealt with."""
        if not self.is_dropped:
            self.window.done(offsets)
            self._room.set()

    def wake_up(self) -> None:
        """Something changed that the feed may be waiting for: a lock, a pause."""
        self._room.set()

    def stop(self) -> None:
        self.is_stopping = True
        self._task.cancel()

    async def pause(self, seconds: float) -> None:
        """Returns after a while, or at once when the feed is stopped."""
        await asyncio.wait([self._task], timeout=seconds)

    def drop(self) -> None:
        self.stop()
        self.is_dropped = True

    async def stopped(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)

    # -- pulling ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.is_stopping:
            await self._has_room()
            try:
                answer = await self._pull() if self._first_look is None else await self._looked(self._first_look)
                # A broker may have held the pull for long: what came in a pause is asked for again after it.
                if self._may_read:
                    self._take(answer)
            except RequestTimeout:
                continue
            except SparrowError as error:
                log.info("pull failed", extra={"queue": str(self.queue), "why": str(error)})
                await asyncio.sleep(_AFTER_ERROR_S)
            except Exception:
                log.exception("pull failed", extra={"queue": str(self.queue)})
                await asyncio.sleep(_AFTER_ERROR_S)

    @property
    def _may_read(self) -> bool:
        return self.is_locked and not self.is_paused

    async def _has_room(self) -> None:
        """Room for a whole pull: to fetch them one by one as they are done would cost a request a message."""
        prefetch = self._appetite
        while not self._may_read or self.window.is_full(
            count_max=prefetch.count_max - self._pull_count + 1,
            bytes_max=prefetch.bytes_max - self._pull_bytes + 1,
            span_max=prefetch.span_max,
        ):
            self._room.clear()
            await self._room.wait()

    async def _looked(self, first_pull_barrier: FirstPullBarrier) -> PullResult:
        """The first pull. An empty lane says so at once: others wait for its word."""
        self._first_look = None
        try:
            answer = await self._pull(is_held=False)
        finally:
            first_pull_barrier.looked()
        await first_pull_barrier.all()
        return answer

    async def _pull(self, *, is_held: bool = True) -> PullResult:
        offset, committable_offset = self.window.next_offset, self.window.committable_offset
        assert offset is not None, "a feed starts somewhere"
        return await pull(
            self._session,
            self.queue,
            offset,
            group=self._group,
            subscription=self.subscription,
            count_max=self._pull_count,
            bytes_max=self._pull_bytes,
            long_poll_ms=self._appetite.long_poll_ms if is_held else 0,
            commit_offset=committable_offset if self._commits_with_pulls and committable_offset else None,
            includes_subscription=self._tells_subscription,
            broker_id=self._broker_id,
        )

    def _take(self, answer: PullResult) -> None:
        self._broker_id = answer.suggested_broker_id
        if answer.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "offset moved",
                extra={"queue": str(self.queue), "from": self.window.next_offset, "to": answer.next_offset},
            )
            self.window.restart(answer.next_offset)
            return
        if answer.status is not PullStatus.FOUND:
            self.window.add((), answer.next_offset)
            return
        messages = self._decoded(answer)
        subscription = self.subscription
        if subscription.tags:
            messages = [message for message in messages if subscription.matches(message.tags)]
        self.window.add([(message.queue_offset, len(message.body)) for message in messages], answer.next_offset)
        if self.is_retry:
            for message in messages:
                restore_original_topic(message)
        if messages:
            self._arrived(self, messages)

    def _decoded(self, answer: PullResult) -> list[StoredMessage]:
        try:
            return record.decode_all(answer.records)
        except ProtocolError as error:
            # One that cannot be read must not hold up the rest for ever.
            log.error("unreadable records are left out", extra={"queue": str(self.queue), "why": str(error)})
            return list(record.decode_valid(answer.records))


FetchedMessage = tuple[QueueFetcher, StoredMessage]
"""A message, and the feed that is to hear when it is done."""


def mark_consumed(items: Sequence[FetchedMessage]) -> None:
    """These messages are dealt with, whatever queues they are of."""
    if len(items) == 1:  # as most are
        items[0][0].done((items[0][1].queue_offset,))
        return
    offsets: dict[QueueFetcher, list[int]] = {}
    for feed, message in items:
        offsets.setdefault(feed, []).append(message.queue_offset)
    for feed, some in offsets.items():
        feed.done(some)


def restore_original_topic(message: StoredMessage) -> None:
    """A message that comes again is one of its own topic: that it lies in the group's retry topic concerns nobody."""
    if message.topic.startswith(RETRY_TOPIC_PREFIX):
        message.topic = message.properties.get(PROPERTY_RETRY_TOPIC, message.topic)

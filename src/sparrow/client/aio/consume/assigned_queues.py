"""The queues a consumer reads just now: begun, sent elsewhere, left to others. Their progress is committed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.handler_delivery import MessageDelivery
from sparrow.client.aio.consume.offset_store import OffsetStore
from sparrow.client.aio.consume.queue_fetcher import FirstPullBarrier, Prefetch, QueueFetcher
from sparrow.client.aio.consume.rebalance import Rebalancer
from sparrow.client.subscription import Subscription
from sparrow.model.errors import SparrowError
from sparrow.model.priority import Priority
from sparrow.model.queue import QueueRef

log = logging.getLogger(__name__)


class AssignedQueues:
    """A feed for each queue. Who changes which queues are read holds a lock of its own."""

    def __init__(
        self,
        session: ClientSession,
        group: str,
        *,
        prefetch: Prefetch,
        offsets: OffsetStore,
        commits_with_pulls: bool,
        includes_subscription: bool,
    ) -> None:
        self._session, self._group, self._appetite, self._offsets = session, group, prefetch, offsets
        self._commits_with_pulls, self._tells_subscription = commits_with_pulls, includes_subscription
        self._by_queue: dict[QueueRef, QueueFetcher] = {}
        self._delivery: MessageDelivery
        self._sharing: Rebalancer

    def serve(self, delivery: MessageDelivery, sharing: Rebalancer) -> None:
        """Whom messages go to, and who knows about locks: known when the consumer starts."""
        self._delivery, self._sharing = delivery, sharing

    def __contains__(self, queue: QueueRef) -> bool:
        return queue in self._by_queue

    def get(self, queue: QueueRef) -> QueueFetcher | None:
        return self._by_queue.get(queue)

    def all(self) -> list[QueueFetcher]:
        return list(self._by_queue.values())

    def of_topic(self, topic: str) -> list[QueueFetcher]:
        return [feed for feed in self._by_queue.values() if feed.queue.topic == topic]

    def queues(self) -> list[QueueRef]:
        return sorted(self._by_queue)

    # -- which are read -----------------------------------------------------------------------------------------------

    def lane_of(self, queue: QueueRef) -> Priority | None:
        route = self._session.cached_route(queue.topic)
        return route.lane_of(queue) if route is not None else None

    def begin(
        self,
        queue: QueueRef,
        start: int,
        subscription: Subscription,
        first_pull_barrier: FirstPullBarrier | None = None,
    ) -> QueueFetcher:
        feed = self._by_queue[queue] = QueueFetcher(
            self._session,
            queue,
            group=self._group,
            subscription=subscription,
            start=start,
            prefetch=self._appetite,
            arrived=self._delivery.arrived,
            commits_with_pulls=self._commits_with_pulls,
            includes_subscription=self._tells_subscription,
            lane=self.lane_of(queue),
            first_pull_barrier=first_pull_barrier,
        )
        return feed

    async def leave(self, feed: QueueFetcher) -> bool:
        """Leave a queue to others. False: not before what is in hand of it is done; no more is begun."""
        feed.stop()
        if not await self._delivery.release_queue(feed):
            return False
        committable_offset = feed.window.committable_offset
        feed.drop()
        del self._by_queue[feed.queue]
        if committable_offset is not None:
            try:
                await self._offsets.save({feed.queue: committable_offset}, is_last=True)
            except SparrowError as error:
                log.info("offset not committed", extra={"queue": str(feed.queue), "why": str(error)})
        await self._sharing.unlock([feed.queue])
        return True

    async def restart(self, feed: QueueFetcher, offset: int) -> None:
        """Go on from another place. What is in hand of the queue counts no more; its lock stays ours.

        Where that cannot be committed, the queue is not read until it is begun again, from where the group is.
        """
        feed.stop()
        await self._delivery.release_queue(feed)
        feed.drop()
        del self._by_queue[feed.queue]
        await self._offsets.save({feed.queue: offset}, is_last=True)
        self.begin(feed.queue, offset, feed.subscription).is_paused = feed.is_paused

    def set_paused(self, queues: Iterable[QueueRef] | None, is_paused: bool) -> None:
        wanted = self._by_queue if queues is None else [queue for queue in queues if queue in self._by_queue]
        for queue in wanted:
            self._by_queue[queue].is_paused = is_paused
            self._by_queue[queue].wake_up()

    async def renew_locks(self) -> None:
        """What the brokers no longer hold for us is not read until they do."""
        feeds = dict(self._by_queue)
        held = await self._sharing.locked(feeds)
        for queue, feed in feeds.items():
            feed.is_locked = queue in held
            feed.wake_up()

    # -- how far they are ---------------------------------------------------------------------------------------------

    async def commit(self, *, is_last: bool) -> None:
        """Only `is_last` waits for the brokers' word, and says all again."""
        fresh = {}
        for queue, feed in self._by_queue.items():
            committable_offset = feed.window.committable_offset
            if committable_offset is not None and (is_last or committable_offset != feed.committed):
                fresh[queue] = feed.committed = committable_offset
        if fresh:
            await self._offsets.save(fresh, is_last=is_last)

    def positions(self, topic: str | None = None) -> dict[QueueRef, int]:
        """How far each queue is dealt with."""
        return {
            queue: committable_offset
            for queue, feed in self._by_queue.items()
            if (topic is None or queue.topic == topic)
            and (committable_offset := feed.window.committable_offset) is not None
        }

    def in_hand(self) -> dict[QueueRef, tuple[int, int]]:
        """Of each queue: how far it is dealt with, and how many messages are in hand."""
        return {
            queue: (feed.window.committable_offset or 0, feed.window.count) for queue, feed in self._by_queue.items()
        }

    async def close(self) -> None:
        """Commit what is done, and read no more."""
        feeds = self.all()
        try:
            await self.commit(is_last=True)
        except SparrowError as error:
            log.warning("last offsets not committed", extra={"group": self._group, "why": str(error)})
        for feed in feeds:
            feed.drop()
        await asyncio.gather(*(feed.stopped() for feed in feeds))
        await self._sharing.unlock_all()
        self._by_queue.clear()

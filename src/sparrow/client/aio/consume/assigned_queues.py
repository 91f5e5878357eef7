"""The queues that a consumer reads now: begun, restarted, released, and committed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.handler_delivery import MessageDelivery
from sparrow.client.aio.consume.offset_store import OffsetStore
from sparrow.client.aio.consume.queue_fetcher import FirstPullBarrier, QueueFetcher
from sparrow.client.aio.consume.rebalance import Rebalancer
from sparrow.client.options import Prefetch
from sparrow.client.subscription import Subscription
from sparrow.model.errors import SparrowError
from sparrow.model.priority import Priority
from sparrow.model.queue import QueueRef

log = logging.getLogger(__name__)


class AssignedQueues:
    """One fetcher for each queue. The caller holds a lock while it changes which queues are read."""

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
        self._rebalancer: Rebalancer

    def serve(self, delivery: MessageDelivery, rebalancer: Rebalancer) -> None:
        """Set the delivery and the rebalancer, which are known when the consumer starts."""
        self._delivery, self._rebalancer = delivery, rebalancer

    def __contains__(self, queue: QueueRef) -> bool:
        return queue in self._by_queue

    def get(self, queue: QueueRef) -> QueueFetcher | None:
        """Return the fetcher of a queue."""
        return self._by_queue.get(queue)

    def all(self) -> list[QueueFetcher]:
        """Return all fetchers."""
        return list(self._by_queue.values())

    def of_topic(self, topic: str) -> list[QueueFetcher]:
        """Return the fetchers of a topic."""
        return [fetcher for fetcher in self._by_queue.values() if fetcher.queue.topic == topic]

    def queues(self) -> list[QueueRef]:
        """Return the queues, sorted."""
        return sorted(self._by_queue)

    # -- assignment ---------------------------------------------------------------------------------------------------

    def lane_of(self, queue: QueueRef) -> Priority | None:
        """Return the priority of a queue; None without lanes."""
        route = self._session.cached_route(queue.topic)
        return route.lane_of(queue) if route is not None else None

    def begin(
        self,
        queue: QueueRef,
        start: int,
        subscription: Subscription,
        first_pull_barrier: FirstPullBarrier | None = None,
    ) -> QueueFetcher:
        """Start to fetch a queue from an offset."""
        fetcher = self._by_queue[queue] = QueueFetcher(
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
        return fetcher

    async def leave(self, fetcher: QueueFetcher) -> bool:
        """Release a queue to other members. Return False if a handler must finish first; nothing more is started."""
        fetcher.stop()
        if not await self._delivery.release_queue(fetcher):
            return False
        committable_offset = fetcher.window.committable_offset
        fetcher.drop()
        del self._by_queue[fetcher.queue]
        if committable_offset is not None:
            try:
                await self._offsets.save({fetcher.queue: committable_offset}, is_last=True)
            except SparrowError as error:
                log.info(
                    "offset %(offset)d of %(queue)s not committed: %(error)s; some messages are delivered again",
                    {"offset": committable_offset, "queue": str(fetcher.queue), "error": str(error)},
                )
        await self._rebalancer.unlock([fetcher.queue])
        return True

    async def restart(self, fetcher: QueueFetcher, offset: int) -> None:
        """Continue a queue from another offset. Unconsumed messages are forgotten; the lock is kept.

        If the offset cannot be committed, the queue is not read until it is begun again, from the committed offset.
        """
        fetcher.stop()
        await self._delivery.release_queue(fetcher)
        fetcher.drop()
        del self._by_queue[fetcher.queue]
        await self._offsets.save({fetcher.queue: offset}, is_last=True)
        self.begin(fetcher.queue, offset, fetcher.subscription).is_paused = fetcher.is_paused

    def set_paused(self, queues: Iterable[QueueRef] | None, is_paused: bool) -> None:
        """Pause or resume some queues, or all."""
        wanted = self._by_queue if queues is None else [queue for queue in queues if queue in self._by_queue]
        for queue in wanted:
            self._by_queue[queue].is_paused = is_paused
            self._by_queue[queue].wake_up()

    async def renew_locks(self) -> None:
        """Renew the queue locks. Queues that are no longer locked for us are not read until they are."""
        fetchers = dict(self._by_queue)
        locked = await self._rebalancer.locked(fetchers)
        for queue, fetcher in fetchers.items():
            fetcher.is_locked = queue in locked
            fetcher.wake_up()

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def commit(self, *, is_last: bool) -> None:
        """Commit offsets. Only `is_last` waits for the brokers, and commits unchanged offsets again."""
        fresh = {}
        for queue, fetcher in self._by_queue.items():
            committable_offset = fetcher.window.committable_offset
            if committable_offset is not None and (is_last or committable_offset != fetcher.committed):
                fresh[queue] = fetcher.committed = committable_offset
        if fresh:
            await self._offsets.save(fresh, is_last=is_last)

    def positions(self, topic: str | None = None) -> dict[QueueRef, int]:
        """Return the offset of each queue up to which messages are consumed."""
        return {
            queue: committable_offset
            for queue, fetcher in self._by_queue.items()
            if (topic is None or queue.topic == topic)
            and (committable_offset := fetcher.window.committable_offset) is not None
        }

    def states(self) -> dict[QueueRef, tuple[int, int]]:
        """Return for each queue the committable offset and the number of messages that are not consumed yet."""
        return {
            queue: (fetcher.window.committable_offset or 0, fetcher.window.count)
            for queue, fetcher in self._by_queue.items()
        }

    async def close(self) -> None:
        """Commit what is consumed, and read no more."""
        fetchers = self.all()
        try:
            await self.commit(is_last=True)
        except SparrowError as error:
            log.warning(
                "last offsets of group %(group)s not committed: %(error)s; the last messages are delivered again",
                {"group": self._group, "error": str(error)},
            )
        for fetcher in fetchers:
            fetcher.drop()
        await asyncio.gather(*(fetcher.stopped() for fetcher in fetchers))
        await self._rebalancer.unlock_all()
        self._by_queue.clear()

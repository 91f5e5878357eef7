"""The queues that a consumer reads now: begun, restarted, released, and committed together.

For delivery at most once (`commits_first`), a message counts as consumed when it is taken for delivery, and it is
delivered when its commit is stored. Commits of one queue take turns. After a conflict (another member has committed,
because it reads the queue too, or an operator has reset the group) the queue is begun again from the committed offset.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.handler_delivery import MessageDelivery
from sparrow.client.aio.consume.offset_store import OffsetStore
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, FirstPullBarrier, QueueFetcher, mark_consumed
from sparrow.client.aio.consume.rebalance import Rebalancer
from sparrow.client.consume.subscription import Subscription
from sparrow.client.options import BATCH_PREFETCH, Prefetch
from sparrow.model.errors import OffsetConflict, SparrowError
from sparrow.model.priority import Priority
from sparrow.model.queue import QueueRef

log = logging.getLogger(__name__)

_LOCK_INTERVAL_S = 20.0
_LOCK_RETRY_S_MIN, _LOCK_RETRY_S_MAX = 0.1, 1.0


class AssignedQueues:
    """One fetcher for each queue. The caller holds a lock while it changes which queues are read."""

    def __init__(
        self,
        session: ClientSession,
        group: str,
        *,
        prefetch: Prefetch | None,
        offsets: OffsetStore,
        commits_first: bool,
        commits_with_pulls: bool,
        includes_subscription: bool,
        on_conflict: Callable[[], None],
    ) -> None:
        """Start without queues. `on_conflict` is called when a queue must be begun again."""
        self._session, self._group, self._appetite, self._offsets = session, group, prefetch, offsets
        self._commits_first, self._on_conflict = commits_first, on_conflict
        self._commits_with_pulls, self._tells_subscription = commits_with_pulls, includes_subscription
        self._by_queue: dict[QueueRef, QueueFetcher] = {}
        self.lock_now = asyncio.Event()
        """Set to renew the locks at once."""
        self._delivery: MessageDelivery
        self._rebalancer: Rebalancer

        self.takes_batches = False
        """Whether a whole pull is delivered as one batch."""

    def serve(self, delivery: MessageDelivery, rebalancer: Rebalancer, *, takes_batches: bool) -> None:
        """Set what is known when the consumer starts: the delivery, whether it takes batches, and the rebalancer."""
        self._delivery, self._rebalancer, self.takes_batches = delivery, rebalancer, takes_batches

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
            prefetch=self._appetite or (BATCH_PREFETCH if self.takes_batches else Prefetch()),
            arrived=self._delivery.arrived,
            commits_with_pulls=self._commits_with_pulls,
            includes_subscription=self._tells_subscription,
            takes_batches=self.takes_batches,
            lane=self.lane_of(queue),
            first_pull_barrier=first_pull_barrier,
        )
        return fetcher

    async def leave(self, fetcher: QueueFetcher) -> bool:
        """Release a queue to other members. Return False if a handler must finish first; nothing more is started."""
        fetcher.stop()
        if not await self._delivery.release_queue(fetcher):
            return False
        fetcher.drop()
        del self._by_queue[fetcher.queue]
        try:
            await self._commit(fetcher, is_last=True)
        except SparrowError as error:
            log.info(
                "last offset of %(queue)s not committed: %(error)s; some messages are delivered again",
                {"queue": str(fetcher.queue), "error": str(error)},
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
        async with fetcher.committing:
            fetcher.is_sealed = True
            await self._offsets.save({fetcher.queue: offset}, is_last=True)
        self.begin(fetcher.queue, offset, fetcher.subscription).is_paused = fetcher.is_paused

    def set_paused(self, queues: Iterable[QueueRef] | None, is_paused: bool) -> None:
        """Pause or resume some queues, or all."""
        wanted = self._by_queue if queues is None else [queue for queue in queues if queue in self._by_queue]
        for queue in wanted:
            self._by_queue[queue].is_paused = is_paused
            self._by_queue[queue].wake_up()

    async def keep_locked(self) -> None:
        """Renew the queue locks for ever: at an interval, when `lock_now` is set, and soon if some are missing."""
        is_complete, retry_s = True, _LOCK_RETRY_S_MIN
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOCK_INTERVAL_S if is_complete else retry_s):
                    await self.lock_now.wait()
            self.lock_now.clear()
            is_complete = await self._renew_locks()
            retry_s = _LOCK_RETRY_S_MIN if is_complete else min(2 * retry_s, _LOCK_RETRY_S_MAX)

    async def _renew_locks(self) -> bool:
        """Renew the queue locks. Queues that are no longer locked for us are not read until they are.

        Return whether all are locked.
        """
        fetchers = dict(self._by_queue)
        locked = await self._rebalancer.locked(fetchers)
        for queue, fetcher in fetchers.items():
            fetcher.is_locked = queue in locked
            fetcher.wake_up()
        return len(locked) == len(fetchers)

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def commit(self, *, is_last: bool) -> None:
        """Commit offsets. Only `is_last` waits for the brokers, and commits unchanged offsets again."""
        if self._commits_first:
            await asyncio.gather(*map(self._commit, self.all()))
            return
        fresh = {}
        for queue, fetcher in self._by_queue.items():
            committable_offset = fetcher.window.committable_offset
            if committable_offset is not None and (is_last or committable_offset != fetcher.committed):
                fresh[queue] = fetcher.committed = committable_offset
        if fresh:
            await self._offsets.save(fresh, is_last=is_last)

    async def commit_first(self, items: Sequence[FetchedMessage]) -> list[FetchedMessage]:
        """Commit messages that are about to be delivered, in the order of their queues, and return those that may be.

        The others belong to another member now. Raises if a broker cannot be reached; the same messages can then be
        committed again.
        """
        mark_consumed(items)
        try:
            last = {fetcher: message.queue_offset for fetcher, message in items}
            await asyncio.gather(*(self._commit(fetcher, up_to=offset) for fetcher, offset in last.items()))
        except SparrowError as error:
            what = f"group {self._group!r} cannot commit messages, and does not deliver them"
            self._session.health.report_request(error, what, part="commit first")
            raise
        if self._session.health.lasting:
            self._session.health.clear("", part="commit first")
        return [(fetcher, message) for fetcher, message in items if (fetcher.committed or 0) > message.queue_offset]

    async def _commit(self, fetcher: QueueFetcher, *, up_to: int | None = None, is_last: bool = False) -> None:
        """Commit what is consumed of a queue, when other commits of it are done.

        `up_to`: an offset that is about to be delivered; nothing is left to do if another commit has covered it.
        """
        async with fetcher.committing:
            is_sealed, fetcher.is_sealed = fetcher.is_sealed, fetcher.is_sealed or is_last
            offset = fetcher.window.committable_offset
            is_done = up_to is not None and (fetcher.committed or 0) > up_to
            if is_sealed or is_done or offset is None or (self._commits_first and offset == fetcher.committed):
                return
            try:
                await self._offsets.save({fetcher.queue: offset}, is_last=True)
                fetcher.committed = offset
            except OffsetConflict as error:
                log.info("%(error)s; %(queue)s is begun again", {"error": str(error), "queue": str(fetcher.queue)})
                fetcher.is_sealed = True
                fetcher.drop()
                self._on_conflict()

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

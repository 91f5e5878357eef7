"""The fetcher of one queue: pulls ahead of its consumer within the prefetch limits and tracks what may be committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from sparrow.client.aio.connection.leader_requests import is_leader_change
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullResult, PullStatus, pull
from sparrow.client.consume.offset_window import OffsetWindow
from sparrow.client.consume.pulled_batch import group_by_topic, make_batches
from sparrow.client.consume.subscription import Subscription
from sparrow.client.options import Prefetch
from sparrow.model.errors import ProtocolError, RequestTimeout, SparrowError
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import MASTER_BROKER_ID, PROPERTY_RETRY_TOPIC, RETRY_TOPIC_PREFIX
from sparrow.model.queue import QueueRef
from sparrow.wire import record

log = logging.getLogger(__name__)

_RETRY_S_MIN, _RETRY_S_MAX = 0.1, 1.0
"""Pauses after failed pulls if the route names no other broker: they grow, since the broker may be restarting. After a
refusal, the longest."""
FIRST_PULL_WAIT_S = 1.0
"""How long lanes that are begun together wait for each other."""


MessagesCallback = Callable[["QueueFetcher", list[StoredMessage]], None]


class FirstPullBarrier:
    """Holds back the first messages of lanes that are begun together until all have been pulled, or a timeout.

    Whichever broker responds first, the highest priority is delivered first. The timeout begins with the first response
    and is the same for all: lanes that have been pulled by then are released together.
    """

    def __init__(self, lanes: int) -> None:
        self._missing = lanes
        self._is_open = asyncio.Event()
        self._timeout: asyncio.TimerHandle | None = None

    def pulled(self) -> None:
        """Count the first pull of a lane."""
        self._missing -= 1
        if self._timeout is None:
            self._timeout = asyncio.get_running_loop().call_later(FIRST_PULL_WAIT_S, self._is_open.set)
        if self._missing <= 0:
            self._timeout.cancel()
            self._is_open.set()

    async def opened(self) -> None:
        """Wait until every lane has been pulled, or the timeout."""
        await self._is_open.wait()


class QueueFetcher:
    """Fetches a queue that is assigned to this consumer. Once dropped, it delivers and commits nothing more."""

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
        takes_batches: bool = False,
        lane: Priority | None = None,
        first_pull_barrier: FirstPullBarrier | None = None,
    ) -> None:
        """Start to fetch.

        `includes_subscription`: send it with each pull, because brokers get it in no heartbeat. `takes_batches`:
        deliver a `PulledBatch` for each pull, as if it were one message.
        """
        self.queue, self.subscription = queue, subscription
        self.lane = lane
        """The priority of the queue; None in a topic without lanes."""
        self.is_retry = queue.topic.startswith(RETRY_TOPIC_PREFIX)
        self.window = OffsetWindow(start)
        self.is_stopping = False
        """Nothing more is pulled; running handlers may still finish."""
        self.is_dropped = False
        self.is_paused = False
        self.is_locked = True
        """Whether the broker has locked the queue for us; always true unless messages are delivered in order."""
        self.committed: int | None = None
        """The offset that was committed last."""
        self.committing = asyncio.Lock()
        """Held during a commit, if commits must take turns."""
        self.is_sealed = False
        """Nothing more may be committed: the queue is released or restarted, or another member has committed."""
        self._session, self._group = session, group
        self._appetite, self._arrived = prefetch, arrived
        # At most half of the limit, so that one half is fetched while the other is consumed.
        self._pull_count = min(prefetch.pull_count_max, max(1, prefetch.count_max // 2))
        self._pull_bytes = min(prefetch.pull_bytes_max, max(1, prefetch.bytes_max // 2))
        self._commits_with_pulls, self._tells_subscription = commits_with_pulls, includes_subscription
        self._takes_batches = takes_batches
        self._first_look = first_pull_barrier
        self._space = asyncio.Event()
        self._broker_id = 0
        self._task = asyncio.create_task(self._run(), name=f"fetch {queue.topic}/{queue.broker_name}/{queue.queue_id}")

    # -- for the consumer ---------------------------------------------------------------------------------------------

    def done(self, offsets: Iterable[int]) -> None:
        """Mark messages as consumed."""
        if not self.is_dropped:
            self.window.done(offsets)
            self._space.set()

    def wake_up(self) -> None:
        """Check again whether to pull: a lock or a pause has changed."""
        self._space.set()

    def stop(self) -> None:
        """Stop pulling."""
        self.is_stopping = True
        self._clear_findings()
        self._task.cancel()

    async def pause(self, seconds: float) -> None:
        """Wait for a while, or until the fetcher is stopped."""
        await asyncio.wait([self._task], timeout=seconds)

    def drop(self) -> None:
        """Stop for good: deliver and commit nothing more."""
        self.stop()
        self.is_dropped = True

    async def stopped(self) -> None:
        """Wait until the pull task has ended."""
        await asyncio.gather(self._task, return_exceptions=True)

    # -- pulling ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        retry_s = _RETRY_S_MIN
        while not self.is_stopping:
            await self._wait_for_space()
            try:
                answer = await self._pull() if self._first_look is None else await self._first_pull(self._first_look)
                retry_s = _RETRY_S_MIN
                if self._session.health.lasting:
                    self._clear_findings()
                if self._is_sent_to_unknown_leader(answer):
                    await self._session.refresh([self.queue.topic])
                # During a long poll the queue may have been paused: its messages are pulled again afterwards.
                if self._may_read:
                    self._take(answer)
            except SparrowError as error:
                self._report(error)
                asked, is_refusal = self._address, not is_leader_change(error)
                if is_refusal:
                    await asyncio.sleep(_RETRY_S_MAX)
                # Another broker may have taken over, or the same one has another address.
                await self._session.refresh([self.queue.topic])
                if self._address == asked and not is_refusal and not isinstance(error, RequestTimeout):
                    await asyncio.sleep(retry_s)
                    retry_s = min(2 * retry_s, _RETRY_S_MAX)
            except Exception:
                log.exception("pull of %(queue)s failed; it is repeated", {"queue": str(self.queue)})
                await asyncio.sleep(_RETRY_S_MAX)

    @property
    def _address(self) -> str | None:
        route = self._session.cached_route(self.queue.topic)
        return route.address_of(self.queue.broker_name, self._broker_id) if route is not None else None

    def _is_sent_to_unknown_leader(self, answer: PullResult) -> bool:
        """Return whether the broker that we take for the leader sends us to the leader: the route has become wrong.

        That broker follows another one now, and has nothing for us. A leader's answers make progress, or say that there
        is no message.
        """
        is_sent_on = answer.status is PullStatus.NO_MATCHED_MESSAGE and answer.next_offset == self.window.next_offset
        return is_sent_on and self._broker_id == answer.suggested_broker_id == MASTER_BROKER_ID

    def _report(self, error: SparrowError) -> None:
        queue, address = self.queue, self._address
        what = f"group {self._group!r} cannot pull topic {queue.topic!r} from broker {queue.broker_name} ({address})"
        self._session.health.report_request(error, what, address=address, topic=queue.topic, part=queue)

    def _clear_findings(self) -> None:
        self._session.health.clear(self.queue.topic, part=self.queue)

    @property
    def _may_read(self) -> bool:
        return self.is_locked and not self.is_paused

    async def _wait_for_space(self) -> None:
        """Wait until a whole pull fits: fetching messages one by one as they are consumed would cost a request each."""
        prefetch = self._appetite
        while not self._may_read or self.window.is_full(
            count_max=prefetch.count_max - self._pull_count + 1,
            bytes_max=prefetch.bytes_max - self._pull_bytes + 1,
            span_max=prefetch.span_max,
        ):
            self._space.clear()
            await self._space.wait()

    async def _first_pull(self, first_pull_barrier: FirstPullBarrier) -> PullResult:
        """Pull for the first time, without long polling, because other lanes wait for the result."""
        self._first_look = None
        try:
            answer = await self._pull(is_long_poll=False)
        finally:
            first_pull_barrier.pulled()
        await first_pull_barrier.opened()
        return answer

    async def _pull(self, *, is_long_poll: bool = True) -> PullResult:
        offset, committable_offset = self.window.next_offset, self.window.committable_offset
        assert offset is not None, "a fetcher has a start offset"
        return await pull(
            self._session,
            self.queue,
            offset,
            group=self._group,
            subscription=self.subscription,
            count_max=self._pull_count,
            bytes_max=self._pull_bytes,
            long_poll_ms=self._appetite.long_poll_ms if is_long_poll else 0,
            commit_offset=committable_offset if self._commits_with_pulls and committable_offset else None,
            includes_subscription=self._tells_subscription,
            broker_id=self._broker_id,
            with_sizes=self._takes_batches,
        )

    def _take(self, answer: PullResult) -> None:
        self._broker_id = answer.suggested_broker_id
        if answer.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "group %(group)s continues %(queue)s at offset %(to)s: the broker does not have %(offset)s (removed by "
                "retention, or the queue was reset)",
                {
                    "group": self._group,
                    "queue": str(self.queue),
                    "offset": self.window.next_offset,
                    "to": answer.next_offset,
                },
            )
            self.window.restart(answer.next_offset)
            self.committed = None
            return
        if answer.status is not PullStatus.FOUND:
            self.window.add((), answer.next_offset)
            return
        if self._takes_batches:
            self._take_batches(answer)
            return
        messages = self._decoded(answer)
        self.window.add([(message.queue_offset, len(message.body)) for message in messages], answer.next_offset)
        if messages:
            self._arrived(self, messages)

    def _take_batches(self, answer: PullResult) -> None:
        try:
            if self.is_retry:  # of several topics
                batches = group_by_topic(self.queue, self._decoded(answer))
            else:
                batches = make_batches(self.queue, answer.records, answer.sizes, self.subscription)
        except ProtocolError:
            batches = group_by_topic(self.queue, self._decoded(answer))
        self.window.add_batches(
            [(batch.queue_offset, batch.body_bytes, len(batch)) for batch in batches], answer.next_offset
        )
        if batches:
            self._arrived(self, cast("list[StoredMessage]", batches))

    def _decoded(self, answer: PullResult) -> list[StoredMessage]:
        """Return the messages that the subscription asks for; brokers compare only the hashes of tags."""
        messages, subscription = self._decoded_all(answer), self.subscription
        if subscription.tags:
            messages = [message for message in messages if subscription.matches(message.tags)]
        if self.is_retry:
            for message in messages:
                restore_original_topic(message)
        return messages

    def _decoded_all(self, answer: PullResult) -> list[StoredMessage]:
        try:
            return record.decode_all(answer.records)
        except ProtocolError as error:
            # An unreadable record must not block the queue for ever.
            log.error(
                "unreadable records of %(queue)s skipped: %(error)s", {"queue": str(self.queue), "error": str(error)}
            )
            return list(record.decode_valid(answer.records))


FetchedMessage = tuple[QueueFetcher, StoredMessage]
"""A message, and the fetcher to which its consumption is reported. With `takes_batches` a whole `PulledBatch` stands
for a message: it has the offset, the topic, the store time and the retries that deliveries need."""


def mark_consumed(items: Sequence[FetchedMessage]) -> None:
    """Mark messages of any queues as consumed."""
    if len(items) == 1:  # the usual case
        items[0][0].done((items[0][1].queue_offset,))
        return
    offsets: dict[QueueFetcher, list[int]] = {}
    for fetcher, message in items:
        offsets.setdefault(fetcher, []).append(message.queue_offset)
    for fetcher, some in offsets.items():
        fetcher.done(some)


def restore_original_topic(message: StoredMessage) -> None:
    """Set the topic of a retried message to its original one, instead of the retry topic."""
    if message.topic.startswith(RETRY_TOPIC_PREFIX):
        message.topic = message.properties.get(PROPERTY_RETRY_TOPIC, message.topic)

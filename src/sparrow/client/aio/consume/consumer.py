"""The consumer: subscribes, shares queues with the other members of its group, delivers, commits.

Three ways to take messages, one of them for a consumer's life: a handler (`start`), `async for`, or `poll`.

Delivery is at least once: a message may come again after a crash, or when a queue moves to another member.

Without a group it shares with nobody: it reads every queue from the end on, and nothing is kept for it. What a handler
did not take is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import msgspec

from sparrow import clock
from sparrow.client.aio.admin.resend import ResendResult, make_resend_request, resend_messages
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume import broker_requests
from sparrow.client.aio.consume.assigned_queues import AssignedQueues
from sparrow.client.aio.consume.handler_delivery import (
    ConcurrentDelivery,
    MessageDelivery,
    MessageHandler,
    OrderlyDelivery,
)
from sparrow.client.aio.consume.offset_store import BrokerOffsetStore, LocalOffsetStore, OffsetStore
from sparrow.client.aio.consume.polled_delivery import PolledDelivery
from sparrow.client.aio.consume.pull import PullResult, pull
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, FirstPullBarrier, Prefetch
from sparrow.client.aio.consume.rebalance import Rebalancer, StartPosition, fetch_end_offsets
from sparrow.client.aio.consume.send_back import FailurePolicy, RetryLocally, SendBackToBroker, SkipFailed
from sparrow.client.aio.consume.topic_lanes import TopicLanes
from sparrow.client.aio.tracer import Tracer, trace_producer_group
from sparrow.client.allocation import AllocationStrategy, averagely
from sparrow.client.priority_lanes import STARVATION_MS
from sparrow.client.subscription import Subscription
from sparrow.model.errors import Closed, GroupRequired, Refused, SparrowError
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import EXPRESSION_TAG, RETRY_TOPIC_PREFIX, SUBSCRIBE_ALL, TOOLS_GROUP
from sparrow.model.queue import QueueRef
from sparrow.model.token import Credentials
from sparrow.model.topic import validate_group_name, validate_topic_name
from sparrow.wire.bodies import ConsumerData
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import UnregisterClient

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S = 20.0
"""How often queues are shared out anew when nobody says that something changed."""
MISSING_TOPIC_INTERVAL_S = 1.0
"""The same while a topic is not there yet."""
_LOCK_INTERVAL_S = 20.0
ANONYMOUS_GROUP = TOOLS_GROUP
"""The group in whose name anybody may read. RocketMQ's tools do, so every broker has it from the start; it is no member
of it who never sends a heartbeat, and nothing is committed for it."""

ConsumeMode = Literal["cluster", "broadcast"]
_FROM_WHERE = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


class Consumer:
    """A member of a consumer group; or, with `group=None`, somebody who looks at what comes from now on.

    ```python
    async with Consumer("billing") as consumer:
        await consumer.subscribe("orders", "paid || shipped")
        async for message in consumer:
            print(message.body)
    ```
    """

    def __init__(
        self,
        group: str | None,
        name_servers: str = "127.0.0.1:9876",
        *,
        mode: ConsumeMode = "cluster",
        start: StartPosition = "first",
        strategy: AllocationStrategy = averagely,
        prefetch: Prefetch | None = None,
        commit_interval_ms: int = 5_000,
        offsets_path: Path | str | None = None,
        retries_max: int | None = None,
        starvation_ms: int = STARVATION_MS,
        trace: bool = False,
        timeout_ms: int = 3_000,
        instance: str | None = None,
        credentials: Credentials | None = None,
        session: ClientSession | None = None,
    ) -> None:
        """`start` is for queues the group never read. `offsets_path` keeps a broadcast consumer's progress.
        `retries_max`: a message that failed once more often is a dead letter; by default the group's configuration
        says (16 times), and where messages come in order there is no end. `starvation_ms`: in a topic with lanes, a
        lower priority gets a share once its first message is so old; 0: never. `trace`: note what handlers do in the
        trace topic. `credentials` sign every request, for brokers that ask who is there; a `session` has its own."""
        if group is None and trace:
            raise GroupRequired("a trace of what handlers do")
        if group is None and offsets_path is not None:
            raise GroupRequired("keeping progress in a file")
        self.group = None if group is None else validate_group_name(group)
        self._asks_as = group if group is not None else ANONYMOUS_GROUP
        self.mode: ConsumeMode = "broadcast" if group is None else mode
        self._start: StartPosition = "first" if group is None else start
        self._strategy = strategy
        self._commit_interval_s = commit_interval_ms / 1000
        self._owns_session = session is None
        self.session = session or ClientSession(
            name_servers, instance=instance, timeout_ms=timeout_ms, credentials=credentials
        )
        self._offsets: OffsetStore
        if self.mode == "broadcast":
            self._offsets = LocalOffsetStore(Path(offsets_path) if offsets_path is not None else None)
        else:
            self._offsets = BrokerOffsetStore(self.session, self._asks_as)
        self._begun_at_end: set[str] = set()
        """Without a group: topics of which it is known where we began."""
        # Without a group nothing comes again, so whatever failed is passed on at once.
        self._retries_max = retries_max if group is not None else 0
        self._unwanted: FailurePolicy
        if self.group is None:
            self._unwanted = SkipFailed()
        elif mode == "broadcast":
            self._unwanted = RetryLocally()
        else:
            self._unwanted = SendBackToBroker(self.session, self.group, retries_max)
        self._starvation_ms = starvation_ms
        self._traces = trace
        self._tracer: Tracer | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._feeds = AssignedQueues(
            self.session,
            self._asks_as,
            prefetch=prefetch or Prefetch(),
            offsets=self._offsets,
            commits_with_pulls=self.mode == "cluster",
            includes_subscription=group is None,
        )
        self._assigned: set[QueueRef] | None = None
        self._delivery: MessageDelivery | None = None
        self._sharing: Rebalancer | None = None
        self._is_orderly = False
        self.started_ms = 0
        self._share_again = asyncio.Event()
        self._shared = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._changing, self._closing = asyncio.Lock(), asyncio.Lock()
        self._is_closed = False

    # -- life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._is_closed = False
        await self.session.open()

    async def close(self, grace_s: float = 10.0) -> None:
        """Finish what is being handled, commit, say good-bye to the group."""
        self._is_closed = True
        async with self._closing:  # who closes it a second time waits for the first
            if self._delivery is not None:
                await self._leave(grace_s)
            if self._tracer is not None:
                tracer, self._tracer = self._tracer, None
                await tracer.close()
        if self._owns_session:
            await self.session.close()

    async def __aenter__(self) -> Consumer:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def subscribe(
        self, topic: str, expression: str = SUBSCRIBE_ALL, *, expression_type: str = EXPRESSION_TAG
    ) -> None:
        """Read a topic: all of it, or messages with some tags (`"a || b"`). Without a group: what comes from now on."""
        if self._assigned is not None:
            raise Refused("a consumer that was assigned queues by hand cannot subscribe as well")
        validate_topic_name(topic)
        await self._begin_at_end([topic])
        self._want(topic, expression, expression_type)
        await self._subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        self._subscriptions.pop(topic, None)
        self._begun_at_end.discard(topic)
        self._stop_feeds(topic)
        await self._subscriptions_changed()

    def _want(self, topic: str, expression: str, expression_type: str = EXPRESSION_TAG) -> None:
        known = self._subscriptions.get(topic)
        version_ms = max(clock.now_ms(), known.version_ms + 1 if known is not None else 0)
        fresh = Subscription.of(topic, expression, expression_type=expression_type, version_ms=version_ms)
        if known is None or msgspec.structs.replace(known, version_ms=version_ms) != fresh:
            self._subscriptions[topic] = fresh
            self._stop_feeds(topic)

    def _stop_feeds(self, topic: str) -> None:
        """Brokers answer by the newest subscription: one more pull by the old one, and what both leave out is lost."""
        for feed in self._feeds.of_topic(topic):
            feed.stop()

    async def _begin_at_end(self, topics: Iterable[str]) -> None:
        """Without a group: what is there now is not read. Queues that are made later are read from their first."""
        if self.group is not None:
            return
        await self.session.open()
        for topic in set(topics) - self._begun_at_end:
            async with self._changing:
                for feed in self._feeds.of_topic(topic):
                    await self._feeds.leave(feed)  # of a subscription that was given up
                await self._offsets.save(await fetch_end_offsets(self.session, topic))
            self._begun_at_end.add(topic)

    async def _subscriptions_changed(self) -> None:
        if self._delivery is not None:
            await self.session.heartbeat()
            self._share_again.set()

    async def assign(self, queues: Iterable[QueueRef], expression: str = SUBSCRIBE_ALL) -> None:
        """Read exactly these queues, whoever else is in the group. Progress is committed as usual."""
        if self._subscriptions and self._assigned is None:
            raise Refused("a consumer that has subscribed shares its queues with the group: assign before, or instead")
        queues = set(queues)
        await self._begin_at_end(queue.topic for queue in queues)
        self._assigned = queues
        for queue in self._assigned:
            self._want(queue.topic, expression)
        await self._subscriptions_changed()

    # -- taking messages ----------------------------------------------------------------------------------------------

    async def start(
        self, handler: MessageHandler, *, workers: int = 20, batch: int | None = None, orderly: bool = False
    ) -> None:
        """Hand messages to an async function as they come; returns at once.

        With `batch` the handler gets lists of up to so many. `orderly`: the messages of a queue one after the other.
        A handler that raises gets the message again later; it may choose when (`raise Later(level)`), or that there
        is no use in it (`raise Bury()`). Without a group, what it did not take is logged and does not come again.
        """
        handler = await self._traced(handler)
        if orderly:
            in_order = OrderlyDelivery(handler, batch=batch, retries_max=self._retries_max, bury=self._unwanted.bury)
            await self._join(in_order, is_orderly=True)
        else:
            give_back, lanes = self._unwanted.give_back, self._lanes()
            await self._join(
                ConcurrentDelivery(handler, workers=workers, batch=batch, give_back=give_back, lanes=lanes)
            )

    def _lanes(self) -> TopicLanes:
        return TopicLanes(self._has_lanes, starvation_ms=self._starvation_ms)

    def _has_lanes(self, topic: str) -> bool:
        route = self.session.cached_route(topic)
        return route is not None and bool(route.lane_brokers)

    async def _traced(self, handler: MessageHandler) -> MessageHandler:
        if not self._traces or self.group is None:
            return handler
        if self._tracer is None:
            from sparrow.client.aio.produce.producer import Producer

            producer = Producer(group=trace_producer_group(self.group), session=self.session)
            await self.session.open()
            self._tracer = Tracer(self.session, self.group, producer)
            await self._tracer.open()
        return self._tracer.around(handler)

    async def poll(self, count_max: int = 32, *, timeout_ms: int = 1_000) -> list[StoredMessage]:
        """Some messages, or none when the time is up. Those of the polls before count as dealt with."""
        delivery = await self._on_request()
        delivery.finish()
        return await delivery.take(count_max, timeout_ms / 1000)

    async def fetch_items(
        self, count_max: int, timeout_s: float | None, *, in_lanes_max: int | None = None
    ) -> list[FetchedMessage]:
        """For the blocking client: messages with their feeds, which the caller tells when they are done."""
        return await (await self._on_request()).fetch_items(count_max, timeout_s, in_lanes_max=in_lanes_max)

    async def __anext__(self) -> StoredMessage:
        """The next message. The one before counts as dealt with."""
        delivery = await self._on_request()
        delivery.finish()
        while True:
            taken = await delivery.take(1, None)
            if taken:
                return taken[0]
            if delivery.is_stopped:
                raise StopAsyncIteration

    def __aiter__(self) -> Consumer:
        return self

    async def commit(self) -> None:
        """Everything taken so far is dealt with; the brokers have it when this returns."""
        if isinstance(self._delivery, PolledDelivery):
            self._delivery.finish()
        await self._feeds.commit(is_last=True)

    async def _on_request(self) -> PolledDelivery:
        if self._delivery is None:
            await self._join(PolledDelivery(self._lanes()))
        if not isinstance(self._delivery, PolledDelivery):
            raise Refused("this consumer hands its messages to a handler: take them there")
        return self._delivery

    # -- positions ----------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[QueueRef]:
        """The queues this consumer reads just now."""
        return self._feeds.queues()

    async def wait_for_assignment(self) -> None:
        """Returns once the queues have been shared out for the first time."""
        await self._shared.wait()

    async def seek(self, queue: QueueRef, offset: int) -> None:
        """Go on from another place."""
        async with self._changing:
            if queue not in self._feeds:
                raise Refused(f"{queue} is not read here: seek where it is")
            await self._restart(queue, offset)

    async def seek_to_time(self, queue: QueueRef, time_ms: int) -> None:
        await self.seek(queue, await self._sharer.offset_at(queue, time_ms))

    def pause(self, queues: Iterable[QueueRef] | None = None) -> None:
        """Pull no more, until `resume`. What is here already is still delivered."""
        self._feeds.set_paused(queues, True)

    def resume(self, queues: Iterable[QueueRef] | None = None) -> None:
        self._feeds.set_paused(queues, False)

    async def pull(
        self,
        queue: QueueRef,
        offset: int,
        *,
        count_max: int = 32,
        expression: str = SUBSCRIBE_ALL,
        long_poll_ms: int = 0,
    ) -> PullResult:
        """One pull, by hand: no group, no progress."""
        subscription = Subscription.of(queue.topic, expression, version_ms=clock.now_ms())
        return await pull(
            self.session,
            queue,
            offset,
            group=self._asks_as,
            subscription=subscription,
            count_max=count_max,
            long_poll_ms=long_poll_ms,
            includes_subscription=True,
        )

    async def resend(
        self,
        topic: str,
        *,
        begin: int | None = None,
        end: int | None = None,
        queue_id: int | None = None,
        priority: Priority | str | None = None,
        keys: str | Iterable[str] | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> ResendResult:
        """Have messages delivered once more to this group; `Admin.resend` says which. Without one: `GroupRequired`."""
        if self.group is None:
            raise GroupRequired("to have messages resent")
        which = make_resend_request(
            topic,
            self.group,
            begin=begin,
            end=end,
            queue_id=queue_id,
            priority=priority,
            keys=keys,
            from_ms=from_ms,
            to_ms=to_ms,
            dry_run=False,
            force=False,
        )
        return await resend_messages(self.session, await self.session.route(topic), which, None)

    async def read_table(
        self,
        topic: str,
        start: StartPosition | int = "first",
        end: StartPosition | int = "last",
        *,
        expression: str = SUBSCRIBE_ALL,
        columns: Iterable[str] | None = None,
    ) -> pa.Table:
        """The messages of a topic as an Arrow table, from a time (or `"first"`) up to another (or `"last"`)."""
        from sparrow.client.aio.consume.table_reader import read_table

        return await read_table(self.session, self._asks_as, topic, start, end, expression=expression, columns=columns)

    # -- the group ----------------------------------------------------------------------------------------------------

    async def _join(self, delivery: MessageDelivery, *, is_orderly: bool = False) -> None:
        if self._is_closed:
            raise Closed("the consumer")
        if self._delivery is not None:
            raise Refused("this consumer has started already")
        if not self._subscriptions:
            raise Refused("nothing is subscribed to: call subscribe first")
        if self.group in self.session.consumers:
            raise Refused(f"this session has a consumer of group {self.group!r} already: give each its own")
        await self.session.open()
        self._delivery, self._is_orderly = delivery, is_orderly
        if self.mode == "cluster" and self._assigned is None:
            retry = RETRY_TOPIC_PREFIX + self._asks_as
            self._subscriptions[retry] = Subscription.of(retry, version_ms=clock.now_ms())
        self._sharing = Rebalancer(
            self.session,
            self._asks_as,
            strategy=self._strategy,
            is_broadcast=self.mode == "broadcast",
            is_orderly=is_orderly,
            offsets=self._offsets,
            start=self._start,
        )
        self._feeds.serve(delivery, self._sharing)
        self.started_ms = clock.now_ms()
        if self.group is not None:
            self.session.consumers[self.group] = self
            self.session.handlers.update(broker_requests.HANDLERS)
        self.session.on_routes_changed.append(self._route_changed)
        try:
            await self._begin_at_end(self._subscriptions)
            await self.session.refresh(self._subscriptions)
            await self.session.heartbeat()
        except BaseException:  # cancelled half-way in: it is not a member, and may try again
            await self._leave(0)
            raise
        self._tasks = [
            asyncio.create_task(self._keep_sharing(), name=f"share {self.group}"),
            asyncio.create_task(self._keep_committing(), name=f"commit {self.group}"),
        ]
        if is_orderly:
            self._tasks.append(asyncio.create_task(self._keep_locks(), name=f"lock {self.group}"))

    def described(self) -> ConsumerData:
        is_push = not isinstance(self._delivery, PolledDelivery)
        return ConsumerData(
            group_name=self._asks_as,
            consume_type="CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
            message_model="BROADCASTING" if self.mode == "broadcast" else "CLUSTERING",
            consume_from_where=_FROM_WHERE.get(str(self._start), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=[subscription.data() for subscription in self._subscriptions.values()],
        )

    def _route_changed(self, topic: str) -> None:
        if topic in self._subscriptions:
            self._share_again.set()

    def on_members_changed(self) -> None:
        """A broker says that somebody came or went."""
        self._share_again.set()

    async def _keep_sharing(self) -> None:
        while True:
            self._share_again.clear()
            is_complete = False
            try:
                is_complete = await self._share()
                self._shared.set()
            except SparrowError as error:
                log.info("sharing failed", extra={"group": self.group, "why": str(error)})
            except Exception:
                log.exception("sharing failed", extra={"group": self.group})
            try:
                async with asyncio.timeout(REBALANCE_INTERVAL_S if is_complete else MISSING_TOPIC_INTERVAL_S):
                    await self._share_again.wait()
            except TimeoutError:
                pass

    async def _share(self) -> bool:
        """Start and drop feeds until they are what we should read. False: some of it must be tried again soon."""
        is_complete = True
        async with self._changing:
            for feed in self._feeds.all():
                if feed.queue.topic not in self._subscriptions:
                    is_complete &= await self._feeds.leave(feed)
            for subscription in list(self._subscriptions.values()):
                wanted = await self._wanted(subscription)
                if wanted is None:
                    is_complete &= subscription.topic.startswith(RETRY_TOPIC_PREFIX)
                    continue
                for feed in self._feeds.of_topic(subscription.topic):
                    if feed.queue not in wanted or feed.subscription != subscription or feed.is_stopping:
                        is_complete &= await self._feeds.leave(feed)
                fresh = [queue for queue in wanted if queue not in self._feeds]
                held = await self._sharer.locked(fresh)
                first_pull_barrier = FirstPullBarrier(sum(self._feeds.lane_of(queue) is not None for queue in held))
                begun = await asyncio.gather(*(self._begin(queue, subscription, first_pull_barrier) for queue in held))
                await self._sharer.unlock([queue for queue in held if queue not in self._feeds])
                is_complete &= len(held) == len(fresh) and all(begun)
        return is_complete

    async def _begin(self, queue: QueueRef, subscription: Subscription, first_pull_barrier: FirstPullBarrier) -> bool:
        """False: not now. That keeps no other queue from being read."""
        is_lane = self._feeds.lane_of(queue) is not None
        start: int | None = None
        try:
            start = await self._sharer.start_of(queue)
        except SparrowError as error:
            log.info("queue not begun", extra={"queue": str(queue), "why": str(error)})
        if start is None or self._subscriptions.get(queue.topic) is not subscription:  # it changed while we asked
            if is_lane:
                first_pull_barrier.looked()
            return False
        self._feeds.begin(queue, start, subscription, first_pull_barrier if is_lane else None)
        return True

    async def _wanted(self, subscription: Subscription) -> list[QueueRef] | None:
        if self._assigned is None:
            return await self._sharer.queues_of(subscription)
        try:
            await self.session.route(subscription.topic)
        except SparrowError as error:
            log.info("no route", extra={"topic": subscription.topic, "why": str(error)})
            return None
        return [queue for queue in self._assigned if queue.topic == subscription.topic]

    @property
    def _sharer(self) -> Rebalancer:
        if self._sharing is None:
            raise Refused("this consumer has not started yet: take messages first")
        return self._sharing

    async def _restart(self, queue: QueueRef, offset: int) -> None:
        feed = self._feeds.get(queue)
        if feed is None:
            return
        try:
            await self._feeds.restart(feed, offset)
        except SparrowError:
            self._share_again.set()  # we read it still, from where the group is
            raise

    # -- progress -----------------------------------------------------------------------------------------------------

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval_s)
            try:
                await self._feeds.commit(is_last=False)
            except SparrowError as error:
                log.info("offsets not committed", extra={"group": self.group, "why": str(error)})

    async def _keep_locks(self) -> None:
        while True:
            await asyncio.sleep(_LOCK_INTERVAL_S)
            await self._feeds.renew_locks()

    async def rewind(self, offsets: dict[QueueRef, int]) -> None:
        """Go on from these places: an operator reset the group."""
        async with self._changing:
            for queue, offset in offsets.items():
                await self._restart(queue, offset)

    def positions(self, topic: str | None = None) -> dict[QueueRef, int]:
        """How far each queue is dealt with."""
        return self._feeds.positions(topic)

    def in_hand(self) -> dict[QueueRef, tuple[int, int]]:
        return self._feeds.in_hand()

    @property
    def is_orderly(self) -> bool:
        return self._is_orderly

    async def handle_directly(self, message: StoredMessage) -> None:
        """Handle a message that an operator sent, beside the usual ones."""
        if self._delivery is None:
            raise Refused("this consumer has not started")
        await self._delivery.handle_directly(message)

    async def _leave(self, grace_s: float) -> None:
        for task in self._tasks:
            task.cancel()
        for feed in self._feeds.all():
            feed.is_paused = True
        assert self._delivery is not None
        await self._delivery.stop(grace_s)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._feeds.close()
        if self.group is None and isinstance(self._offsets, LocalOffsetStore):
            self._offsets.forget()
            self._begun_at_end.clear()
        else:
            self.session.consumers.pop(self._asks_as, None)
        if self._route_changed in self.session.on_routes_changed:  # not so where a close before was given up
            self.session.on_routes_changed.remove(self._route_changed)
        if self.group is not None:
            await self._say_good_bye(self.group)
        self._delivery = None

    async def _say_good_bye(self, group: str) -> None:
        header = UnregisterClient(self.session.client_id, consumer_group=group)
        for address in self.session.broker_addresses(masters_only=False):
            try:
                await self.session.invoke(address, RequestCode.UNREGISTER_CLIENT, header)
            except SparrowError as error:
                log.info("not unregistered", extra={"broker": address, "why": str(error)})

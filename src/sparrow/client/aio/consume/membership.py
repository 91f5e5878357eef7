"""A consumer's membership in its group: subscriptions, rebalancing, queue locks, commits, and requests from brokers.

1. Queues are begun and released by one task at a time, under one lock.
2. A queue that cannot be begun or released does not delay the others; the rebalance is repeated soon.
3. A consumer without a group is no member: it reads every queue from its end, and sends no heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from sparrow import clock
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume import broker_requests
from sparrow.client.aio.consume.assigned_queues import AssignedQueues
from sparrow.client.aio.consume.filter_check import check_filter
from sparrow.client.aio.consume.handler_delivery import MessageDelivery
from sparrow.client.aio.consume.offset_store import LocalOffsetStore, make_offset_store
from sparrow.client.aio.consume.polled_delivery import PolledDelivery
from sparrow.client.aio.consume.queue_fetcher import FirstPullBarrier
from sparrow.client.aio.consume.rebalance import Rebalancer, fetch_end_offsets
from sparrow.client.consume.subscription import Subscription
from sparrow.client.options import ConsumeMode, ConsumerOptions, StartPosition
from sparrow.model.errors import Closed, Refused, SparrowError, UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import EXPRESSION_TAG, RETRY_TOPIC_PREFIX, TOOLS_GROUP
from sparrow.model.queue import QueueRef
from sparrow.model.topic import validate_topic_name
from sparrow.wire.bodies import ConsumerData
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import UnregisterClient

log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S = 20.0
"""How often queues are rebalanced when no change is notified."""
RETRY_S_MIN, RETRY_S_MAX = 0.1, 1.0
"""How soon a rebalance is repeated that could not be completed, then at growing intervals: another member still holds
the lock of a queue, or a topic does not exist yet."""
ANONYMOUS_GROUP = TOOLS_GROUP
"""The group name in the requests of a consumer without a group. RocketMQ's tools read under it, so every broker accepts
it. The consumer sends no heartbeat and commits nothing for it, so it never becomes a member."""

_CONSUME_FROM_WHERE = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


class GroupMembership:
    """One consumer's part in a group. The session passes it the brokers' requests (see `SessionConsumer`)."""

    def __init__(self, session: ClientSession, group: str | None, options: ConsumerOptions) -> None:
        self.session, self.group = session, group
        self.request_group = group if group is not None else ANONYMOUS_GROUP
        self.mode: ConsumeMode = "broadcast" if group is None else options["mode"]
        self.started_ms = 0
        self.is_orderly = False
        self.is_closed = False
        self.delivery: MessageDelivery | None = None
        self._consume_from: StartPosition = "first" if group is None else options["consume_from"]
        self._strategy = options["strategy"]
        self._commit_interval_s = options["commit_interval_ms"] / 1000
        self._offsets = make_offset_store(session, self.request_group, self.mode, options)
        self._topics_from_end: set[str] = set()
        """Without a group: topics whose end offsets have been read, from which the consumer starts."""
        self._subscriptions: dict[str, Subscription] = {}
        self._assigned: set[QueueRef] | None = None
        """Queues assigned by hand; None while queues are shared with the group."""
        self.queues = AssignedQueues(
            session,
            self.request_group,
            prefetch=options["prefetch"],
            offsets=self._offsets,
            commits_first=options["at_most_once"],
            commits_with_pulls=self.mode == "cluster" and not options["at_most_once"],
            on_conflict=self._rebalance_soon,
            includes_subscription=group is None,
        )
        self._rebalancer: Rebalancer | None = None
        self._rebalance_now = asyncio.Event()
        self._has_rebalanced = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()

    # -- subscriptions ------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, expression: str, expression_type: str) -> None:
        """Add a subscription, or replace the one of the topic."""
        if self._assigned is not None:
            raise Refused("this consumer reads assigned queues: use another consumer to subscribe to topics")
        validate_topic_name(topic)
        await self._start_from_end([topic])
        fresh = self._make_subscription(topic, expression, expression_type)
        await check_filter(self.session, self.request_group, fresh)
        self._set_subscription(fresh)
        await self._subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        """Remove the subscription of a topic, if there is one."""
        self._subscriptions.pop(topic, None)
        self._topics_from_end.discard(topic)
        self._stop_fetching(topic)
        self.session.health.clear(topic, part=self.request_group)
        await self._subscriptions_changed()

    async def assign(self, queues: Iterable[QueueRef], expression: str) -> None:
        """Read these queues, without sharing them with the group."""
        if self._subscriptions and self._assigned is None:
            raise Refused("this consumer has subscribed to topics: use another consumer to assign queues by hand")
        queues = set(queues)
        await self._start_from_end(queue.topic for queue in queues)
        self._assigned = queues
        for queue in self._assigned:
            self._set_subscription(self._make_subscription(queue.topic, expression, EXPRESSION_TAG))
        await self._subscriptions_changed()

    def _make_subscription(self, topic: str, expression: str, expression_type: str) -> Subscription:
        known = self._subscriptions.get(topic)
        version_ms = max(clock.now_ms(), known.version_ms + 1 if known is not None else 0)
        return Subscription.of(topic, expression, expression_type=expression_type, version_ms=version_ms)

    def _set_subscription(self, fresh: Subscription) -> None:
        known = self._subscriptions.get(fresh.topic)
        if known is None or msgspec.structs.replace(known, version_ms=fresh.version_ms) != fresh:
            self._subscriptions[fresh.topic] = fresh
            self._stop_fetching(fresh.topic)

    def _stop_fetching(self, topic: str) -> None:
        """Stop the pulls of a topic at once.

        Brokers filter by the newest subscription. One more pull with the old one would skip, for good, the messages
        that only the new subscription matches.
        """
        for fetcher in self.queues.of_topic(topic):
            fetcher.stop()

    async def _start_from_end(self, topics: Iterable[str]) -> None:
        """Without a group: start after the last message. Queues that are created later are read from the first."""
        if self.group is not None:
            return
        await self.session.open()
        for topic in set(topics) - self._topics_from_end:
            async with self._changing:
                for fetcher in self.queues.of_topic(topic):
                    await self.queues.leave(fetcher)  # left from an earlier subscription
                await self._offsets.save(await fetch_end_offsets(self.session, topic))
            self._topics_from_end.add(topic)

    async def _subscriptions_changed(self) -> None:
        if self.delivery is not None:
            await self.session.heartbeat()
            self._rebalance_now.set()

    # -- joining and leaving ------------------------------------------------------------------------------------------

    async def join(self, delivery: MessageDelivery, *, is_orderly: bool = False, takes_batches: bool = False) -> None:
        """Register with the brokers and start to read; messages, or batches of them, go to the delivery."""
        if self.is_closed:
            raise Closed("the consumer", "create a new one")
        if self.delivery is not None:
            raise Refused("this consumer has started already")
        if not self._subscriptions:
            raise Refused("this consumer has no subscription: call subscribe first")
        if self.group in self.session.consumers:
            raise Refused(f"this session has a consumer of group {self.group!r} already: use one session for each")
        await self.session.open()
        self.delivery, self.is_orderly = delivery, is_orderly
        if self.mode == "cluster" and self._assigned is None:
            retry = RETRY_TOPIC_PREFIX + self.request_group
            self._subscriptions[retry] = Subscription.of(retry, version_ms=clock.now_ms())
        self._rebalancer = Rebalancer(
            self.session,
            self.request_group,
            strategy=self._strategy,
            is_broadcast=self.mode == "broadcast",
            is_orderly=is_orderly,
            offsets=self._offsets,
            start=self._consume_from,
        )
        self.queues.serve(delivery, self._rebalancer, takes_batches=takes_batches)
        self.started_ms = clock.now_ms()
        if self.group is not None:
            self.session.consumers[self.group] = self
            self.session.handlers.update(broker_requests.HANDLERS)
        self.session.on_routes_changed.append(self._route_changed)
        try:
            await self._start_from_end(self._subscriptions)
            await self.session.refresh(self._subscriptions)
            await self.session.heartbeat()
        except BaseException:  # including cancellation: undo the registration, so that the caller can try again
            await self.leave(0)
            raise
        self._tasks = [
            asyncio.create_task(self._keep_rebalancing(), name=f"rebalance {self.group}"),
            asyncio.create_task(self._keep_committing(), name=f"commit {self.group}"),
        ]
        if is_orderly:
            self._tasks.append(asyncio.create_task(self.queues.keep_locked(), name=f"lock {self.group}"))

    async def leave(self, grace_s: float) -> None:
        """Let running handlers finish, commit, release the queues and unregister from the brokers."""
        for task in self._tasks:
            task.cancel()
        for fetcher in self.queues.all():
            fetcher.is_paused = True
        assert self.delivery is not None
        await self.delivery.stop(grace_s)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.queues.close()
        if self.group is None and isinstance(self._offsets, LocalOffsetStore):
            self._offsets.forget()
            self._topics_from_end.clear()
        else:
            self.session.consumers.pop(self.request_group, None)
        if self._route_changed in self.session.on_routes_changed:  # missing after a cancelled close
            self.session.on_routes_changed.remove(self._route_changed)
        if self.group is not None:
            await self._unregister(self.group)
        self.delivery = None

    async def _unregister(self, group: str) -> None:
        header = UnregisterClient(self.session.client_id, consumer_group=group)
        for address in self.session.broker_addresses(masters_only=False):
            try:
                await self.session.invoke(address, RequestCode.UNREGISTER_CLIENT, header)
            except SparrowError as error:
                log.info(
                    "member of group %(group)s not unregistered from broker %(address)s: %(error)s; it expires there",
                    {"group": group, "address": address, "error": str(error)},
                )

    # -- rebalancing --------------------------------------------------------------------------------------------------

    async def wait_for_assignment(self) -> None:
        """Wait until queues have been assigned for the first time."""
        await self._has_rebalanced.wait()

    def _rebalance_soon(self) -> None:
        asyncio.get_running_loop().call_later(RETRY_S_MIN, self._rebalance_now.set)

    def _route_changed(self, topic: str) -> None:
        if topic in self._subscriptions:
            self._rebalance_now.set()
            self.queues.lock_now.set()  # another broker may lead, which knows of no locks

    async def _keep_rebalancing(self) -> None:
        retry_s = RETRY_S_MIN
        while True:
            self._rebalance_now.clear()
            is_complete = False
            try:
                is_complete = await self._rebalance()
                self._has_rebalanced.set()
                self.session.health.clear("", part="rebalance")
            except SparrowError as error:
                what = f"group {self.request_group!r} cannot share its queues"
                self.session.health.report_request(error, what, part="rebalance")
            except Exception:
                log.exception("rebalance of group %(group)s failed; it is repeated", {"group": self.group})
            try:
                async with asyncio.timeout(REBALANCE_INTERVAL_S if is_complete else retry_s):
                    await self._rebalance_now.wait()
                retry_s = RETRY_S_MIN
            except TimeoutError:
                retry_s = RETRY_S_MIN if is_complete else min(2 * retry_s, RETRY_S_MAX)

    async def _rebalance(self) -> bool:
        """Begin and release queues as the group allocates them. Return False if part of it must be repeated soon."""
        is_complete = True
        async with self._changing:
            for fetcher in self.queues.all():
                if fetcher.queue.topic not in self._subscriptions:
                    is_complete &= await self.queues.leave(fetcher)
            for subscription in list(self._subscriptions.values()):
                wanted = await self._wanted(subscription)
                if wanted is None:
                    is_complete &= subscription.topic.startswith(RETRY_TOPIC_PREFIX)
                    continue
                for fetcher in self.queues.of_topic(subscription.topic):
                    if fetcher.queue not in wanted or fetcher.subscription != subscription or fetcher.is_stopping:
                        is_complete &= await self.queues.leave(fetcher)
                fresh = [queue for queue in wanted if queue not in self.queues]
                locked = await self.rebalancer.locked(fresh)
                barrier = FirstPullBarrier(sum(self.queues.lane_of(queue) is not None for queue in locked))
                begun = await asyncio.gather(*(self._begin(queue, subscription, barrier) for queue in locked))
                await self.rebalancer.unlock([queue for queue in locked if queue not in self.queues])
                is_complete &= len(locked) == len(fresh) and all(begun)
        return is_complete

    async def _begin(self, queue: QueueRef, subscription: Subscription, barrier: FirstPullBarrier) -> bool:
        """Start to read a queue. Return False if it must be tried again; other queues are not affected."""
        is_lane = self.queues.lane_of(queue) is not None
        start: int | None = None
        try:
            start = await self.rebalancer.start_of(queue)
            self.session.health.clear(queue.topic, part=queue)
        except SparrowError as error:
            what = f"group {self.request_group!r} does not get its offset in {queue}"
            self.session.health.report_request(error, what, topic=queue.topic, part=queue)
        if start is None or self._subscriptions.get(queue.topic) is not subscription:  # it changed meanwhile
            if is_lane:
                barrier.pulled()
            return False
        self.queues.begin(queue, start, subscription, barrier if is_lane else None)
        return True

    async def _wanted(self, subscription: Subscription) -> list[QueueRef] | None:
        if self._assigned is None:
            return await self.rebalancer.queues_of(subscription)
        try:
            await self.session.route(subscription.topic)
        except UnknownTopic as error:
            await self.rebalancer.report_missing(subscription.topic, error)
            return None
        except SparrowError:
            return None  # the session has reported it
        self.session.health.clear(subscription.topic, "unknown topic", part=self.request_group)
        return [queue for queue in self._assigned if queue.topic == subscription.topic]

    @property
    def rebalancer(self) -> Rebalancer:
        """The allocation of queues; `Refused` before the consumer has joined."""
        if self._rebalancer is None:
            raise Refused("this consumer has not started yet: call start or poll first")
        return self._rebalancer

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def seek(self, queue: QueueRef, offset: int) -> None:
        """Continue a queue from another offset; `Refused` if this consumer does not read the queue."""
        async with self._changing:
            if queue not in self.queues:
                raise Refused(f"{queue} is not assigned to this consumer: seek in the consumer that reads it")
            await self._restart(queue, offset)

    async def reset_offsets(self, offsets: dict[QueueRef, int]) -> None:
        """Continue from these offsets, because an operator reset the group."""
        async with self._changing:
            for queue, offset in offsets.items():
                await self._restart(queue, offset)

    async def _restart(self, queue: QueueRef, offset: int) -> None:
        fetcher = self.queues.get(queue)
        if fetcher is None:
            return
        try:
            await self.queues.restart(fetcher, offset)
        except SparrowError:
            self._rebalance_now.set()  # the queue is still ours; it continues from the committed offset
            raise

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval_s)
            try:
                await self.queues.commit(is_last=False)
                self.session.health.clear("", part="commit")
            except SparrowError as error:
                what = f"group {self.request_group!r} cannot commit its offsets"
                self.session.health.report_request(error, what, part="commit")

    # -- requests from brokers ----------------------------------------------------------------------------------------

    def heartbeat_data(self) -> ConsumerData:
        """Return what heartbeats report about this consumer."""
        is_push = not isinstance(self.delivery, PolledDelivery)
        return ConsumerData(
            group_name=self.request_group,
            consume_type="CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
            message_model="BROADCASTING" if self.mode == "broadcast" else "CLUSTERING",
            consume_from_where=_CONSUME_FROM_WHERE.get(str(self._consume_from), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=[subscription.data() for subscription in self._subscriptions.values()],
        )

    def on_members_changed(self) -> None:
        """Rebalance soon: a member joined or left the group."""
        self._rebalance_now.set()

    def positions(self, topic: str | None = None) -> dict[QueueRef, int]:
        """Return the offset of each queue up to which messages are consumed."""
        return self.queues.positions(topic)

    def queue_states(self) -> dict[QueueRef, tuple[int, int]]:
        """Return for each queue the committable offset and the number of messages that are not consumed yet."""
        return self.queues.states()

    async def handle_directly(self, message: StoredMessage) -> None:
        """Pass a message that an operator sent to the handler, beside the usual delivery."""
        if self.delivery is None:
            raise Refused("this consumer has not started")
        await self.delivery.handle_directly(message)

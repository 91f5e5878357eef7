"""Rebalancing: which queues a member of a group reads, where it starts, and the queue locks for orderly consumption.

Every member computes the allocation from the same lists, so the results differ only for a short time. Meanwhile a queue
may be read by two members or by none; therefore delivery is at least once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from random import sample

from sparrow.client.aio.connection.leader_requests import invoke_leader, leader_address
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.connection.topic_report import report_unknown_topic
from sparrow.client.aio.consume.offset_store import OffsetStore
from sparrow.client.consume.allocation import AllocationStrategy
from sparrow.client.consume.subscription import Subscription
from sparrow.client.options import StartPosition
from sparrow.model.errors import SparrowError, Unavailable, UnknownTopic
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.queue import QueueRef
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import ConsumerList, LockedQueues, LockQueues
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import EmptyHeader, ListConsumers, OffsetResponse, QueueRequest, SearchOffset

log = logging.getLogger(__name__)


class Rebalancer:
    """The allocation of queues to one consumer."""

    def __init__(
        self,
        session: ClientSession,
        group: str,
        *,
        strategy: AllocationStrategy,
        is_broadcast: bool,
        is_orderly: bool,
        offsets: OffsetStore,
        start: StartPosition,
    ) -> None:
        self._session, self._group, self._strategy = session, group, strategy
        self._is_broadcast, self._is_orderly = is_broadcast, is_orderly
        self._offsets, self._start = offsets, start
        self._requested_locks: set[QueueRef] = set()
        """Queues that brokers may have locked for us, including those of requests whose response was lost."""

    async def queues_of(self, subscription: Subscription) -> list[QueueRef] | None:
        """Return the queues of a topic that this member should read; None if unknown now, so that nothing changes."""
        try:
            route = await self._session.route(subscription.topic)
        except UnknownTopic as error:
            await self.report_missing(subscription.topic, error)
            return None
        except Unavailable:
            return None  # the session has reported it
        self._session.health.clear(subscription.topic, "unknown topic", part=self._group)
        if self._is_broadcast:
            return list(route.read_queues)
        members = await self._members(subscription.topic)
        if members is None or self._session.client_id not in members:
            # The broker does not count us yet: the connection is older than this consumer.
            await self._session.heartbeat()
            members = await self._members(subscription.topic)
        if members is None or self._session.client_id not in members:
            return None
        return self._strategy(self._group, self._session.client_id, sorted(route.read_queues), members)

    async def report_missing(self, topic: str, error: UnknownTopic) -> None:
        """Report that a topic does not exist. Retry topics are created when the group needs them."""
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            what = f"group {self._group!r} waits for a topic"
            otherwise = "send its first message, if the brokers create topics"
            await report_unknown_topic(self._session, error, topic, what, part=self._group, otherwise=otherwise)

    async def _members(self, topic: str) -> list[str] | None:
        route = self._session.cached_route(topic)
        addresses = [a for name in route.addresses if (a := route.address_of(name))] if route is not None else []
        for address in sample(addresses, len(addresses)):
            try:
                answer = await self._session.invoke(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ListConsumers(self._group)
                )
                return sorted(bodies.read(ConsumerList, answer.body).consumer_id_list)
            except SparrowError as error:
                log.info(
                    "members of group %(group)s not known from broker %(address)s: %(error)s",
                    {"group": self._group, "address": address, "error": str(error)},
                )
        return None

    async def start_of(self, queue: QueueRef) -> int:
        """Return where to start: at the committed offset, or as `consume_from` says.

        RocketMQ 4's brokers report 0 for an unknown group while the first messages of the queue are in memory, so on a
        young topic there every position is "first".
        """
        committed = await self._offsets.load(queue)
        if committed is not None and committed >= 0:
            return committed
        if queue.topic.startswith(RETRY_TOPIC_PREFIX) or self._start == "first":
            return await self.ask_offset(queue, RequestCode.GET_MIN_OFFSET)
        if self._start == "last":
            return await self.ask_offset(queue, RequestCode.GET_MAX_OFFSET)
        return await self.offset_at(queue, int(self._start.timestamp() * 1000))

    async def offset_at(self, queue: QueueRef, time_ms: int) -> int:
        """Return the offset of the first message stored at or after a time."""
        header = SearchOffset(queue.topic, queue.queue_id, time_ms, broker_name=queue.broker_name)
        address = leader_address(self._session, queue.topic, queue.broker_name)
        answer = await self._session.invoke(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return max(0, headers.read(OffsetResponse, answer.ext).offset)

    async def ask_offset(self, queue: QueueRef, code: RequestCode) -> int:
        """Return the first or the end offset of a queue."""
        return await _fetch_offset(self._session, queue, code)

    # -- locks, for consuming in order --------------------------------------------------------------------------------

    async def locked(self, queues: Iterable[QueueRef]) -> set[QueueRef]:
        """Lock queues, and return those that the brokers have locked for us."""
        if not self._is_orderly or self._is_broadcast:
            return set(queues)
        queues = list(queues)
        self._requested_locks.update(queues)
        locked: set[QueueRef] = set()
        for broker_queues in _by_broker(queues).values():
            try:
                answer = await self._invoke_leader(RequestCode.LOCK_BATCH_MQ, broker_queues)
                locked.update(bodies.read(LockedQueues, answer.body).locked)
            except SparrowError as error:
                queue = broker_queues[0]
                what = f"broker {queue.broker_name} does not lock queues of topic {queue.topic!r} for {self._group!r}"
                self._session.health.report_request(error, what, topic=queue.topic, part=("lock", queue.broker_name))
            else:
                self._session.health.clear(broker_queues[0].topic, part=("lock", broker_queues[0].broker_name))
        return locked

    async def unlock(self, queues: Iterable[QueueRef]) -> None:
        """Unlock queues."""
        if not self._is_orderly or self._is_broadcast:
            return
        for broker_queues in _by_broker(queues).values():
            try:
                await self._invoke_leader(RequestCode.UNLOCK_BATCH_MQ, broker_queues)
                self._requested_locks.difference_update(broker_queues)
            except SparrowError as error:
                log.info(
                    "%(count)d queues of broker %(broker)s not unlocked: %(error)s; their locks expire",
                    {"count": len(broker_queues), "broker": broker_queues[0].broker_name, "error": str(error)},
                )

    async def unlock_all(self) -> None:
        """Unlock every queue that brokers may have locked for us, and no others."""
        await self.unlock(list(self._requested_locks))

    async def _invoke_leader(self, code: RequestCode, queues: list[QueueRef]) -> RemotingCommand:
        """Send a request about locks of queues of one broker."""
        body = bodies.write(LockQueues(self._group, self._session.client_id, queues))
        return await invoke_leader(self._session, queues[0].topic, queues[0].broker_name, code, EmptyHeader(), body)


async def fetch_end_offsets(session: ClientSession, topic: str) -> dict[QueueRef, int]:
    """Return the end offset of each queue; none for a topic that does not exist yet."""
    try:
        queues = (await session.route(topic, is_fresh=True)).read_queues
    except UnknownTopic:
        return {}
    ends = await asyncio.gather(*(_fetch_offset(session, queue, RequestCode.GET_MAX_OFFSET) for queue in queues))
    return dict(zip(queues, ends, strict=True))


async def _fetch_offset(session: ClientSession, queue: QueueRef, code: RequestCode) -> int:
    header = QueueRequest(queue.topic, queue.queue_id, queue.broker_name)
    answer = await session.invoke(leader_address(session, queue.topic, queue.broker_name), code, header)
    return max(0, headers.read(OffsetResponse, answer.ext).offset)


def _by_broker(queues: Iterable[QueueRef]) -> Mapping[str, list[QueueRef]]:
    found: dict[str, list[QueueRef]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found

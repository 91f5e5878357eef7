"""A consumer of a consumer group on Sparrow or RocketMQ.

Events are taken from the client's consumer together with their queues, so that the committed offset of a queue never
passes an unacknowledged event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from sparrow.bus.names import is_pattern, matches
from sparrow.bus.transports.sparrow.message_format import name_of, to_delivery, topic_of
from sparrow.bus.transports.spi import BrokerDelivery, HeaderBuilder
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.consume.consumer import Consumer, fetch_items
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, mark_consumed
from sparrow.model.errors import Closed, SparrowError, Unavailable
from sparrow.model.topic import ROCKETMQ_TOPICS, is_group_topic, is_system_topic
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode

log = logging.getLogger(__name__)

_CLOSING_S = 3.0
"""How long closing waits for the broker."""


class SparrowGroupConsumer:
    def __init__(
        self, consumer: Consumer, names: Sequence[str], *, build: HeaderBuilder | None, scan_interval_s: float
    ) -> None:
        self._consumer, self._build, self._scan_interval_s = consumer, build, scan_interval_s
        self._exact = [topic_of(name) for name in names if not is_pattern(name)]
        self._patterns = [name for name in names if is_pattern(name)]
        self._subscribed: set[str] = set()
        self._returned: deque[FetchedMessage] = deque()
        self._taking: asyncio.Task[list[FetchedMessage]] | None = None
        """Waits for events while there are none. It survives a cancelled `receive`, so no event is lost."""
        self._stirred = asyncio.Event()
        self._joined = asyncio.Event()
        self._scanning: asyncio.Task[None] | None = None
        self._is_closed = False
        self.on_closed: Callable[[SparrowGroupConsumer], None] = lambda _: None

    async def open(self) -> None:
        await self._consumer.open()
        await check_any_broker(Admin(session=self._consumer.session))
        await self._subscribe(self._exact)
        if self._patterns:
            await self._scan()
            self._scanning = asyncio.create_task(self._keep_scanning(), name=f"scan topics {self._consumer.group}")

    @property
    def topics(self) -> list[str]:
        """The topics that are read, wildcards resolved."""
        return sorted(self._subscribed)

    # -- which topics -------------------------------------------------------------------------------------------------

    async def _subscribe(self, topics: Iterable[str]) -> None:
        for topic in topics:
            await self._consumer.subscribe(topic)
            self._subscribed.add(topic)
        if self._subscribed and not self._joined.is_set():
            await fetch_items(self._consumer, 0, 0)  # takes nothing, but joins the group
            self._joined.set()

    async def _scan(self) -> None:
        fresh = [
            topic
            for topic in await _user_topics(Admin(session=self._consumer.session))
            if topic not in self._subscribed and any(matches(pattern, name_of(topic)) for pattern in self._patterns)
        ]
        await self._subscribe(fresh)

    async def _keep_scanning(self) -> None:
        while True:
            await asyncio.sleep(self._scan_interval_s)
            try:
                await self._scan()
            except SparrowError as error:
                log.info("topics could not be listed", extra={"group": self._consumer.group, "error": str(error)})

    # -- events -------------------------------------------------------------------------------------------------------

    async def receive(self, count_max: int) -> list[BrokerDelivery]:
        while True:
            self._stirred.clear()  # first: a release in between sets it again
            if self._is_closed:
                raise Closed("the consumer")
            items = self._released(count_max) or await self._taken(count_max)
            if items:
                return [to_delivery(item[1], item, self._build) for item in items]

    def _released(self, count_max: int) -> list[FetchedMessage]:
        """Return released events whose queue is still assigned; others are read by the queue's new owner."""
        items: list[FetchedMessage] = []
        while self._returned and len(items) < count_max:
            feed, message = self._returned.popleft()
            if not feed.is_stopping:
                items.append((feed, message))
        return items

    async def _taken(self, count_max: int) -> list[FetchedMessage]:
        """Return events; an empty list means that something was released or the consumer is closed."""
        is_ready = self._taking is None and self._joined.is_set()
        if is_ready and (items := await fetch_items(self._consumer, count_max, 0)):
            return items
        if self._is_closed:
            return []
        taking = self._taking = self._taking or asyncio.create_task(self._next(count_max))
        stirred = asyncio.ensure_future(self._stirred.wait())
        try:
            await asyncio.wait([taking, stirred], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stirred.cancel()
        if taking is self._taking and taking.done() and not self._is_closed:
            self._taking = None
            self._returned.extend(taking.result())
        return self._released(count_max)

    async def _next(self, count_max: int) -> list[FetchedMessage]:
        await self._joined.wait()
        return await fetch_items(self._consumer, count_max, None)

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        mark_consumed([delivery.ack_handle for delivery in deliveries])

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        self._returned.extendleft(reversed([delivery.ack_handle for delivery in deliveries]))
        self._stirred.set()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._stirred.set()
        tasks = [task for task in (self._scanning, self._taking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        leaving = asyncio.create_task(self._consumer.close(grace_s=0), name=f"leave {self._consumer.group}")
        _leaving.add(leaving)
        leaving.add_done_callback(_left)
        self.on_closed(self)
        await asyncio.wait([leaving], timeout=_CLOSING_S)


_leaving: set[asyncio.Task[None]] = set()
"""Consumers that are leaving a broker which does not answer; they end by themselves."""


def _left(leaving: asyncio.Task[None]) -> None:
    _leaving.discard(leaving)
    if not leaving.cancelled() and (error := leaving.exception()) is not None:
        log.warning("a consumer did not leave its group", extra={"error": str(error)})


# -- the cluster ------------------------------------------------------------------------------------------------------


async def check_any_broker(admin: Admin) -> None:
    if not any(cluster.brokers for cluster in (await admin.clusters()).values()):
        raise Unavailable(
            f"no broker is registered at the name servers {', '.join(admin.session.name_servers)}: "
            "start one, or check the address"
        )


async def _user_topics(admin: Admin) -> list[str]:
    """Return the topics that wildcards may match: those of applications."""
    answer = await admin.session.invoke_name_server(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    system = ROCKETMQ_TOPICS.union(bodies.read(bodies.TopicList, answer.body).topic_list)
    return [
        topic
        for topic in await admin.topics()
        if topic not in system and not is_system_topic(topic) and not is_group_topic(topic)
    ]

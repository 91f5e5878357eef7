"""Broker calls of a sink: routes, retries while a broker is unavailable, and the check for staging support.

A restarting broker is unavailable for seconds and may return at another address. Every call of a sink is safe to
repeat, so it is repeated until its timeout.

A topic without a route may be new, or its brokers may be unavailable. If it were created again on other brokers, they
would accept a batch that the first brokers have published already. So only the first batch of a query creates topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.produce import staging
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import NoMaster, NotPermitted, Refused, Unavailable, UnknownTopic
from sparrow.model.topic import validate_topic_name
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import RemoteRefused

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0

T = TypeVar("T")


class SinkBrokers:
    """Calls to the brokers of a session, retried for a limited time."""

    def __init__(self, session: ClientSession, *, retry_timeout_ms: int, topic_queues: int) -> None:
        self._session = session
        self._retry_timeout_s = retry_timeout_ms / 1000
        self._topic_queues = topic_queues

    async def route(self, topic: str, *, may_be_new: bool) -> TopicRoute:
        """Return the route of the topic. For a new topic, that is the route it gets when it is created."""
        validate_topic_name(topic)
        return await self.retry_while_unavailable(lambda: self._route(topic, may_be_new=may_be_new))

    async def existing_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic that exists; wait while it has none."""
        return await self.route(topic, may_be_new=False)

    async def _route(self, topic: str, *, may_be_new: bool, is_fresh: bool = False) -> TopicRoute:
        try:
            queues = self._topic_queues if may_be_new else 0
            route = await self._session.route(topic, is_fresh=is_fresh, default_topic_queues=queues)
        except UnknownTopic as cause:
            if may_be_new:
                raise
            raise Unavailable(
                f"topic {topic!r} has no route: its brokers are unavailable, the topic was deleted, or it is new. Only "
                "the first batch of a query creates topics: start the brokers, or create the topic"
            ) from cause
        if not route.write_queues and not is_fresh:
            return await self._route(topic, may_be_new=may_be_new, is_fresh=True)
        if not route.write_queues:
            raise NoMaster(f"no broker accepts messages of topic {topic!r}: it has no writable queue on a master")
        return route

    async def call(
        self, broker: str, topic: str, what: Callable[[str], Awaitable[T]], *, may_be_new: bool = False
    ) -> T:
        """Call the broker at its current address and return the result. `topic` has a route to the broker."""
        is_first = True

        async def once() -> T:
            nonlocal is_first
            route = await self._route(topic, may_be_new=may_be_new, is_fresh=not is_first)
            is_first = False
            address = route.masters.get(broker)
            if address is None:
                raise Unavailable(f"broker {broker!r} of topic {topic!r} has no master at the moment")
            try:
                return await what(address)
            except RemoteRefused as refusal:
                if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise Refused(
                        f"broker {broker!r} at {address} does not support exactly-once writes (it is an Apache "
                        "RocketMQ broker or an older Sparrow). Set delivery=atLeastOnce"
                    ) from refusal
                raise

        return await self.retry_while_unavailable(once)

    async def retry_while_unavailable(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call until the result is not `Unavailable` or the timeout is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_timeout_s
        pause_s, tries = _PAUSE_MIN_S, 1
        while True:
            try:
                return await ask()
            except Unavailable as error:
                if loop.time() + pause_s >= deadline:
                    error.add_note(
                        f"Gave up after {tries} attempts in {self._retry_timeout_s:g} s (option commitTimeoutMs)."
                    )
                    raise
            await asyncio.sleep(pause_s)
            pause_s, tries = min(2 * pause_s, _PAUSE_MAX_S), tries + 1

    async def ensure_route(self, topic: str) -> TopicRoute:
        """Return the route of the topic; create the topic if it does not exist."""
        route = await self.route(topic, may_be_new=True)
        if self._session.cached_route(topic) is not None:
            return route
        brokers = {queue.broker_name for queue in route.write_queues}
        queues = len(route.write_queues) // len(brokers)
        try:
            await Admin(session=self._session).create_topic(topic, queues, brokers=brokers)
        except NotPermitted as refusal:
            raise Refused(
                f"topic {topic!r} does not exist, and the token does not permit to create it. Create the topic, or "
                "use a token with that permission"
            ) from refusal
        return await self.existing_route(topic)

    async def check_staging(self, topic: str) -> None:
        """Raise `Refused` if a broker of the topic does not support staging."""
        route = await self.route(topic, may_be_new=True)
        for broker in sorted({queue.broker_name for queue in route.write_queues}):
            if route.masters.get(broker) not in _STAGING_BROKERS:
                await self.call(broker, topic, self._check_ledger, may_be_new=True)

    async def _check_ledger(self, address: str) -> None:
        await staging.query_ledger(self._session, address, "sparrow")
        _STAGING_BROKERS.add(address)


_STAGING_BROKERS: set[str] = set()
"""Addresses of brokers that support staging. A stream creates a writer for every batch; this saves the check."""

"""The brokers a sink writes to: where they are, asked with patience, and whether they know how to stage.

A broker that restarts is away for seconds, and may come back at another address. Whatever a sink asks may be asked
again, so it is, until the time is up.

A topic that no name server knows may be new, or its brokers may be away. Made anew on others, it would take a batch
that those brokers have published already. So only who writes for the first time makes topics.
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
    """What a session knows of brokers, with a bound for how long one that is away is waited for."""

    def __init__(self, session: ClientSession, *, patience_ms: int, topic_queues: int) -> None:
        self._session = session
        self._patience_s = patience_ms / 1000
        self._topic_queues = topic_queues

    async def route(self, topic: str, *, may_be_new: bool) -> TopicRoute:
        """Where rows of the topic go. One that may be new gets the brokers it will have, if any makes topics."""
        validate_topic_name(topic)
        return await self.retry_while_unavailable(lambda: self._route(topic, may_be_new=may_be_new))

    async def existing_route(self, topic: str) -> TopicRoute:
        """The same of a topic that must be there: it is waited for."""
        return await self.route(topic, may_be_new=False)

    async def _route(self, topic: str, *, may_be_new: bool, is_fresh: bool = False) -> TopicRoute:
        try:
            queues = self._topic_queues if may_be_new else 0
            route = await self._session.route(topic, is_fresh=is_fresh, default_topic_queues=queues)
        except UnknownTopic as cause:
            if may_be_new:
                raise
            raise Unavailable(
                f"no name server knows topic {topic!r} any more: its brokers are away, or it was deleted"
            ) from cause
        if not route.write_queues and not is_fresh:
            return await self._route(topic, may_be_new=may_be_new, is_fresh=True)
        if not route.write_queues:
            raise NoMaster(f"no broker takes messages of topic {topic!r}: it has no writable queue on a master")
        return route

    async def ask(self, broker: str, topic: str, what: Callable[[str], Awaitable[T]], *, may_be_new: bool = False) -> T:
        """What the broker answers when it is there. `topic`: one by whose route it is found."""
        is_first = True

        async def once() -> T:
            nonlocal is_first
            route = await self._route(topic, may_be_new=may_be_new, is_fresh=not is_first)
            is_first = False
            address = route.masters.get(broker)
            if address is None:
                raise Unavailable(f"broker {broker!r} of topic {topic!r} has no master just now")
            try:
                return await what(address)
            except RemoteRefused as refusal:
                if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise Refused(
                        f"broker {broker!r} at {address} does not know how to write rows once (it is not Sparrow's, or "
                        f"is an older one): set delivery=atLeastOnce"
                    ) from refusal
                raise

        return await self.retry_while_unavailable(once)

    async def retry_while_unavailable(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer, or the time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        pause_s, tries = _PAUSE_MIN_S, 1
        while True:
            try:
                return await ask()
            except Unavailable as error:
                if loop.time() + pause_s >= deadline:
                    error.add_note(f"tried {tries} times within {self._patience_s:g} s (option commitTimeoutMs)")
                    raise
            await asyncio.sleep(pause_s)
            pause_s, tries = min(2 * pause_s, _PAUSE_MAX_S), tries + 1

    async def ensure_route(self, topic: str) -> TopicRoute:
        """The route of a topic that is there: where topics are made by the first message, it is made now."""
        route = await self.route(topic, may_be_new=True)
        if self._session.cached_route(topic) is not None:
            return route
        brokers = {queue.broker_name for queue in route.write_queues}
        queues = len(route.write_queues) // len(brokers)
        try:
            await Admin(session=self._session).create_topic(topic, queues, brokers=brokers)
        except NotPermitted as refusal:
            raise Refused(
                f"topic {topic!r} does not exist, and may not be made with this token: create it, or send it a message"
            ) from refusal
        return await self.existing_route(topic)

    async def check_staging(self, topic: str) -> None:
        """`Refused` if a broker of the topic cannot write rows once."""
        route = await self.route(topic, may_be_new=True)
        for broker in sorted({queue.broker_name for queue in route.write_queues}):
            if route.masters.get(broker) not in _KNOWN_TO_STAGE:
                await self.ask(broker, topic, self._asked_for_ledger, may_be_new=True)

    async def _asked_for_ledger(self, address: str) -> None:
        await staging.query_ledger(self._session, address, "sparrow")
        _KNOWN_TO_STAGE.add(address)


_KNOWN_TO_STAGE: set[str] = set()
"""Addresses of brokers that were asked: a stream's writer is made anew for every batch."""

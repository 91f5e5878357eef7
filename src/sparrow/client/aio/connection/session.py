"""What one client has open: connections, routes, heartbeats. Producers, consumers and admins work through one.

1. Routes are kept: when every name server is gone, work goes on with what is known.
2. One connection an address, shared by all requests and by those the broker sends us.
3. Every 30 s routes in use are asked for again, brokers get a heartbeat, and connections nobody needs are closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from random import randrange
from typing import Any, Protocol

from sparrow.client.identity import local_ip, make_client_id, make_unique_ids
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import ConnectionLost, SettingsError, SparrowError, Unavailable, UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import AUTO_CREATE_TOPIC
from sparrow.model.queue import QueueRef
from sparrow.model.token import Credentials
from sparrow.net.address import Address, parse_addresses
from sparrow.net.channel import Channel, connect
from sparrow.net.dispatcher import HandlerResult, RequestContext, RequestDispatcher
from sparrow.wire import bodies
from sparrow.wire.bodies import ConsumerData, HeartbeatData, ProducerData, RouteData
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import CheckTransaction, GetRoute, Header, Heartbeat
from sparrow.wire.signing import sign

log = logging.getLogger(__name__)


ClientRequestHandler = Callable[[Any, "ClientSession", RequestContext], Coroutine[Any, Any, HandlerResult]]


class SessionConsumer(Protocol):
    """A consumer, as far as its session and the brokers may speak to it."""

    started_ms: int

    @property
    def is_orderly(self) -> bool: ...
    def described(self) -> ConsumerData:
        """What heartbeats say of it."""
        ...

    def on_members_changed(self) -> None: ...
    async def rewind(self, offsets: dict[QueueRef, int]) -> None: ...
    def positions(self, topic: str | None = None) -> dict[QueueRef, int]: ...
    def in_hand(self) -> dict[QueueRef, tuple[int, int]]:
        """Of each queue: how far it is dealt with, and how many messages are in hand."""
        ...

    async def handle_directly(self, message: StoredMessage) -> None: ...


class TransactionCheckResponder(Protocol):
    """Transactions of a producer, as far as brokers may ask after them."""

    async def answer(self, asked: CheckTransaction, message: StoredMessage, channel: Channel) -> None: ...


class ClientSession:
    """One client's connections and routes."""

    def __init__(
        self,
        name_servers: str = "127.0.0.1:9876",
        *,
        instance: str | None = None,
        timeout_ms: int = 3_000,
        maintenance_interval_ms: int = 30_000,
        credentials: Credentials | None = None,
    ) -> None:
        """`credentials` sign every request, to brokers and to name servers."""
        self._name_servers = parse_addresses(name_servers)
        if not self._name_servers:
            raise SettingsError("name_servers", name_servers, "the caller", "127.0.0.1:9876")
        ip = local_ip(self._name_servers[0])
        self.client_id = make_client_id(ip, instance)
        self.unique_ids = make_unique_ids(ip)
        self.timeout_ms = timeout_ms
        self._credentials = credentials
        self.is_open = False
        self.on_routes_changed: list[Callable[[str], None]] = []
        """Told of each topic whose route is another than before."""
        self.producers: set[str] = set()
        """Groups that heartbeats name."""
        self.consumers: dict[str, SessionConsumer] = {}
        """By group."""
        self.handlers: dict[int, ClientRequestHandler] = {}
        """For requests that brokers send us."""
        self.transactions: dict[str, TransactionCheckResponder] = {}
        """By producer group: who answers for its half messages."""
        self.replies: dict[str, asyncio.Future[StoredMessage]] = {}
        """By correlation id: who waits for a reply."""
        self._tend_interval_s = maintenance_interval_ms / 1000
        self._current = randrange(len(self._name_servers))
        self._channels: dict[str, Channel] = {}
        self._dialing: dict[str, asyncio.Task[Channel]] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._inherited: dict[str, TopicRoute] = {}
        """Of topics that are just being made by sends."""
        self._asking: dict[tuple[str, int], asyncio.Task[TopicRoute]] = {}
        self._tender: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            self._serving: RequestDispatcher[ClientSession] = RequestDispatcher(self, self.handlers)
            self._tender = asyncio.create_task(self._tend())

    async def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        tasks = [task for task in (self._tender, *self._dialing.values(), *self._asking.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._serving.stop(0)
        channels = list(self._channels.values())
        for channel in channels:
            channel.close()
        if channels:
            await asyncio.wait([asyncio.ensure_future(channel.wait_closed()) for channel in channels], timeout=1)

    async def __aenter__(self) -> ClientSession:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- asking -------------------------------------------------------------------------------------------------------

    def signed(self, header: Header | None, body: bytes | memoryview = b"") -> Header | None:
        """The header as it must go out on a channel: signed, if we were given credentials."""
        return header if self._credentials is None else sign(header, body, self._credentials)

    def cached_channel(self, address: str) -> Channel | None:
        """The open channel to an address, if there is one."""
        channel = self._channels.get(address)
        return channel if channel is not None and channel.is_open else None

    async def channel(self, address: str) -> Channel:
        """A channel to that address; those who ask at the same time share one attempt."""
        found = self.cached_channel(address)
        if found is not None:
            return found
        if not self.is_open:
            raise ConnectionLost(address, "the client is not open")
        dialing = self._dialing.get(address)
        if dialing is None:
            dialing = self._dialing[address] = asyncio.create_task(self._dial(address))
            dialing.add_done_callback(lambda _: self._dialing.pop(address, None))
        return await asyncio.shield(dialing)

    async def _dial(self, address: str) -> Channel:
        channel = await connect(Address.parse(address), self._serve, timeout_ms=self.timeout_ms)
        if address not in self.name_servers and (body := self._heartbeat_body()) is not None:
            # A broker knows us by our connection: on a new one it must hear of us before we ask for messages.
            try:
                beat = self.signed(Heartbeat(), body)
                await channel.request(RequestCode.HEART_BEAT, beat, body, timeout_ms=self.timeout_ms)
            except BaseException:
                channel.close()
                raise
        self._channels[address] = channel
        return channel

    def _serve(self, command: RemotingCommand, channel: Channel) -> None:
        self._serving(command, channel)

    async def invoke(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """The answer of success, or the error it stands for."""
        answer = await self.invoke_unchecked(address, code, header, body, timeout_ms=timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_response(answer.code, answer.remark)
        return answer

    async def invoke_unchecked(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """The answer, whatever its code."""
        channel = self.cached_channel(address) or await self.channel(address)
        return await channel.request(code, self.signed(header, body), body, timeout_ms=timeout_ms or self.timeout_ms)

    async def invoke_name_server(
        self, code: int, header: Header | None = None, body: bytes = b"", *, timeout_ms: int | None = None
    ) -> RemotingCommand:
        """The answer of the first name server that gives one; the next question starts with that one."""
        failure: SparrowError | None = None
        for turn in range(len(self._name_servers)):
            index = (self._current + turn) % len(self._name_servers)
            try:
                answer = await self.invoke_unchecked(
                    str(self._name_servers[index]), code, header, body, timeout_ms=timeout_ms
                )
            except Unavailable as error:
                failure = error
                continue
            self._current = index
            if answer.code != ResponseCode.SUCCESS:
                raise error_for_response(answer.code, answer.remark)
            return answer
        assert failure is not None
        raise failure

    @property
    def name_servers(self) -> list[str]:
        return [str(address) for address in self._name_servers]

    # -- routes -------------------------------------------------------------------------------------------------------

    def cached_route(self, topic: str, *, for_sends: bool = False) -> TopicRoute | None:
        """What is known of a topic without asking; `for_sends`, also of one that sends are just making."""
        return (self._inherited.get(topic) if for_sends else None) or self._routes.get(topic)

    async def route(self, topic: str, *, is_fresh: bool = False, default_topic_queues: int = 0) -> TopicRoute:
        """Where a topic lives. With `default_topic_queues`, one that does not exist yet is given its future brokers."""
        known = self.cached_route(topic, for_sends=default_topic_queues > 0)
        if known is not None and not is_fresh:
            return known
        question = (topic, default_topic_queues)
        asking = self._asking.get(question)
        if asking is None:
            asking = self._asking[question] = asyncio.create_task(self._ask_route(topic, default_topic_queues))
            asking.add_done_callback(lambda _: self._asking.pop(question, None))
        try:
            return await asyncio.shield(asking)
        except Unavailable:
            if known is not None:
                return known
            raise

    async def _ask_route(self, topic: str, default_topic_queues: int) -> TopicRoute:
        try:
            route = TopicRoute.of(topic, await self._route_data(topic))
        except UnknownTopic:
            # What was known stays: a name server that has just started knows no topic until the brokers have
            # registered. Whether a topic is gone, its brokers say.
            if not default_topic_queues:
                raise
            if (known := self._routes.get(topic)) is not None:
                return known
            try:
                route = TopicRoute.inherited(topic, await self._route_data(AUTO_CREATE_TOPIC), default_topic_queues)
            except UnknownTopic as cause:
                raise UnknownTopic(topic) from cause
            # Kept for a while, for those who send: else only the broker of the first message would get the topic.
            self._inherited[topic] = route
            return route
        before = self._routes.get(topic)
        self._routes[topic] = route
        self._inherited.pop(topic, None)
        if before != route:
            for tell in self.on_routes_changed:
                tell(topic)
        return route

    async def _route_data(self, topic: str) -> RouteData:
        header = GetRoute(topic, standard_json_only=True)
        answer = await self.invoke_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        return bodies.read(RouteData, answer.body)

    def broker_addresses(self, *, masters_only: bool) -> set[str]:
        """Every broker in any route that is known."""
        return {
            address
            for route in (*self._routes.values(), *self._inherited.values())
            for members in route.addresses.values()
            for number, address in members.items()
            if number == 0 or not masters_only
        }

    # -- tending ------------------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(self._tend_interval_s)
            try:
                self._inherited.clear()
                await self.refresh()
                await self.heartbeat()
                self._close_unneeded()
            except SparrowError as error:
                log.warning("tending failed", extra={"why": str(error)})

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Ask for routes again. What cannot be had stays as it was."""
        for topic in list(self._routes) if topics is None else topics:
            try:
                await self.route(topic, is_fresh=True)
            except UnknownTopic:
                pass
            except SparrowError as error:
                log.debug("route not refreshed", extra={"topic": topic, "why": str(error)})

    async def heartbeat(self) -> None:
        """Tell the brokers who we are and what we subscribe to. One that cannot be reached hears of us next time."""
        body = self._heartbeat_body()
        if body is not None:
            addresses = self.broker_addresses(masters_only=not self.consumers)
            await asyncio.gather(*(self._beat(address, body) for address in addresses))

    def _heartbeat_body(self) -> bytes | None:
        consumers = [member.described() for member in self.consumers.values()]
        if not consumers and not self.producers:
            return None
        producers = [ProducerData(group) for group in sorted(self.producers)]
        return bodies.write(HeartbeatData(self.client_id, producers, consumers))

    async def _beat(self, address: str, body: bytes) -> None:
        try:
            await self.invoke(address, RequestCode.HEART_BEAT, Heartbeat(), body)
        except SparrowError as error:
            log.info("heartbeat not delivered", extra={"broker": address, "why": str(error)})

    def _close_unneeded(self) -> None:
        needed = self.broker_addresses(masters_only=False) | set(self.name_servers)
        for address, channel in list(self._channels.items()):
            if not channel.is_open:
                del self._channels[address]
            elif address not in needed:
                channel.close("no route leads there")
                del self._channels[address]

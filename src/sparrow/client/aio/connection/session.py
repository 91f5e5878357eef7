"""The client session: connections, cached routes and heartbeats, shared by producers, consumers and admins.

1. Routes are cached: when every name server is unreachable, work continues with the known ones.
2. There is one connection per address, for all requests in both directions.
3. Every 30 s, routes in use are refreshed, brokers get a heartbeat, and unused connections are closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from random import randrange
from typing import Any, TypeVar

from sparrow.client.aio.connection.group_conflicts import GroupConflictLog
from sparrow.client.aio.connection.response_errors import error_of, name_server_outage
from sparrow.client.aio.connection.session_users import SessionConsumer, TransactionCheckResponder
from sparrow.client.health import HealthMonitor
from sparrow.client.identity import local_ip, make_client_id, make_unique_ids
from sparrow.client.options import default_name_servers
from sparrow.client.topic_route import TopicRoute
from sparrow.model.access.token import Credentials
from sparrow.model.errors import (
    ConnectionLost,
    SettingsError,
    SparrowError,
    Unavailable,
    UnknownTopic,
    WrongServer,
)
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import AUTO_CREATE_TOPIC
from sparrow.model.tls import Tls, default_tls
from sparrow.net.access.tls import client_context
from sparrow.net.address import Address, parse_addresses
from sparrow.net.channel import Channel
from sparrow.net.dialer import connect
from sparrow.net.dispatcher import HandlerResult, RequestContext, RequestDispatcher
from sparrow.wire import bodies
from sparrow.wire.bodies import HeartbeatData, ProducerData, RouteData
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import FRAME_BYTES_MAX, RemotingCommand
from sparrow.wire.headers import GetRoute, Header, Heartbeat

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")


ClientRequestHandler = Callable[[Any, "ClientSession", RequestContext], Coroutine[Any, Any, HandlerResult]]


class ClientSession:
    """The connections and routes of one client."""

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        instance_name: str | None = None,
        timeout_ms: int = 3_000,
        maintenance_interval_ms: int = 30_000,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Create a session. `credentials` sign every request to brokers and name servers, `tls` encrypts them.

        Without `name_servers` it uses those of the environment variable `SPARROW_NAME_SERVERS`, or 127.0.0.1:9876;
        without `tls`, what `SPARROW_TLS_AUTHORITIES` says.
        """
        name_servers = default_name_servers() if name_servers is None else name_servers
        self._name_servers = parse_addresses(name_servers) if type(name_servers) is str else []
        if not self._name_servers:
            raise SettingsError(
                "name_servers", name_servers, "the caller", "one text, such as '10.0.0.1:9876;10.0.0.2:9876'"
            )
        ip = local_ip(self._name_servers[0])
        self.client_id = make_client_id(ip, instance_name)
        self.unique_ids = make_unique_ids(ip)
        self.health = HealthMonitor(self.client_id)
        self.timeout_ms = timeout_ms
        self._credentials = credentials
        self._tls = client_context(tls or default_tls())
        self.is_open = False
        self.on_routes_changed: list[Callable[[str], None]] = []
        """Called with each topic whose route has changed."""
        self.producers: set[str] = set()
        """Producer groups that heartbeats contain."""
        self.consumers: dict[str, SessionConsumer] = {}
        """Consumers by group."""
        self.handlers: dict[int, ClientRequestHandler] = {}
        """Handlers of the requests that brokers send."""
        self.transactions: dict[str, TransactionCheckResponder] = {}
        """By producer group: what answers check-backs."""
        self.pending_replies: dict[str, asyncio.Future[StoredMessage]] = {}
        """By correlation id: the futures of replies."""
        self._maintenance_interval_s = maintenance_interval_ms / 1000
        self._current = randrange(len(self._name_servers))
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._inherited: dict[str, TopicRoute] = {}
        """Routes of topics that a send is just creating."""
        self._route_requests: dict[tuple[str, int], asyncio.Task[TopicRoute]] = {}
        self._maintenance: asyncio.Task[None] | None = None
        self._group_conflicts = GroupConflictLog()

    async def open(self) -> None:
        """Start the maintenance task. Connections are opened when they are used first."""
        if not self.is_open:
            self.is_open = True
            self._dispatcher: RequestDispatcher[ClientSession] = RequestDispatcher(
                self, self.handlers, body_limits=dict.fromkeys(self.handlers, FRAME_BYTES_MAX)
            )
            self._maintenance = asyncio.create_task(self._maintain())

    async def close(self) -> None:
        """Close all connections."""
        if not self.is_open:
            return
        self.is_open = False
        tasks = [
            task
            for task in (self._maintenance, *self._connecting.values(), *self._route_requests.values())
            if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._dispatcher.stop(0)
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

    # -- requests -----------------------------------------------------------------------------------------------------

    def cached_channel(self, address: str) -> Channel | None:
        """Return the open channel to an address; None without one."""
        channel = self._channels.get(address)
        return channel if channel is not None and channel.is_open else None

    async def channel(self, address: str) -> Channel:
        """Return a channel to that address; concurrent calls share one connection attempt."""
        found = self.cached_channel(address)
        if found is not None:
            return found
        if not self.is_open:
            raise ConnectionLost(address, "the client is not open: use async with, or call open")
        connecting = self._connecting.get(address)
        if connecting is None:
            connecting = self._connecting[address] = asyncio.create_task(self._connect(address))
            connecting.add_done_callback(lambda done: _forget(self._connecting, address, done))
        return await asyncio.shield(connecting)

    async def _connect(self, address: str) -> Channel:
        is_broker = address not in self.name_servers
        try:
            channel = await connect(
                Address.parse(address),
                self._serve,
                timeout_ms=self.timeout_ms,
                tls=self._tls,
                credentials=self._credentials,
            )
        except ConnectionLost as error:
            if is_broker:  # name servers are reported together
                self.health.report_error(
                    error, f"broker {address} (as its route says) cannot be reached", address=address
                )
            raise
        self.health.clear(address, "unreachable")
        if is_broker and (body := self._heartbeat_body()) is not None:
            # Brokers identify clients by connection: a new one needs a heartbeat before the first pull.
            try:
                answer = await channel.request(RequestCode.HEART_BEAT, Heartbeat(), body, timeout_ms=self.timeout_ms)
                if answer.code != ResponseCode.SUCCESS:
                    self._heartbeat_failed(address, error_of(answer, RequestCode.HEART_BEAT, address))
                else:
                    self._group_conflicts.log(address, answer.body)
            except BaseException:
                channel.close()
                raise
        self._channels[address] = channel
        return channel

    def _serve(self, command: RemotingCommand, channel: Channel) -> None:
        self._dispatcher(command, channel)

    async def invoke(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """Send a request and return its response; raise the error that another code than success stands for."""
        answer = await self.invoke_unchecked(address, code, header, body, timeout_ms=timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, code, address)
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
        """Send a request and return its response, whatever its code."""
        channel = self.cached_channel(address) or await self.channel(address)
        return await channel.request(code, header, body, timeout_ms=timeout_ms or self.timeout_ms)

    async def invoke_name_server(
        self, code: int, header: Header | None = None, body: bytes = b"", *, timeout_ms: int | None = None
    ) -> RemotingCommand:
        """Return the response of the first name server that responds; the next request starts with that one."""
        failure: SparrowError | None = None
        for turn in range(len(self._name_servers)):
            index = (self._current + turn) % len(self._name_servers)
            address = str(self._name_servers[index])
            try:
                answer = await self.invoke_unchecked(address, code, header, body, timeout_ms=timeout_ms)
            except Unavailable as error:
                failure = error
                continue
            refusal = None if answer.code == ResponseCode.SUCCESS else error_of(answer, code, address)
            if isinstance(refusal, WrongServer):
                failure = refusal
                continue
            self._current = index
            self.health.clear(self.name_servers_text)
            if refusal is not None:
                raise refusal
            return answer
        assert failure is not None
        self.health.report_error(failure, "no name server can be used", address=self.name_servers_text)
        raise name_server_outage(failure, self.name_servers_text)

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers."""
        return [str(address) for address in self._name_servers]

    @property
    def name_servers_text(self) -> str:
        """The addresses in one text."""
        return ";".join(self.name_servers)

    # -- routes -------------------------------------------------------------------------------------------------------

    def cached_route(self, topic: str, *, for_sends: bool = False) -> TopicRoute | None:
        """Return the known route of a topic; `for_sends`, also of one that a send is just creating."""
        return (self._inherited.get(topic) if for_sends else None) or self._routes.get(topic)

    async def route(self, topic: str, *, is_fresh: bool = False, default_topic_queues: int = 0) -> TopicRoute:
        """Return the route of a topic.

        With `default_topic_queues`, a missing topic gets the route that a send will create.
        """
        known = self.cached_route(topic, for_sends=default_topic_queues > 0)
        if known is not None and not is_fresh:
            return known
        key = (topic, default_topic_queues)
        request = self._route_requests.get(key)
        if request is None:
            request = self._route_requests[key] = asyncio.create_task(self._fetch_route(topic, default_topic_queues))
            request.add_done_callback(lambda done: _forget(self._route_requests, key, done))
        try:
            return await asyncio.shield(request)
        except Unavailable:
            if known is not None:
                return known
            raise

    async def _fetch_route(self, topic: str, default_topic_queues: int) -> TopicRoute:
        try:
            route = TopicRoute.of(topic, await self._route_data(topic))
        except UnknownTopic:
            # Keep the known route: a name server that has just started has no topics until the brokers register.
            # The brokers report whether a topic is deleted.
            if not default_topic_queues:
                raise
            if (known := self._routes.get(topic)) is not None:
                return known
            try:
                route = TopicRoute.inherited(topic, await self._route_data(AUTO_CREATE_TOPIC), default_topic_queues)
            except UnknownTopic as cause:
                raise UnknownTopic(topic) from cause
            # Kept for a while for sends: otherwise only the broker of the first message would create the topic.
            self._inherited[topic] = route
            return route
        before = self._routes.get(topic)
        self._routes[topic] = route
        self._inherited.pop(topic, None)
        if before != route:
            for notify in self.on_routes_changed:
                notify(topic)
        return route

    async def _route_data(self, topic: str) -> RouteData:
        header = GetRoute(topic, standard_json_only=True)
        answer = await self.invoke_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        return bodies.read(RouteData, answer.body)

    def broker_addresses(self, *, masters_only: bool) -> set[str]:
        """Return the address of every broker in any known route."""
        return {
            address
            for route in (*self._routes.values(), *self._inherited.values())
            for members in route.addresses.values()
            for number, address in members.items()
            if number == 0 or not masters_only
        }

    # -- maintenance --------------------------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(self._maintenance_interval_s)
            try:
                self._inherited.clear()
                await self.refresh()
                await self.heartbeat()
                self._close_unneeded()
            except SparrowError as error:
                log.warning(
                    "client %(client)s could not refresh its routes and heartbeats: %(error)s; it tries again",
                    {"client": self.client_id, "error": str(error)},
                )

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Fetch routes again. A route that cannot be fetched stays as it was."""
        for topic in list(self._routes) if topics is None else topics:
            try:
                await self.route(topic, is_fresh=True)
            except UnknownTopic:
                pass
            except SparrowError as error:
                log.debug("route of topic %(topic)s not refreshed: %(error)s", {"topic": topic, "error": str(error)})

    async def heartbeat(self) -> None:
        """Send a heartbeat to all brokers. One that cannot be reached gets the next."""
        body = self._heartbeat_body()
        if body is not None:
            addresses = self.broker_addresses(masters_only=not self.consumers)
            await asyncio.gather(*(self._send_heartbeat(address, body) for address in addresses))

    def _heartbeat_body(self) -> bytes | None:
        consumers = [member.heartbeat_data() for member in self.consumers.values()]
        if not consumers and not self.producers:
            return None
        producers = [ProducerData(group) for group in sorted(self.producers)]
        return bodies.write(HeartbeatData(self.client_id, producers, consumers))

    async def _send_heartbeat(self, address: str, body: bytes) -> None:
        try:
            answer = await self.invoke(address, RequestCode.HEART_BEAT, Heartbeat(), body)
            self._group_conflicts.log(address, answer.body)
        except SparrowError as error:
            self._heartbeat_failed(address, error)
            return
        self.health.clear(address, part="heartbeat")

    def _heartbeat_failed(self, address: str, error: SparrowError) -> None:
        if not isinstance(error, ConnectionLost):  # that is reported when the connection is opened again
            what = f"broker {address} does not accept the heartbeat"
            self.health.report_error(error, what, address=address, part="heartbeat")

    def _close_unneeded(self) -> None:
        needed = self.broker_addresses(masters_only=False) | set(self.name_servers)
        self.health.keep_addresses(needed | {self.name_servers_text})
        for address, channel in list(self._channels.items()):
            if not channel.is_open:
                del self._channels[address]
            elif address not in needed:
                channel.close("no route contains this broker")
                del self._channels[address]


def _forget(table: dict[K, asyncio.Task[V]], key: K, done: asyncio.Task[V]) -> None:
    """Remove a task that is done. Its error is not missed if all who waited for it have given up."""
    table.pop(key, None)
    if not done.cancelled():
        done.exception()

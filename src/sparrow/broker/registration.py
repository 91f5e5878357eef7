"""Registration with the name servers: every 30 s, and at once when topics change.

A name server that cannot be reached is tried again at the next interval. The others do not wait for it. A new or
changed topic is registered alone with name servers that have all others and know such a request; changes that come
while all topics are being registered share the next registration.

A registration of very many topics would be larger than a frame. It is sent in parts, as RocketMQ's split registration
is: name servers add the topics of each part, and remove none. They take changed topics only from a part with a data
version that they do not know, so each part has another one; a repetition has the same one in all parts, so that it
changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec

from sparrow.broker.context import Broker
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.model.health import Finding, Health
from sparrow.model.topic import Topic
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.wire.bodies import BrokerRegistration as RegistrationBody
from sparrow.wire.bodies import DataVersion, QueueData, RouteData, TopicConfig, TopicTable, write, write_registration
from sparrow.wire.checksum import body_crc
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import Header, RegisterBroker, TopicRequest, UnregisterBroker

log = logging.getLogger(__name__)

_LARGE_TOPICS = 1_000
"""More topics than this are encoded in a thread: that takes about 7 µs each."""
_PART_TOPICS = 10_000
"""Topics of one request. Each has less than 1,000 bytes, of at most 16 MiB."""
_NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
_WAIT_S = 1.0
"""How long a topic change, or a stop, waits for the name servers. A send has 3 s in all."""

_Requests = list[tuple[Header, bytes]]
"""The header and the body of each part of a registration."""


class _EncodedTopics:
    """All topics of a broker at one time, and their registrations as far as they were needed."""

    def __init__(
        self,
        version: DataVersion,
        configs: list[TopicConfig],
        encode: Callable[[DataVersion, list[TopicConfig], bool], Coroutine[Any, Any, _Requests]],
    ) -> None:
        self.version, self._configs, self._encode = version, configs, encode
        self._encoded: dict[bool, _Requests] = {}

    async def requests(self, *, repeats: bool) -> _Requests:
        """Return the requests. `repeats`: for name servers that have these topics already."""
        if repeats not in self._encoded:
            self._encoded[repeats] = await self._encode(self.version, self._configs, repeats)
        return self._encoded[repeats]


class NameServerRegistration:
    """Registers this broker with all its name servers."""

    def __init__(self, broker: Broker, name_servers: list[Address]) -> None:
        self.broker = broker
        """What is registered; a replica that changes its role sets another one, and registers it."""
        self._settings, self._name_servers = broker.settings, name_servers
        self._access = broker.name_server_access
        self._channels: dict[Address, Channel] = {}
        self._dialing = {address: asyncio.Lock() for address in self._name_servers}
        self._failures = LogIntervals()
        self.unreachable: dict[Address, Finding] = {}
        """The name servers with which the last registration failed."""
        self._registrations: set[asyncio.Task[None]] = set()
        self._next: asyncio.Task[None] | None = None
        """The registration of all topics that has not read them yet."""
        self._encoding = asyncio.Lock()
        self._in_progress = 0
        """Registrations of all topics that are not answered yet."""
        self._sending = {address: asyncio.Lock() for address in self._name_servers}
        self._newest = 0
        """The number of the last registration of all topics."""
        self._complete: dict[Address, DataVersion] = {}
        """Name servers that have all topics, with the version of these, as long as their connection is open."""
        self._without_single_topics: set[Address] = set()
        """Name servers that cannot register a topic alone."""
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def health(self) -> Health:
        """Return whether at least one name server knows this broker, and which do not."""
        findings = sorted(self.unreachable.values(), key=lambda finding: finding.since)
        return Health(not findings or len(findings) < len(self._name_servers), tuple(findings))

    async def start(self) -> None:
        """Register now, and then at every interval."""
        await self.register()
        self._task = asyncio.create_task(self._keep_registering())

    async def _keep_registering(self) -> None:
        while True:
            await asyncio.sleep(self._settings.register_interval_ms / 1000)
            await self.register()

    async def changed(self, topic: Topic | None) -> None:
        """Register a topic that has changed, or all.

        Wait for the name servers, but not long for those that do not answer.
        """
        if topic is not None and self._may_register_alone():
            task = self._task_of(self._register_topic(topic))
        elif self._next is None:
            task = self._next = self._task_of(self.register())
        else:
            task = self._next
        await asyncio.wait([task], timeout=_WAIT_S)

    def _task_of(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._registrations.add(task)
        task.add_done_callback(self._registrations.discard)
        return task

    def _may_register_alone(self) -> bool:
        """Return whether every name server has the other topics of this broker, and knows the request.

        A registration of all topics that was read before this change must not overtake it.
        """
        return (
            self.broker.broker_id == 0
            and not self._in_progress
            and all(
                address in self._complete and address not in self._without_single_topics and self._is_connected(address)
                for address in self._name_servers
            )
        )

    def _is_connected(self, address: Address) -> bool:
        channel = self._channels.get(address)
        return channel is not None and channel.is_open

    async def _register_topic(self, topic: Topic) -> None:
        queues = QueueData(self.broker.name, topic.read_queues, topic.write_queues, topic.permission, topic.sys_flag)
        body = write(RouteData(queue_datas=[queues]))
        await self._send_all(RequestCode.REGISTER_TOPIC_IN_NAMESRV, TopicRequest(topic.name), body)
        if self._without_single_topics:
            await self.register()

    async def register(self) -> None:
        """Send the topic table to all name servers. Return when each has answered or failed."""
        if self._is_stopped:  # topics may change while the broker stops
            return
        self._in_progress += 1
        try:
            async with self._encoding:  # in order: the last registration must be the newest
                self._next = None
                self._newest = number = self._newest + 1
                version, configs = self.broker.topics.version, list(map(TopicConfig.of, self.broker.topics))
                topics = _EncodedTopics(version, configs, self._encode)
                for repeats in {self._is_known(address, version) for address in self._name_servers}:
                    await topics.requests(repeats=repeats)
            await asyncio.gather(*(self._register_with(address, number, topics) for address in self._name_servers))
        finally:
            self._in_progress -= 1

    def _is_known(self, address: Address, version: DataVersion) -> bool:
        return self._complete.get(address) == version and self._is_connected(address)

    async def _register_with(self, address: Address, number: int, topics: _EncodedTopics) -> None:
        async with self._sending[address]:  # parts of two registrations must not mix
            if number < self._newest:  # the newer one has all topics, too
                return
            repeats = self._is_known(address, topics.version)
            requests, used = await topics.requests(repeats=repeats), set()
            for header, body in requests:
                if not await self._send(address, RequestCode.REGISTER_BROKER, header, body):
                    return
                used.add(self._channels[address])
            # A name server forgets the parts that came over a connection that was lost.
            if len(requests) == 1 or (len(used) == 1 and (not repeats or address in self._complete)):
                self._complete[address] = topics.version

    async def _encode(self, version: DataVersion, configs: list[TopicConfig], repeats: bool) -> _Requests:
        """Return the requests of a registration. `repeats`: the name server has these topics already."""
        # RocketMQ's compressed form has no field for topic flags, and routes need the lanes flag.
        is_compressed = not any(config.topic_sys_flag for config in configs)
        parts = [configs[at : at + _PART_TOPICS] for at in range(0, len(configs), _PART_TOPICS)] or [[]]
        requests: _Requests = []
        for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            older = version if repeats else msgspec.structs.replace(version, timestamp=version.timestamp - left)
            table = TopicTable(topic_config_table={config.topic_name: config for config in part}, data_version=older)
            registration = RegistrationBody(table)
            if len(part) < _LARGE_TOPICS:
                body = write_registration(registration, is_compressed=is_compressed)
            else:
                body = await asyncio.to_thread(write_registration, registration, is_compressed=is_compressed)
            requests.append((self._header(body, is_compressed=is_compressed), body))
        return requests

    def _header(self, body: bytes, *, is_compressed: bool) -> RegisterBroker:
        return RegisterBroker(
            broker_name=self.broker.name,
            broker_address=str(self.broker.address),
            cluster=self._settings.cluster,
            ha_address=str(self.broker.address),
            broker_id=self.broker.broker_id,
            is_compressed=is_compressed,
            body_crc=body_crc(body),
        )

    async def _send_all(self, code: RequestCode, header: Header, body: bytes = b"") -> None:
        await asyncio.gather(*(self._send(address, code, header, body) for address in self._name_servers))

    async def _send(self, address: Address, code: RequestCode, header: Header, body: bytes) -> bool:
        """Send a request. Return whether the name server has done it."""
        timeout_ms = self._settings.name_server_timeout_ms
        try:
            async with self._dialing[address]:
                channel = self._channels.get(address)
                if channel is None or not channel.is_open:
                    channel = await self._access.connect(address, timeout_ms=timeout_ms)
                    self._channels[address] = channel
                    self._complete.pop(address, None)
            answer = await channel.request(code, header, body, timeout_ms=timeout_ms)
            if code == RequestCode.REGISTER_TOPIC_IN_NAMESRV and answer.code == _NOT_SUPPORTED:
                self._without_single_topics.add(address)  # a name server before RocketMQ 5
                return False
            if answer.code != ResponseCode.SUCCESS:
                raise error_for_response(answer.code, answer.remark)
        except SparrowError as error:
            self._complete.pop(address, None)
            text = f"the broker cannot register with name server {address}: {error}; check broker.name_servers"
            known = self.unreachable.get(address)
            since = known.since if known is not None else datetime.now(UTC)
            self.unreachable[address] = Finding("name_server", text, since, str(address))
            if self._failures.is_due(address, type(error)):
                log.warning(
                    "the broker cannot register with name server %(address)s: %(error)s; retrying every"
                    " %(interval_ms)s ms. Start the name server, or correct broker.name_servers",
                    {"address": address, "error": error, "interval_ms": self._settings.register_interval_ms},
                )
            return False
        self.unreachable.pop(address, None)
        if self._failures.end(address):
            log.info("the broker is registered with name server %(address)s again", {"address": address})
        return True

    async def stop(self) -> None:
        """Unregister this broker from the name servers."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
        header = UnregisterBroker(
            broker_name=self.broker.name,
            broker_address=str(self.broker.address),
            cluster=self._settings.cluster,
            broker_id=self.broker.broker_id,
        )
        reached = [address for address in self._name_servers if address not in self._failures]
        requests = [
            asyncio.create_task(self._send(address, RequestCode.UNREGISTER_BROKER, header, b"")) for address in reached
        ]
        if requests:
            await asyncio.wait(requests, timeout=_WAIT_S)
        for channel in self._channels.values():
            channel.close()

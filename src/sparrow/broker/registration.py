"""Registration with the name servers: every 30 s, and at once when topics change.

A name server that cannot be reached is tried again at the next interval. The others do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging

from sparrow.broker.context import Broker
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.net.address import Address
from sparrow.net.channel import Channel, connect
from sparrow.wire.bodies import BrokerRegistration as RegistrationBody
from sparrow.wire.bodies import TopicConfig, TopicTable, write_registration
from sparrow.wire.checksum import body_crc
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import Header, RegisterBroker, UnregisterBroker

log = logging.getLogger(__name__)

_WAIT_S = 1.0
"""How long a topic change, or a stop, waits for the name servers. A send has 3 s in all."""


class NameServerRegistration:
    """Registers this broker with all its name servers."""

    def __init__(self, broker: Broker, name_servers: list[Address]) -> None:
        self._broker, self._settings, self._name_servers = broker, broker.settings, name_servers
        self._channels: dict[Address, Channel] = {}
        self._dialing = {address: asyncio.Lock() for address in self._name_servers}
        self._failures = LogIntervals()
        self._registrations: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def start(self) -> None:
        """Register now, and then at every interval."""
        await self.register()
        self._task = asyncio.create_task(self._keep_registering())

    async def _keep_registering(self) -> None:
        while True:
            await asyncio.sleep(self._settings.register_interval_ms / 1000)
            await self.register()

    async def changed(self) -> None:
        """Register after a change of topics. Wait for the name servers, but not long for those that do not answer."""
        task = asyncio.create_task(self.register())
        self._registrations.add(task)
        task.add_done_callback(self._registrations.discard)
        await asyncio.wait([task], timeout=_WAIT_S)

    async def register(self) -> None:
        """Send the topic table to all name servers. Return when each has answered or failed."""
        if self._is_stopped:  # topics may change while the broker stops
            return
        # RocketMQ's compressed form has no field for topic flags, and routes need the lanes flag.
        is_compressed = not any(topic.sys_flag for topic in self._broker.topics)
        body = write_registration(self._body(), is_compressed=is_compressed)
        header = RegisterBroker(
            broker_name=self._broker.name,
            broker_address=str(self._broker.address),
            cluster=self._settings.cluster,
            ha_address=str(self._broker.address),
            broker_id=self._broker.broker_id,
            is_compressed=is_compressed,
            body_crc=body_crc(body),
        )
        await self._send_all(RequestCode.REGISTER_BROKER, header, body)

    def _body(self) -> RegistrationBody:
        topics = {topic.name: TopicConfig.of(topic) for topic in self._broker.topics}
        return RegistrationBody(TopicTable(topic_config_table=topics, data_version=self._broker.topics.version))

    async def _send_all(self, code: RequestCode, header: Header, body: bytes = b"") -> None:
        await asyncio.gather(*(self._send(address, code, header, body) for address in self._name_servers))

    async def _send(self, address: Address, code: RequestCode, header: Header, body: bytes) -> None:
        timeout_ms = self._settings.name_server_timeout_ms
        try:
            async with self._dialing[address]:
                channel = self._channels.get(address)
                if channel is None or not channel.is_open:
                    channel = self._channels[address] = await connect(address, timeout_ms=timeout_ms)
            answer = await channel.request(code, header, body, timeout_ms=timeout_ms)
            if answer.code != ResponseCode.SUCCESS:
                raise error_for_response(answer.code, answer.remark)
        except SparrowError as error:
            if self._failures.is_due(address, type(error)):
                log.warning(
                    "the broker cannot register with name server %(address)s: %(error)s; retrying every"
                    " %(interval_ms)s ms. Start the name server, or correct broker.name_servers",
                    {"address": address, "error": error, "interval_ms": self._settings.register_interval_ms},
                )
        else:
            if self._failures.end(address):
                log.info("the broker is registered with name server %(address)s again", {"address": address})

    async def stop(self) -> None:
        """Unregister this broker from the name servers."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
        header = UnregisterBroker(
            broker_name=self._broker.name,
            broker_address=str(self._broker.address),
            cluster=self._settings.cluster,
            broker_id=self._broker.broker_id,
        )
        reached = [address for address in self._name_servers if address not in self._failures]
        requests = [
            asyncio.create_task(self._send(address, RequestCode.UNREGISTER_BROKER, header, b"")) for address in reached
        ]
        if requests:
            await asyncio.wait(requests, timeout=_WAIT_S)
        for channel in self._channels.values():
            channel.close()

"""RabbitMQ transport, with the layout of .NET CAP, so that services of both kinds share exchanges and queues.

    name       routing key on one durable topic exchange; `.{version}` is appended to the exchange's name unless v1
    group      durable queue of that name, bound once per name; AMQP wildcards are RabbitMQ's own
    headers    the message's header table, text or null
    id         also the property message_id
    body       unchanged, persistent

1. An envelope counts as sent when RabbitMQ has confirmed it. One that no queue receives is a failed attempt; CAP would
   lose it. `mandatory=False` restores CAP's behaviour.
2. A queue exists from the first `listen` on: events sent before are not in it.
3. Nothing reconnects implicitly, except that `send` opens a new connection after the last one was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq.channel import Channel
from aiormq.exceptions import DeliveryError, PublishError
from pamqp.commands import Basic
from yarl import URL

from sparrow.bus.transports.rabbitmq.connections import DeclarationRefused, close_connection, translated_errors
from sparrow.bus.transports.rabbitmq.consumer import RabbitQueueConsumer
from sparrow.bus.transports.spi import Envelope, HeaderBuilder
from sparrow.model.errors import ConnectionLost, IllegalMessage, IllegalName, RequestTimeout, TooLarge, Unavailable

EXCHANGE = "cap.default.router"
CAP_MESSAGE_TTL_MS = 864_000_000
"""Ten days, exactly CAP's value: RabbitMQ refuses to declare a queue again with another one."""
ROUTING_KEY_BYTES_MAX = 255
HEADER_NAME_BYTES_MAX = 128
HEARTBEAT_S = 20
_OTHER_PROPERTIES_BYTES = 1024
"""Reserved for the rest of the frame: message id, delivery mode, frame header."""


class Unroutable(Unavailable):
    """The broker accepted the event and no queue is bound to it: its group has perhaps never started."""

    def __init__(self, name: str, exchange: str) -> None:
        super().__init__(name, exchange)
        self.name, self.exchange = name, exchange

    def __str__(self) -> str:
        return (
            f"no queue of exchange {self.exchange!r} is bound to {self.name!r}, so no group would receive it: "
            "start a subscriber once, or set mandatory=False to drop such events"
        )


class NotConfirmed(Unavailable):
    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, address)
        self.name, self.address = name, address

    def __str__(self) -> str:
        return f"{self.address} could not take {self.name!r}: a queue is full, or the server that holds it failed"


class _Publishing(NamedTuple):
    connection: AbstractConnection
    channel: Channel
    header_bytes_max: int


class RabbitTransport:
    def __init__(
        self,
        url: str,
        *,
        exchange: str = EXCHANGE,
        version: str = "v1",
        header_builder: HeaderBuilder | None = None,
        mandatory: bool = True,
        message_ttl_ms: int = CAP_MESSAGE_TTL_MS,
        queue_arguments: Mapping[str, Any] | None = None,
        confirm_timeout_s: float = 10,
        connect_timeout_s: float = 10,
    ) -> None:
        """Create a transport.

        `queue_arguments` are added to those of every queue, such as `{"x-queue-type": "quorum"}`.
        """
        self._url = URL(url)
        if "heartbeat" not in self._url.query:
            # With the library's default of a minute a silent server is noticed after three.
            self._url = self._url.update_query(heartbeat=HEARTBEAT_S)
        self.address = f"{self._url.host}:{self._url.port or (5671 if self._url.scheme == 'amqps' else 5672)}"
        self.exchange = exchange if version == "v1" else f"{exchange}.{version}"
        self._build = header_builder
        self._mandatory = mandatory
        self._queue_arguments = {"x-message-ttl": message_ttl_ms, **(queue_arguments or {})}
        self._confirm_timeout_s = confirm_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._publishing: _Publishing | None = None
        self._opening = asyncio.Lock()

    def check_name(self, name: str) -> None:
        if not 0 < len(name.encode()) <= ROUTING_KEY_BYTES_MAX:
            raise IllegalName("event", name, f"a routing key has 1 to {ROUTING_KEY_BYTES_MAX} bytes")

    async def open(self) -> None:
        await self._connected()

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        publishing = await self._connected()
        # All are written at once and confirmed in any order; the tasks write in the order in which they start.
        results = await asyncio.gather(*(self._publish(publishing, envelope) for envelope in envelopes))
        was_refused = any(isinstance(result, IllegalMessage) for result in results)
        if was_refused and publishing.channel.is_closed and len(envelopes) > 1:
            # RabbitMQ closes the channel on a message it refuses, and the following ones fail with it.
            results = [
                await self._send_alone(envelope) if isinstance(result, IllegalMessage | ConnectionLost) else result
                for envelope, result in zip(envelopes, results, strict=True)
            ]
        elif any(isinstance(result, ConnectionLost | RequestTimeout) for result in results):
            await self._forget(publishing)
        return results

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> RabbitQueueConsumer:
        # A separate connection: RabbitMQ stops reading, acknowledgements included, from one that publishes too fast.
        connection = await self._connect()
        try:
            with translated_errors(self.address, f"the queue {group!r}", self._connect_timeout_s):
                async with asyncio.timeout(self._connect_timeout_s):
                    channel = await connection.channel(publisher_confirms=False)
                    await channel.set_qos(prefetch_count=prefetch)
                    exchange = await channel.declare_exchange(self.exchange, "topic", durable=True)
                    queue = await channel.declare_queue(group, durable=True, arguments=dict(self._queue_arguments))
                    for name in names:
                        await queue.bind(exchange, routing_key=name)
                    below = await channel.get_underlay_channel()
                    listening = RabbitQueueConsumer(self.address, connection, below, self._build)
                    await listening.begin(group)
        except BaseException:
            await close_connection(connection)
            raise
        return listening

    async def close(self) -> None:
        if self._publishing is not None:
            await self._forget(self._publishing)

    async def _send_alone(self, envelope: Envelope) -> Exception | None:
        try:
            return await self._publish(await self._connected(), envelope)
        except Exception as error:
            return error

    async def _publish(self, publishing: _Publishing, envelope: Envelope) -> Exception | None:
        try:
            _check_headers(envelope, publishing.header_bytes_max)
            properties = Basic.Properties(
                headers=dict(envelope.headers), message_id=envelope.id, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            )
            with translated_errors(self.address, f"event {envelope.name!r}", self._confirm_timeout_s):
                await publishing.channel.basic_publish(
                    envelope.body,
                    exchange=self.exchange,
                    routing_key=envelope.name,
                    properties=properties,
                    mandatory=self._mandatory,
                    timeout=self._confirm_timeout_s,
                    wait=False,  # for the socket; the confirmation is awaited
                )
        except PublishError:
            return Unroutable(envelope.name, self.exchange)
        except DeliveryError:
            return NotConfirmed(envelope.name, self.address)
        except DeclarationRefused as refused:
            return IllegalMessage(refused.why)
        except Exception as error:
            return error
        return None

    async def _connected(self) -> _Publishing:
        async with self._opening:
            if self._publishing is not None and not self._publishing.channel.is_closed:
                return self._publishing
            if self._publishing is not None:
                await self._forget(self._publishing)
            connection = await self._connect()
            try:
                with translated_errors(self.address, f"the exchange {self.exchange!r}", self._connect_timeout_s):
                    async with asyncio.timeout(self._connect_timeout_s):
                        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                        await channel.declare_exchange(self.exchange, "topic", durable=True)
                        below = await channel.get_underlay_channel()
                        assert isinstance(below, Channel)
            except BaseException:
                await close_connection(connection)
                raise
            header_bytes_max = below.connection.connection_tune.frame_max - _OTHER_PROPERTIES_BYTES
            self._publishing = _Publishing(connection, below, header_bytes_max)
            return self._publishing

    async def _connect(self) -> AbstractConnection:
        with translated_errors(self.address, "a connection", self._connect_timeout_s):
            return await aio_pika.connect(self._url, timeout=self._connect_timeout_s)

    async def _forget(self, publishing: _Publishing) -> None:
        if self._publishing is publishing:
            self._publishing = None
        await close_connection(publishing.connection)


def _check_headers(envelope: Envelope, limit_bytes: int) -> None:
    """Check the headers: RabbitMQ closes the connection if the header table does not fit into one frame."""
    size_bytes = 0
    for name, value in envelope.headers.items():
        name_bytes = len(name.encode())
        if name_bytes > HEADER_NAME_BYTES_MAX:  # the library would truncate it
            raise IllegalMessage(f"the header name {name[:40]!r}... has more than {HEADER_NAME_BYTES_MAX} bytes")
        size_bytes += name_bytes + len((value or "").encode()) + 6
    if size_bytes > limit_bytes:
        raise TooLarge(f"the headers of {envelope.name!r}", size_bytes, limit_bytes)

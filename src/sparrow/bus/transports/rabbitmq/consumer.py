"""A consumer of the RabbitMQ queue of a group."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import msgspec
from aio_pika.abc import AbstractConnection
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from sparrow.bus.transports.rabbitmq.connections import close_connection, translated_errors
from sparrow.bus.transports.spi import BrokerDelivery, HeaderBuilder, with_foreign_headers
from sparrow.model.errors import Closed, ConnectionLost, Unavailable


class RabbitQueueConsumer:
    def __init__(
        self, address: str, connection: AbstractConnection, channel: AbstractChannel, build: HeaderBuilder | None
    ) -> None:
        self._address, self._connection, self._channel, self._build = address, connection, channel, build
        self._arrived: deque[BrokerDelivery] = deque()
        """Never longer than the prefetch limit, which RabbitMQ enforces."""
        self._news = asyncio.Event()
        self._end: Unavailable | None = None

    async def begin(self, queue: str) -> None:
        self._channel.closing.add_done_callback(lambda _: self._finish("the server closed the connection"))
        self._channel.on_consumer_cancel_callbacks.add(lambda _: self._finish(f"the queue {queue!r} was deleted"))
        await self._channel.basic_consume(queue, self._take)

    async def receive(self, count_max: int) -> Sequence[BrokerDelivery]:
        while not self._arrived and self._end is None:
            self._news.clear()
            await self._news.wait()
        if self._end is not None:  # these deliveries have been requeued by the broker
            raise self._end
        return [self._arrived.popleft() for _ in range(min(count_max, len(self._arrived)))]

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        with self._or_lost():
            for delivery in deliveries:
                await self._channel.basic_ack(delivery.ack_handle, wait=delivery is deliveries[-1])

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        with self._or_lost():
            for delivery in deliveries:
                await self._channel.basic_nack(delivery.ack_handle, requeue=True, wait=delivery is deliveries[-1])

    async def close(self) -> None:
        self._finish(None)
        await close_connection(self._connection)

    async def _take(self, message: DeliveredMessage) -> None:
        assert isinstance(message.delivery, Basic.Deliver)
        properties = message.header.properties
        headers = {name: _text(value) for name, value in (properties.headers or {}).items()}
        delivery = BrokerDelivery(
            name=message.delivery.routing_key or "",
            headers=headers,
            body=message.body,
            ack_handle=message.delivery.delivery_tag,
        )
        # Without any id a duplicate cannot be recognised: handling it twice is better than never.
        fallback_id = properties.message_id or uuid.uuid4().hex
        self._arrived.append(with_foreign_headers(delivery, fallback_id, self._build))
        self._news.set()

    def _finish(self, why: str | None) -> None:
        if self._end is None:
            self._end = Closed("the consumer") if why is None else ConnectionLost(self._address, why)
        self._news.set()

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        if self._end is not None:
            raise self._end
        with translated_errors(self._address, "an acknowledgement", 0):  # only waits for the socket
            yield


def _text(value: object) -> str | None:
    """Return a header value as text: CAP writes text, other .NET senders bytes, RabbitMQ itself numbers and tables."""
    match value:
        case None | str():
            return value
        case bytes() | bytearray():
            return value.decode(errors="replace")
        case datetime():
            return value.isoformat()
        case dict() | list():
            return msgspec.json.encode(value, enc_hook=str).decode()
        case _:
            return str(value)

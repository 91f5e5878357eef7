"""aio-pika with publisher confirms: RabbitMQ's quorum queues and streams."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import Any, ClassVar

import aio_pika
import uvloop
from bench.versus.clients.client import CONSUME_TIMEOUT_S, PythonClient

CONFIRMS_MAX = 1_000
"""Publishes that wait for their confirm."""
PREFETCH = 1_000


class RabbitClient(PythonClient):
    queue_type: ClassVar[str]
    consumer_arguments: ClassVar[dict[str, Any]] = {}

    @property
    def description(self) -> str:
        return f"aio-pika {version('aio-pika')} on uvloop, {CONFIRMS_MAX} confirms at a time, prefetch {PREFETCH}"

    async def _queue(self, connection: Any, topic: str) -> tuple[Any, Any]:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.declare_queue(topic, durable=True, arguments={"x-queue-type": self.queue_type})
        return channel, queue

    def make_topic(self, topic: str) -> None:
        async def work() -> None:
            async with await aio_pika.connect(self.peer.address) as connection:
                await self._queue(connection, topic)

        uvloop.run(work())

    def send_each(self, topic: str, body: bytes, count: int) -> float:
        async def work() -> float:
            async with await aio_pika.connect(self.peer.address) as connection:
                channel, _ = await self._queue(connection, topic)
                message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                begun = time.perf_counter()
                for start in range(0, count, CONFIRMS_MAX):
                    publish = channel.default_exchange.publish
                    waiting = [publish(message, topic) for _ in range(min(CONFIRMS_MAX, count - start))]
                    await asyncio.gather(*waiting)
                return time.perf_counter() - begun

        return uvloop.run(work())

    def round_trips(self, topic: str, group: str, count: int) -> list[float]:
        async def work() -> list[float]:
            times: list[float] = []
            arrived = asyncio.Event()
            async with await aio_pika.connect(self.peer.address) as connection:
                channel, queue = await self._queue(connection, topic)

                async def handle(message: Any) -> None:
                    times.append((time.perf_counter() - float(message.body)) * 1000)
                    await message.ack()
                    arrived.set()

                arguments = {"x-stream-offset": "next"} if self.consumer_arguments else {}
                await queue.consume(handle, arguments=arguments)
                for _ in range(count):
                    arrived.clear()
                    body = b"%.9f" % time.perf_counter()
                    await channel.default_exchange.publish(aio_pika.Message(body), topic)
                    await asyncio.wait_for(arrived.wait(), CONSUME_TIMEOUT_S)
            return times

        return uvloop.run(work())


class QuorumClient(RabbitClient):
    name = "RabbitMQ, quorum queue"
    queue_type = "quorum"


class StreamClient(RabbitClient):
    name = "RabbitMQ, stream"
    queue_type = "stream"
    consumer_arguments: ClassVar[dict[str, Any]] = {"x-stream-offset": "first"}

    def consume_each(self, topic: str, group: str, count: int) -> float:
        """Read the stream from its start. A quorum queue has no second reader, and hence no rounds."""

        async def work() -> float:
            async with await aio_pika.connect(self.peer.address) as connection:
                _, queue = await self._queue(connection, topic)
                begun, seen, done = 0.0, 0, asyncio.Event()

                async def handle(message: Any) -> None:
                    nonlocal begun, seen
                    begun = begun or time.perf_counter()
                    seen += 1 if message.body else 0
                    await message.ack()
                    if seen == count:
                        done.set()

                await queue.consume(handle, arguments=self.consumer_arguments)
                await asyncio.wait_for(done.wait(), CONSUME_TIMEOUT_S)
                return time.perf_counter() - begun

        return uvloop.run(work())

"""nats-py, the asyncio client of NATS, with JetStream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import nats
import uvloop
from bench.versus.clients.client import CONSUME_TIMEOUT_S, PythonClient
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

PENDING_MAX = 4_096
"""Publishes that wait for their acknowledgement."""
FETCH_COUNT = 1_000
ACK_EVERY = 100
"""An acknowledgement counts for all messages before it, as an offset does in Sparrow."""


class NatsClient(PythonClient):
    name = "NATS JetStream"

    @property
    def description(self) -> str:
        return f"nats-py {version('nats-py')} on uvloop, {PENDING_MAX} publishes at a time, fetches of {FETCH_COUNT}"

    @asynccontextmanager
    async def _jetstream(self) -> AsyncIterator[Any]:
        connection = await nats.connect(self.peer.address)
        try:
            yield connection.jetstream(publish_async_max_pending=PENDING_MAX, timeout=CONSUME_TIMEOUT_S)
        finally:
            await connection.close()

    def make_topic(self, topic: str) -> None:
        async def work() -> None:
            async with self._jetstream() as stream:
                await stream.add_stream(name=topic, subjects=[topic])

        uvloop.run(work())

    def send_each(self, topic: str, body: bytes, count: int) -> float:
        async def work() -> float:
            async with self._jetstream() as stream:
                await stream.stream_info(topic)
                begun = time.perf_counter()
                acknowledged = [await stream.publish_async(topic, body) for _ in range(count)]
                await asyncio.gather(*acknowledged)
                return time.perf_counter() - begun

        return uvloop.run(work())

    def consume_each(self, topic: str, group: str, count: int) -> float:
        async def work() -> float:
            async with asyncio.timeout(CONSUME_TIMEOUT_S), self._jetstream() as stream:
                config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=2 * FETCH_COUNT)
                subscription = await stream.subscribe(topic, durable=group, config=config, manual_ack=True)
                begun, seen = 0.0, 0
                async for message in subscription.messages:
                    begun = begun or time.perf_counter()
                    seen += 1 if message.data else 0
                    if not seen % ACK_EVERY:
                        await message.ack()
                    if seen == count:
                        break
                return time.perf_counter() - begun

        return uvloop.run(work())

    def consume_batches(self, topic: str, group: str, count: int) -> float:
        async def work() -> float:
            async with asyncio.timeout(CONSUME_TIMEOUT_S), self._jetstream() as stream:
                config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=2 * FETCH_COUNT)
                subscription = await stream.pull_subscribe(topic, durable=group, config=config)
                begun, seen = 0.0, 0
                while seen < count:
                    messages = await subscription.fetch(min(FETCH_COUNT, count - seen), timeout=CONSUME_TIMEOUT_S)
                    begun = begun or time.perf_counter()
                    seen += sum(1 for message in messages if message.data)
                    await messages[-1].ack()
                return time.perf_counter() - begun

        return uvloop.run(work())

    def round_trips(self, topic: str, group: str, count: int) -> list[float]:
        async def work() -> list[float]:
            times: list[float] = []
            async with (
                asyncio.timeout(CONSUME_TIMEOUT_S),
                self._jetstream() as producing,
                self._jetstream() as receiving,
            ):
                config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
                subscription = await receiving.subscribe(topic, durable=group, config=config, manual_ack=True)
                for _ in range(count):
                    await producing.publish(topic, b"%.9f" % time.perf_counter())
                    message = await subscription.next_msg(CONSUME_TIMEOUT_S)
                    times.append((time.perf_counter() - float(message.data)) * 1000)
                    await message.ack()
            return times

        return uvloop.run(work())

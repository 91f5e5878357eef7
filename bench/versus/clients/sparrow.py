"""Sparrow's asyncio client, on uvloop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pyarrow as pa
import uvloop
from bench.versus.clients.client import CONSUME_TIMEOUT_S, LINGER_MS, QUEUES, PythonClient
from bench.versus.topics import make_topics
from bench.versus.workload import SPARROW

from sparrow.aio import Consumer, Producer
from sparrow.client.options import Prefetch
from sparrow.model.errors import Busy
from sparrow.model.message import Message

PREFETCH = Prefetch(count_max=20_000, span_max=100_000, pull_count_max=1024, pull_bytes_max=1 << 20)
"""Kafka's clients fetch megabytes ahead. The default of Sparrow's, 32 messages a pull, is RocketMQ's."""
YIELD_EVERY = 512
"""Messages between two turns of the event loop: a producer that never yields only fills its buffers."""


class SparrowClient(PythonClient):
    name = SPARROW

    @property
    def description(self) -> str:
        return f"asyncio client on uvloop, linger {LINGER_MS} ms, pulls of up to {PREFETCH.pull_count_max} messages"

    def make_topic(self, topic: str) -> None:
        make_topics(self.peer.address, topic, queues=QUEUES)

    def send_each(self, topic: str, body: bytes, count: int) -> float:
        async def work() -> float:
            async with Producer(self.peer.address, linger_ms=LINGER_MS) as producer:
                await producer.send(Message(topic=f"{topic}-other", body=body))
                begun, last = time.perf_counter(), None
                for number in range(count):
                    while True:
                        try:
                            last = producer.send_soon(Message(topic=topic, body=body))
                            break
                        except Busy:
                            await asyncio.sleep(0)
                    if not number % YIELD_EVERY:
                        await asyncio.sleep(0)
                await producer.flush()
                assert last is not None
                assert last.result().is_ok
                return time.perf_counter() - begun

        return uvloop.run(work())

    def send_list(self, topic: str, bodies: Sequence[bytes], keys: Sequence[str]) -> float:
        async def work() -> float:
            async with Producer(self.peer.address) as producer:
                await producer.send(Message(topic=f"{topic}-other", body=b"opens the connection"))
                begun = time.perf_counter()
                assert (await producer.send_many(topic, bodies, keys=keys)).count == len(bodies)
                return time.perf_counter() - begun

        return uvloop.run(work())

    def send_table(self, topic: str, table: pa.Table) -> float:
        async def work() -> float:
            async with Producer(self.peer.address) as producer:
                await producer.send(Message(topic=f"{topic}-other", body=b"opens the connection"))
                begun = time.perf_counter()
                assert await producer.send_table(topic, table) == table.num_rows
                return time.perf_counter() - begun

        return uvloop.run(work())

    def consume_each(self, topic: str, group: str, count: int) -> float:
        async def work() -> float:
            async with (
                asyncio.timeout(CONSUME_TIMEOUT_S),
                Consumer(self.peer.address, group=group, prefetch=PREFETCH) as consumer,
            ):
                await consumer.subscribe(topic)
                begun, seen = 0.0, 0
                async for message in consumer:
                    begun = begun or time.perf_counter()
                    seen += 1 if message.body else 0
                    if seen == count:
                        break
                return time.perf_counter() - begun

        return uvloop.run(work())

    def consume_batches(self, topic: str, group: str, count: int) -> float:
        async def work() -> float:
            async with (
                asyncio.timeout(CONSUME_TIMEOUT_S),
                Consumer(self.peer.address, group=group) as consumer,
            ):
                await consumer.subscribe(topic)
                begun, seen = 0.0, 0
                while seen < count:
                    batch = await consumer.poll_batch()
                    begun = begun or time.perf_counter()
                    seen += sum(map(bool, batch.bodies)) if batch is not None else 0
                return time.perf_counter() - begun

        return uvloop.run(work())

    def read_table(self, topic: str, count: int) -> float:
        async def work() -> float:
            async with Consumer(self.peer.address, group=None) as consumer:
                begun = time.perf_counter()
                found = await consumer.read_table(topic, columns=["queue_offset", "keys", "body"])
                assert found.num_rows == count, found.num_rows
                return time.perf_counter() - begun

        return uvloop.run(work())

    def round_trips(self, topic: str, group: str, count: int) -> list[float]:
        async def work() -> list[float]:
            times: list[float] = []
            async with (
                Producer(self.peer.address) as producer,
                Consumer(self.peer.address, group=group, consume_from="last") as consumer,
            ):
                await consumer.subscribe(topic)
                arrived = asyncio.Event()

                async def handle(message: Message) -> None:
                    times.append((time.perf_counter() - float(message.body)) * 1000)
                    arrived.set()

                await consumer.start(handle)
                await consumer.wait_for_assignment()
                for _ in range(count):
                    arrived.clear()
                    await producer.send(Message(topic=topic, body=b"%.9f" % time.perf_counter()))
                    await asyncio.wait_for(arrived.wait(), CONSUME_TIMEOUT_S)
            return times

        return uvloop.run(work())

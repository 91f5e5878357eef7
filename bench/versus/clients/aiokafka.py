"""aiokafka, the asyncio client of Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import aiokafka
import uvloop
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from bench.versus.clients.client import CONSUME_TIMEOUT_S, LINGER_MS, QUEUES, PythonClient

FETCH_COUNT = 1_000


class AiokafkaClient(PythonClient):
    name = "Kafka, aiokafka"

    @property
    def description(self) -> str:
        return f"{version('aiokafka')} on uvloop, acks=all, linger {LINGER_MS} ms"

    def make_topic(self, topic: str) -> None:
        async def work() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.peer.address)
            await admin.start()
            try:
                await admin.create_topics([NewTopic(topic, QUEUES, 1)])
            finally:
                await admin.close()

        uvloop.run(work())

    def send_each(self, topic: str, body: bytes, count: int) -> float:
        return uvloop.run(self._send(topic, [(body, None)] * count))

    def send_list(self, topic: str, bodies: Sequence[bytes], keys: Sequence[str]) -> float:
        return uvloop.run(self._send(topic, list(zip(bodies, map(str.encode, keys), strict=True))))

    async def _send(self, topic: str, messages: Sequence[tuple[bytes, bytes | None]]) -> float:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.peer.address, acks="all", linger_ms=LINGER_MS, max_batch_size=1 << 17
        ) as producer:
            await producer.partitions_for(topic)
            begun, last = time.perf_counter(), None
            for body, key in messages:
                last = await producer.send(topic, body, key=key)
            await producer.flush()
            assert last is not None
            await last
            return time.perf_counter() - begun

    def _consumer(self, topic: str, group: str, start: str = "earliest") -> Any:
        return aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=self.peer.address, group_id=group, auto_offset_reset=start
        )

    def consume_each(self, topic: str, group: str, count: int) -> float:
        async def work() -> float:
            async with asyncio.timeout(CONSUME_TIMEOUT_S), self._consumer(topic, group) as consumer:
                begun, seen = 0.0, 0
                async for message in consumer:
                    begun = begun or time.perf_counter()
                    seen += 1 if message.value else 0
                    if seen == count:
                        break
                return time.perf_counter() - begun

        return uvloop.run(work())

    def consume_batches(self, topic: str, group: str, count: int) -> float:
        async def work() -> float:
            async with asyncio.timeout(CONSUME_TIMEOUT_S), self._consumer(topic, group) as consumer:
                begun, seen = 0.0, 0
                while seen < count:
                    for messages in (await consumer.getmany(timeout_ms=1_000, max_records=FETCH_COUNT)).values():
                        begun = begun or time.perf_counter()
                        seen += sum(1 for message in messages if message.value)
                return time.perf_counter() - begun

        return uvloop.run(work())

    def round_trips(self, topic: str, group: str, count: int) -> list[float]:
        async def work() -> list[float]:
            times: list[float] = []
            async with (
                asyncio.timeout(CONSUME_TIMEOUT_S),
                aiokafka.AIOKafkaProducer(bootstrap_servers=self.peer.address, acks="all") as producer,
                self._consumer(topic, group, "latest") as consumer,
            ):
                for partition in consumer.assignment():
                    await consumer.position(partition)  # the end is known
                for _ in range(count):
                    await producer.send_and_wait(topic, b"%.9f" % time.perf_counter())
                    message = await consumer.getone()
                    times.append((time.perf_counter() - float(message.value)) * 1000)
            return times

        return uvloop.run(work())

"""redis-py's asyncio client with streams and consumer groups."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import Any

import uvloop
from bench.versus.clients.client import CONSUME_TIMEOUT_S, PythonClient
from redis.asyncio import Redis

PIPELINE = 500
"""Commands of one pipeline: redis-py has no linger, so the application collects."""
FETCH_COUNT = 1_000


class RedisClient(PythonClient):
    name = "Redis Streams"

    @property
    def description(self) -> str:
        return (
            f"redis-py {version('redis')} on uvloop, pipelines of {PIPELINE} XADD, XREADGROUP of {FETCH_COUNT} and XACK"
        )

    def make_topic(self, topic: str) -> None:
        """A stream exists with its first message."""

    def send_each(self, topic: str, body: bytes, count: int) -> float:
        async def work() -> float:
            async with Redis.from_url(self.peer.address) as redis:
                await redis.ping()
                begun = time.perf_counter()
                for start in range(0, count, PIPELINE):
                    pipeline = redis.pipeline(transaction=False)
                    for _ in range(min(PIPELINE, count - start)):
                        pipeline.xadd(topic, {"body": body})
                    await pipeline.execute()
                return time.perf_counter() - begun

        return uvloop.run(work())

    def consume_batches(self, topic: str, group: str, count: int) -> float:
        async def work() -> float:
            async with asyncio.timeout(CONSUME_TIMEOUT_S), Redis.from_url(self.peer.address) as redis:
                await redis.xgroup_create(topic, group, id="0")
                begun, seen = time.perf_counter(), 0
                while seen < count:
                    found: Any = await redis.xreadgroup(group, "bench", {topic: ">"}, count=FETCH_COUNT)
                    [(_, messages)] = found
                    seen += sum(1 for _, fields in messages if fields[b"body"])
                    await redis.xack(topic, group, *(number for number, _ in messages))
                return time.perf_counter() - begun

        return uvloop.run(work())

    def round_trips(self, topic: str, group: str, count: int) -> list[float]:
        async def work() -> list[float]:
            times: list[float] = []
            async with Redis.from_url(self.peer.address) as producing, Redis.from_url(self.peer.address) as receiving:
                await receiving.xgroup_create(topic, group, id="$", mkstream=True)

                async def receive() -> None:
                    found: Any = await receiving.xreadgroup(
                        group, "bench", {topic: ">"}, count=1, block=int(CONSUME_TIMEOUT_S * 1000)
                    )
                    [(_, [(number, fields)])] = found
                    times.append((time.perf_counter() - float(fields[b"body"])) * 1000)
                    await receiving.xack(topic, group, number)

                for _ in range(count):
                    receiver = asyncio.ensure_future(receive())
                    await asyncio.sleep(0)  # the receiver waits before the message is sent
                    await producing.xadd(topic, {"body": b"%.9f" % time.perf_counter()})
                    await receiver
            return times

        return uvloop.run(work())

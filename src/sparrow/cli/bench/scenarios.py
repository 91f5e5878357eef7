"""The scenarios of `sparrow bench`. Each runs for a given time on a topic of its own run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from sparrow import clock
from sparrow.cli.bench.measurement import Measurement
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.queue_bounds import fetch_queue_bounds
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.consume.pull import PullStatus, pull
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.consume.subscription import Subscription
from sparrow.model.message import Message
from sparrow.model.protocol import TOOLS_GROUP
from sparrow.model.queue import QueueRef
from sparrow.wire import record

IN_FLIGHT = 64
BATCH_IN_FLIGHT = 4_096
_LINGER_MS = 2
_PULL_COUNT = 4_096
_PULL_BYTES = 4 << 20
_SAMPLES_MAX = 1_000_000

Scenario = Callable[[Admin, str, bytes, float], Awaitable[Measurement]]


async def send_one_by_one(admin: Admin, topic: str, body: bytes, seconds: float) -> Measurement:
    """Send a message, wait for its acknowledgement, send the next."""
    async with Producer(session=admin.session) as producer:
        return await _send(producer, topic, body, seconds, in_flight=1, scenario="send, one at a time")


async def send_concurrently(admin: Admin, topic: str, body: bytes, seconds: float) -> Measurement:
    """Keep many sends in flight, each in a request of its own."""
    async with Producer(session=admin.session) as producer:
        return await _send(producer, topic, body, seconds, in_flight=IN_FLIGHT, scenario=f"send, {IN_FLIGHT} at a time")


async def send_batches(admin: Admin, topic: str, body: bytes, seconds: float) -> Measurement:
    """Keep many sends in flight, which travel in batches."""
    async with Producer(session=admin.session, linger_ms=_LINGER_MS) as producer:
        return await _send(producer, topic, body, seconds, in_flight=BATCH_IN_FLIGHT, scenario="send, in batches")


async def _send(
    producer: Producer, topic: str, body: bytes, seconds: float, *, in_flight: int, scenario: str
) -> Measurement:
    await producer.send(Message(topic, body))  # connections and routes are not measured
    samples: list[float] = []
    begun = time.perf_counter()
    deadline = begun + seconds
    count = 0

    async def worker() -> None:
        nonlocal count
        now = time.perf_counter()
        while True:  # at least once, however short the time is
            sent = now
            await producer.send(Message(topic, body))
            now = time.perf_counter()
            count += 1
            if len(samples) < _SAMPLES_MAX:
                samples.append((now - sent) * 1000)
            if now >= deadline:
                return

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return Measurement.of(scenario, count, time.perf_counter() - begun, len(body), samples)


async def pull_all(admin: Admin, topic: str, body: bytes, seconds: float) -> Measurement:
    """Read what the other scenarios sent, from all queues at the same time, again and again."""
    bounds = await fetch_queue_bounds(admin.session, [topic])
    subscription = Subscription.of(topic, version_ms=clock.now_ms())
    begun = time.perf_counter()
    deadline = begun + seconds
    count = 0

    async def read(queue: QueueRef) -> None:
        nonlocal count
        offset, end = bounds[queue].first, bounds[queue].end
        while offset < end and (not count or time.perf_counter() < deadline):
            answer = await pull(
                admin.session,
                queue,
                offset,
                group=TOOLS_GROUP,
                subscription=subscription,
                count_max=_PULL_COUNT,
                bytes_max=_PULL_BYTES,
                includes_subscription=True,
            )
            if answer.status is not PullStatus.FOUND:
                return
            count += len(record.decode_all(answer.records))
            offset = answer.next_offset

    has_messages = any(bound.end > bound.first for bound in bounds.values())
    while has_messages and (not count or time.perf_counter() < deadline):
        await asyncio.gather(*map(read, bounds))
    return Measurement.of("pull", count, time.perf_counter() - begun, len(body))


async def send_and_receive(admin: Admin, topic: str, body: bytes, seconds: float) -> Measurement:
    """Send a message, wait until a consumer has it, send the next: the latency from end to end."""
    samples: list[float] = []
    async with Producer(session=admin.session) as producer, Consumer(group=None, session=admin.session) as consumer:
        await consumer.subscribe(topic)
        messages = aiter(consumer)
        await producer.send(Message(topic, body))
        await anext(messages)
        begun = time.perf_counter()
        while (sent := time.perf_counter()) < begun + seconds and len(samples) < _SAMPLES_MAX:
            await producer.send(Message(topic, body))
            await anext(messages)
            samples.append((time.perf_counter() - sent) * 1000)
        elapsed = time.perf_counter() - begun
    return Measurement.of("send and receive", len(samples), elapsed, len(body), samples)


SCENARIOS: dict[str, Scenario] = {
    "send": send_one_by_one,
    "concurrent": send_concurrently,
    "batch": send_batches,
    "pull": pull_all,
    "latency": send_and_receive,
}

"""Sparrow's client against a broker in another process: messages per second, latency, and thousands of idle clients.

Two cores limit the throughput, one for each side; each row shows the rate of one side together with the other.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pyarrow as pa
import uvloop

from _harness import Row, folder_on_disk, is_smoke, report
from broker import broker, cpu_of
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.options import Prefetch
from sparrow.model.errors import Busy
from sparrow.model.message import Message
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand, encode
from sparrow.wire.headers import PullMessage
from sparrow.wire.headers.pull import SUBSCRIPTION_FLAG, SUSPEND_FLAG

BODY = b"x" * 100


async def produce(name_servers: str, topic: str, count: int) -> float:
    """Return messages per second through `send_soon`, all acknowledged."""
    async with Producer(name_servers, linger_ms=2) as producer:
        await producer.send(Message(topic=topic, body=BODY))
        begun = time.perf_counter()
        last = None
        for number in range(count):
            while True:
                try:
                    last = producer.send_soon(Message(topic=topic, body=BODY))
                    break
                except Busy:
                    await asyncio.sleep(0)
            if not number % 512:
                await asyncio.sleep(0)  # read responses: a producer that never yields only fills its buffers
        await producer.flush()
        assert last is not None
        assert last.result().is_ok
        return count / (time.perf_counter() - begun)


async def consume(name_servers: str, topic: str, count: int) -> float:
    """Return messages per second at a handler of batches."""
    prefetch = Prefetch(count_max=20_000, span_max=100_000, pull_count_max=1024, pull_bytes_max=1 << 20)
    async with Consumer(name_servers, group="bench-consumer", prefetch=prefetch) as consumer:
        await consumer.subscribe(topic)
        seen, done = 0, asyncio.Event()
        begun = 0.0

        async def handle(messages: list[Message]) -> None:
            nonlocal seen, begun
            if not seen:
                begun = time.perf_counter()
            seen += len(messages)
            if seen >= count:
                done.set()

        await consumer.start(handle, batch=256)
        await asyncio.wait_for(done.wait(), 120)
        return seen / (time.perf_counter() - begun)


async def tables(name_servers: str, topic: str, count: int) -> tuple[float, float]:
    numbers = pa.array(range(count))
    table = pa.table({"body": pa.array([BODY] * count, pa.binary()), "keys": numbers.cast(pa.string())})
    async with Producer(name_servers) as producer:
        await producer.send(Message(topic=topic, body=BODY))
        begun = time.perf_counter()
        assert await producer.send_table(topic, table) == count
        sent = count / (time.perf_counter() - begun)
    async with Consumer(name_servers, group="bench-tables") as consumer:
        begun = time.perf_counter()
        found = await consumer.read_table(topic, columns=["queue_offset", "keys", "body"])
        assert found.num_rows == count + 1, found.num_rows
        return sent, count / (time.perf_counter() - begun)


async def latency(name_servers: str, topic: str, count: int) -> tuple[float, float]:
    """Return median and 99th percentile in ms from the call of `send` to the handler, one message at a time."""
    times: list[float] = []
    async with (
        Producer(name_servers) as producer,
        Consumer(name_servers, group="bench-latency", consume_from="last") as consumer,
    ):
        await producer.send(Message(topic=topic, body=BODY))
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
            await asyncio.wait_for(arrived.wait(), 10)
            await asyncio.sleep(0.001)
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.99)]


def idle(pid: int, port: int, connections: int, seconds: float) -> tuple[float, float]:
    """Return the broker's memory in MB for idle connections, and its CPU meanwhile in percent of a core."""
    header = PullMessage(
        "bench-idle", "bench-idle", 3, 0, 32, SUBSCRIPTION_FLAG | SUSPEND_FLAG, 0, 60_000, 0, "*", "TAG"
    )
    frame = encode(RemotingCommand(RequestCode.PULL_MESSAGE, 1, ext=headers.write(header)))
    sockets = []
    try:
        for _ in range(connections):
            sockets.append(socket.create_connection(("127.0.0.1", port)))
            sockets[-1].sendall(frame)
        time.sleep(1.0)  # the last requests are being parked
        begun = cpu_of(pid)
        time.sleep(seconds)
        return rss_mb(pid), (cpu_of(pid) - begun) / seconds * 100
    finally:
        for each in sockets:
            each.close()


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("/proc has no RssAnon; this bench needs Linux")


async def make_topic(name_servers: str, topic: str) -> None:
    """Create a topic with a message in one queue; the other queues stay empty."""
    async with Producer(name_servers) as producer:
        await producer.send(Message(topic=topic, body=BODY), selector=lambda queues, _: queues[0])


def _goal(value: float) -> float | None:
    return None if is_smoke() else value


def main() -> None:
    count = 5_000 if is_smoke() else 400_000
    with folder_on_disk() as folder, broker(folder) as (pid, port, name_servers):
        before = rss_mb(pid)
        uvloop.run(make_topic(name_servers, "bench-idle"))
        connections = 100 if is_smoke() else 5_000
        memory, cpu = idle(pid, port, connections, 1 if is_smoke() else 5)
        low, high = uvloop.run(latency(name_servers, "bench-latency", 50 if is_smoke() else 2_000))
        produced = uvloop.run(produce(name_servers, "bench-one", count))
        consumed = uvloop.run(consume(name_servers, "bench-one", count))
        # The best of several rounds: the first ones pay for memory that the machine has not touched before.
        rounds = [
            uvloop.run(tables(name_servers, f"bench-table-{number}", count * 5))
            for number in range(1 if is_smoke() else 3)
        ]
        sent, read = (max(figures) for figures in zip(*rounds, strict=True))
        waiting = f"{connections:,} waiting connections"
        rows = [
            Row("producer with linger", produced, "messages/s", _goal(150_000)),
            Row("consumer, batches to a handler", consumed, "messages/s", _goal(150_000)),
            Row("send_table", sent, "messages/s", _goal(1_000_000)),
            Row("read_table", read, "messages/s", _goal(1_000_000)),
            Row("send to receive, idle: median", low, "ms", _goal(1), at_most=True),
            Row("send to receive, idle: 99 %", high, "ms", _goal(5), at_most=True),
            Row(f"{waiting}: memory of the broker", memory, "MB", _goal(200), at_most=True),
            Row(f"{waiting}: more than before", memory - before, "MB"),
            Row(f"{waiting}: CPU of the broker", cpu, "% of a core", _goal(1), at_most=True),
        ]
    report("client", rows)


if __name__ == "__main__":
    main()

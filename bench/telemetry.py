"""The cost of metrics: for each send, of a scrape with many topics and groups, and of a sample of lag.

Sends: a broker in a process of its own switches its metrics on and off, and one connection sends to it in rounds with
and without them, in turn. Figures are CPU time of the broker for each send: the lower quartile of many short rounds,
which other programs disturb least, and the median. One process for both: two differ by more than is measured.

A scrape is an HTTP request to the endpoint in this process; meanwhile a task measures the CPU time of each turn of the
event loop: other processes do not count. Garbage is not collected then: collections stop a broker with many topics
whether it is scraped or not, and `sparrow_gc_pause_seconds` tells of them.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from _harness import Row, folder_on_disk, is_smoke, report
from broker import IN_FLIGHT, Load, cpu_of, send_frame
from sparrow.broker.context import Broker
from sparrow.broker.server import BrokerServer
from sparrow.client.blocking.loop_thread import new_event_loop
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.settings import BrokerSettings, LogSettings, TelemetrySettings
from sparrow.telemetry.process import ProcessMetrics
from sparrow.telemetry.server import TelemetryServer

SCRAPE_CPU_MS_MAX = 100
TURN_MS_MAX = 10
SEND_PERCENT_MAX = 2.0
SPREAD_PARTS = 5
QUEUES = 8
TOPICS_PER_GROUP = 2


@asynccontextmanager
async def running_broker(folder: Path) -> AsyncIterator[BrokerServer]:
    log = LogSettings(
        segment_bytes=64 << 20, queue_file_entries=1_000, index_slots=1 << 14, index_entries=1 << 16, warm_bytes=0
    )
    telemetry = TelemetrySettings(sample_interval_ms=3_600_000)
    async with BrokerServer(BrokerSettings(port=0), folder, log, telemetry=telemetry) as server:
        yield server


async def fill(broker: Broker, topics: int, groups: int) -> None:
    """Create topics with a few messages in each queue, and groups that lag on some of them."""
    for number in range(topics):
        name = f"topic_{number:04d}"
        await broker.store.catalog.put_topic(Topic(name=name, read_queues=QUEUES, write_queues=QUEUES))
        drafts = [Draft(body=b"x" * 100, properties=b"", born_ms=1) for _ in range(3)]
        for queue in range(QUEUES):
            broker.store.append_nowait(Queue(name, queue), drafts)
        broker.counters.count_send(name, 3 * QUEUES, 300 * QUEUES)
        broker.events.count_special_send(name, name, "", count=1, size_bytes=5_000)
        if number % 50 == 0:
            await asyncio.sleep(0)
    await broker.topics.load()
    for number in range(groups):
        group = f"group_{number:04d}"
        await broker.groups.put(Group(name=group))
        for nth in range(TOPICS_PER_GROUP):
            topic = f"topic_{(number * TOPICS_PER_GROUP + nth) % topics:04d}"
            broker.counters.count_pull(group, topic, 10, 1_000)
            for queue in range(QUEUES):
                broker.store.offsets.commit_nowait(group, Queue(topic, queue), 1)


class TurnWatch:
    """Measures the longest turn of the event loop while it runs."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> TurnWatch:
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _watch(self) -> None:
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s


async def scrape(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 26)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:100]
    return answer


async def scrape_rows(server: BrokerServer, rounds: int) -> list[Row]:
    assert server.metrics is not None
    began_s = time.process_time()
    sample = await server.metrics.sampler.take()
    sample_cpu_ms = (time.process_time() - began_s) * 1000
    async with TurnWatch() as sample_watch:
        await server.metrics.sampler.take()
    costs_ms, turns_ms, answer = [], [], b""
    async with TelemetryServer([server], [server.metrics, ProcessMetrics()], host="127.0.0.1", port=0) as endpoint:
        for _ in range(rounds):
            began_s = time.process_time()
            answer = await scrape(endpoint.address)
            costs_ms.append((time.process_time() - began_s) * 1000)
            gc.disable()
            async with TurnWatch() as watch:
                await scrape(endpoint.address)
            gc.enable()
            turns_ms.append(watch.longest_s * 1000)
    is_small, turn_ms = is_smoke(), statistics.median(turns_ms)
    series = answer.count(b"\n") - answer.count(b"# ")
    assert len(sample.lags) >= 10, "the sample must find the groups"
    return [
        Row("series in a scrape", series, "series"),
        Row("a scrape: CPU", min(costs_ms), "ms", None if is_small else SCRAPE_CPU_MS_MAX, at_most=True),
        Row("a scrape: CPU, median", statistics.median(costs_ms), "ms"),
        Row("a scrape: longest turn of the loop", turn_ms, "ms", None if is_small else TURN_MS_MAX, at_most=True),
        Row("a scrape: longest turn of the loop, most", max(turns_ms), "ms"),
        Row("a sample of lag: CPU", sample_cpu_ms, "ms"),
        Row("a sample of lag: longest turn of the loop", sample_watch.longest_s * 1000, "ms"),
    ]


def run_switching_broker(folder: Path, control: Connection) -> None:
    """Run a broker. It switches its metrics on or off when `control` says so, and stops when `control` is closed."""

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with running_broker(folder) as server:
            assert server.metrics is not None
            meter, process = server.metrics.meter, ProcessMetrics()

            def switch() -> None:
                try:
                    has_metrics = control.recv()
                except EOFError:
                    loop.remove_reader(control.fileno())
                    stop.set()
                    return
                server._serving.meter = meter if has_metrics else None
                process.stop()
                if has_metrics:
                    process.start()
                control.send(sum(each.count for each in meter.latencies.values()))

            loop.add_reader(control.fileno(), switch)
            control.send(server.address.port)
            await stop.wait()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())


@contextmanager
def switching_broker(folder: Path) -> Iterator[tuple[int, int, Connection]]:
    """Run such a broker in a process of its own; yield its pid, its port, and what controls it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_switching_broker, args=(folder, theirs))
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield process.pid, ours.recv(), ours
    finally:
        ours.close()
        process.join(20)


class SendCosts:
    """CPU time of the broker for a send, in rounds with and without metrics, in turn."""

    def __init__(self, pid: int, load: Load, control: Connection) -> None:
        self._pid, self._load, self._control = pid, load, control

    def measure(self, frames: list[bytes], in_flight: int, rounds: int) -> tuple[list[float], list[float]]:
        """Return the figures without and with metrics, in µs."""
        plain: list[float] = []
        measured: list[float] = []
        for number in range(rounds):
            for has_metrics in (False, True) if number % 2 else (True, False):
                (measured if has_metrics else plain).append(self._round(frames, in_flight, has_metrics=has_metrics))
        return plain, measured

    def _round(self, frames: list[bytes], in_flight: int, *, has_metrics: bool) -> float:
        self._control.send(has_metrics)
        counted = self._control.recv()
        began_s = cpu_of(self._pid)
        for start in range(0, len(frames), in_flight):
            self._load.round(frames[start : start + in_flight])
        cost_us = (cpu_of(self._pid) - began_s) / len(frames) * 1e6
        self._control.send(has_metrics)
        assert self._control.recv() - counted == (len(frames) if has_metrics else 0), "metrics are on as asked"
        return cost_us


def send_rows(folder: Path, count: int, rounds: int) -> list[Row]:
    rows = []
    with switching_broker(folder) as (pid, port, control):
        load = Load(port)
        frames = [send_frame(number) for number in range(count)]
        load.round(frames[:1])  # creates the topic
        costs = SendCosts(pid, load, control)
        costs.measure(frames, IN_FLIGHT, 2)
        for name, some, in_flight in (
            ("a send, pipelined", frames, IN_FLIGHT),
            ("a send, one at a time", frames[: count // 4], 1),
        ):
            plain, measured = costs.measure(some, in_flight, rounds)
            rows += _rows_of(name, plain, measured)
    return rows


def _rows_of(name: str, plain: list[float], measured: list[float]) -> list[Row]:
    """Compare the lower quartiles, those of rounds that nothing disturbed; the parts of the rounds show the spread."""
    without_us, with_us = _lower_quartile(plain), _lower_quartile(measured)
    size = max(2, len(plain) // SPREAD_PARTS)
    percents = [
        (_lower_quartile(measured[start : start + size]) / _lower_quartile(plain[start : start + size]) - 1) * 100
        for start in range(0, len(plain) - size + 1, size)
    ]
    goal = None if is_smoke() else SEND_PERCENT_MAX
    return [
        Row(f"{name}: broker CPU without metrics", without_us, "µs"),
        Row(f"{name}: broker CPU without metrics, median", statistics.median(plain), "µs"),
        Row(f"{name}: broker CPU with metrics", with_us, "µs"),
        Row(f"{name}: broker CPU with metrics, median", statistics.median(measured), "µs"),
        Row(f"{name}: metrics", (with_us / without_us - 1) * 100, "%", goal, at_most=True),
        Row(f"{name}: metrics, least of {SPREAD_PARTS} parts", min(percents), "%"),
        Row(f"{name}: metrics, most of {SPREAD_PARTS} parts", max(percents), "%"),
    ]


def _lower_quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


async def measure_scrapes(folder: Path) -> list[Row]:
    topics, groups = (40, 20) if is_smoke() else (1_000, 500)
    async with running_broker(folder) as server:
        await fill(server.broker, topics, groups)
        return await scrape_rows(server, 2 if is_smoke() else 7)


if __name__ == "__main__":
    with folder_on_disk() as scratch:
        found = asyncio.run(measure_scrapes(scratch / "scrape"))
        count, rounds = (1_280, 10) if is_smoke() else (1_280, 200)
        found += send_rows(scratch / "send", count, rounds)
        report("telemetry", found)

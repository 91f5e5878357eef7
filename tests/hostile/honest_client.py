"""A well-behaved client in a process of its own: it sends and consumes all the time, and measures each message.

The parent asks by lines on standard input: `progress N` is answered once N more messages have been received, `report`
once every acknowledged message has, or has not within `LOST_S`. Both answers are JSON lines.

Sends start at a fixed pace, whether earlier ones are acknowledged or not: a freeze delays every message of its time,
and none is left out of the figures.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from tests.support.server_processes import ENVIRONMENT

from sparrow import Message, aio
from sparrow.model.errors import SparrowError
from sparrow.model.message import StoredMessage

INTERVAL_S = 0.01
PENDING_MAX = 5_000
LOST_S = 120.0
ANSWER_S = LOST_S + 60
TOPIC, GROUP = "honest", "honest-readers"


class HonestFigures(msgspec.Struct):
    """The messages that were sent since the last report."""

    acknowledged: int = 0
    failed: int = 0
    """Sends that the producer gave up."""
    lost: int = 0
    """Acknowledged, and not received within `LOST_S`."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    first_failure: str = ""


class HonestClient:
    """The parent's side of the process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def progress(self, messages: int) -> None:
        """Wait until so many more messages have been sent and received."""
        await self._ask(f"progress {messages}")

    async def report(self) -> HonestFigures:
        return msgspec.json.decode(await self._ask("report"), type=HonestFigures)

    async def _ask(self, line: str) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        answer = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_S)
        assert answer, "the honest client has ended"
        return answer


@asynccontextmanager
async def honest_client(name_servers: str) -> AsyncIterator[HonestClient]:
    """Run the client until the end of the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.hostile.honest_client", name_servers),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=ENVIRONMENT,
    )
    try:
        yield HonestClient(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# -- in the child -----------------------------------------------------------------------------------------------------


class _Traffic:
    """Sends, receives, and keeps what the next report needs."""

    def __init__(self) -> None:
        self._sent_at: dict[int, float] = {}
        """When each message was sent, until it is received or failed."""
        self._acknowledged: set[int] = set()
        """Acknowledged messages that are not received yet."""
        self._latencies_s: list[float] = []
        self._figures = HonestFigures()
        self.received = 0

    async def handle(self, message: StoredMessage) -> None:
        number = int(message.body)
        sent_at = self._sent_at.pop(number, None)
        if sent_at is not None:  # else it is a second delivery
            self._latencies_s.append(time.monotonic() - sent_at)
            self._acknowledged.discard(number)
            self.received += 1

    async def send_at_pace(self, producer: aio.Producer) -> None:
        begun, number = time.monotonic(), 0
        tasks: set[asyncio.Task[None]] = set()
        while True:
            if len(tasks) < PENDING_MAX:
                self._sent_at[number] = time.monotonic()
                task = asyncio.create_task(self._send(producer, number))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            number += 1
            await asyncio.sleep(begun + number * INTERVAL_S - time.monotonic())

    async def _send(self, producer: aio.Producer, number: int) -> None:
        try:
            await producer.send(Message(TOPIC, b"%d" % number))
        except SparrowError as error:
            self._sent_at.pop(number, None)
            self._figures.failed += 1
            self._figures.first_failure = self._figures.first_failure or str(error)
        else:
            self._figures.acknowledged += 1
            if number in self._sent_at:
                self._acknowledged.add(number)

    async def report(self) -> HonestFigures:
        missing = set(self._acknowledged)
        deadline = time.monotonic() + LOST_S
        while missing & self._acknowledged and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        figures, self._figures = self._figures, HonestFigures()
        latencies, self._latencies_s = sorted(self._latencies_s), []
        figures.lost = len(missing & self._acknowledged)
        if latencies:
            figures.p50_ms, figures.p99_ms, figures.max_ms = (
                round(latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1000, 1)
                for share in (0.5, 0.99, 1.0)
            )
        return figures


async def _serve_parent(traffic: _Traffic) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode().split():
        if line[0] == "progress":
            goal = traffic.received + int(line[1])
            while traffic.received < goal:
                await asyncio.sleep(0.005)
            answer = b"{}"
        else:
            answer = msgspec.json.encode(await traffic.report())
        print(answer.decode(), flush=True)


async def _run(name_servers: str) -> None:
    traffic = _Traffic()
    async with (
        aio.Producer(name_servers) as producer,
        aio.Consumer(name_servers, group=GROUP, consume_from="first") as consumer,
    ):
        await consumer.subscribe(TOPIC)
        await consumer.start(traffic.handle, workers=8)
        sending = asyncio.create_task(traffic.send_at_pace(producer))
        await _serve_parent(traffic)
        sending.cancel()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))

"""How long the queues of a consumer rest when it leaves its group or another joins, and when its process is killed.

A message is sent to every queue each 10 ms. The gap of a queue is the time from the last message that its old member
handled to the first that its new member handled; a row shows the longest gap of all queues and rounds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from _harness import Row, folder_on_disk, is_smoke, report
from broker import broker
from sparrow import Message, QueueRef
from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.model.message import StoredMessage

QUEUES = 4
SEND_INTERVAL_S = 0.01
PATIENCE_S = 120.0
"""Longer than a queue lock, which is leased for a minute."""

Handled = list[tuple[int, float]]
"""The queue of each handled message, and when (CLOCK_MONOTONIC, which all processes share)."""


class Member:
    """A consumer of the group, here or in another process, and what it has handled."""

    def __init__(self, name_servers: str, topic: str, *, orderly: bool, path: Path | None = None) -> None:
        """Create a member; with a `path`, in a process of its own that records there what it handles."""
        self._name_servers, self._topic, self._orderly, self._path = name_servers, topic, orderly, path
        self._consumer: Consumer | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._handled: Handled = []

    async def join(self) -> None:
        if self._path is None:
            self._consumer = await start_consumer(self._name_servers, self._topic, self._orderly, self._record)
            return
        words = ["--member", self._name_servers, self._topic, "orderly" * self._orderly, str(self._path)]
        self._process = await asyncio.create_subprocess_exec(sys.executable, __file__, *words)

    def _record(self, queue_id: int, moment: float) -> None:
        self._handled.append((queue_id, moment))

    @property
    def handled(self) -> Handled:
        if self._path is None:
            return self._handled
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [(int(queue_id), float(moment)) for queue_id, moment in (line.split() for line in lines)]

    def queues_since(self, moment: float) -> set[int]:
        return {queue_id for queue_id, at in self.handled if at > moment}

    async def leave(self) -> None:
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.close()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()


async def start_consumer(name_servers: str, topic: str, orderly: bool, record) -> Consumer:  # type: ignore[no-untyped-def]
    async def handle(message: StoredMessage) -> None:
        record(message.queue_id, time.monotonic())

    consumer = Consumer(name_servers, group=f"{topic}-members")
    await consumer.open()
    await consumer.subscribe(topic)
    await consumer.start(handle, orderly=orderly)
    return consumer


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def longest_gap(old: Member, new: Member, queues: set[int], since: float) -> float:
    """Return the longest time between the old member's last message of a queue and the new one's first."""
    gaps = []
    for queue_id in queues:
        last = max(at for queue, at in old.handled if queue == queue_id)
        gaps.append(min(at for queue, at in new.handled if queue == queue_id and at > since) - last)
    return max(gaps)


@asynccontextmanager
async def traffic(name_servers: str, topic: str) -> AsyncIterator[None]:
    """Create the topic, and send to each of its queues while the context lasts."""
    async with Admin(name_servers) as admin:
        await admin.create_topic(topic, QUEUES)
    async with Producer(name_servers) as producer:
        broker_name = (await producer.send(Message(topic, "first"))).broker_name

        async def send() -> None:
            while True:
                for queue_id in range(QUEUES):
                    await producer.send(Message(topic, "x"), queue=QueueRef(topic, broker_name, queue_id))
                await asyncio.sleep(SEND_INTERVAL_S)

        sending = asyncio.create_task(send())
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def leaving(name_servers: str, topic: str, *, orderly: bool, path: Path | None = None) -> float:
    """Return the gap when one of two members leaves; with a `path`, when its process is killed."""
    leaver = Member(name_servers, topic, orderly=orderly, path=path)
    stayer = Member(name_servers, topic, orderly=orderly)
    async with traffic(name_servers, topic), AsyncExitStack() as stack:
        for member in (leaver, stayer):
            await member.join()
            stack.push_async_callback(member.leave)
        await until(lambda: shared(leaver, stayer))
        moved, begun = leaver.queues_since(time.monotonic() - 0.2), time.monotonic()
        await leaver.leave()
        await until(lambda: stayer.queues_since(begun) >= moved)
        return longest_gap(leaver, stayer, moved, begun)


async def joining(name_servers: str, topic: str) -> float:
    """Return the gap of the queues that move to a member that joins, in order."""
    first, second = (Member(name_servers, topic, orderly=True) for _ in range(2))
    async with traffic(name_servers, topic), AsyncExitStack() as stack:
        await first.join()
        stack.push_async_callback(first.leave)
        await until(lambda: len(first.queues_since(0)) == QUEUES)
        begun = time.monotonic()
        await second.join()
        stack.push_async_callback(second.leave)
        await until(lambda: shared(first, second))
        return longest_gap(first, second, second.queues_since(begun), begun)


def shared(one: Member, other: Member) -> bool:
    """Return whether the two members have read half of the queues each for a while."""
    since = time.monotonic() - 0.2
    mine, theirs = one.queues_since(since), other.queues_since(since)
    return len(mine) == len(theirs) == QUEUES // 2 and not mine & theirs


async def member(name_servers: str, topic: str, orderly: str, path: str) -> None:
    """Run a member until it is killed."""
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    await start_consumer(
        name_servers, topic, bool(orderly), lambda queue, moment: os.write(file, f"{queue} {moment}\n".encode())
    )
    await asyncio.Event().wait()


def main() -> None:
    rounds = 1 if is_smoke() else 10
    rows = []
    with folder_on_disk() as folder, broker(folder / "data") as (_, _, names):

        def gap(name: str, work, rounds: int, goal: float | None) -> None:  # type: ignore[no-untyped-def]
            worst = max(uvloop.run(work(f"gap-{len(rows)}-{number}")) for number in range(rounds))
            rows.append(Row(name, worst, "s", None if is_smoke() else goal, at_most=True))

        gap("a member closes, in order", lambda topic: leaving(names, topic, orderly=True), rounds, 2)
        gap("a member closes, concurrent", lambda topic: leaving(names, topic, orderly=False), rounds, 2)
        gap("a member joins, in order", lambda topic: joining(names, topic), rounds, 2)
        killed = folder / "killed"
        gap("a member is killed, concurrent", lambda t: leaving(names, t, orderly=False, path=killed), 1, 2)
        if not is_smoke():  # until the lock of the killed member expires, 60 s after it was renewed
            killed = folder / "killed-in-order"
            gap("a member is killed, in order", lambda t: leaving(names, t, orderly=True, path=killed), 1, 62)
    report("rebalance", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        uvloop.run(member(*sys.argv[2:]))
    else:
        main()

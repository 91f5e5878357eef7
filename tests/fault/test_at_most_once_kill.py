"""Consumers and their broker killed under load, with delivery at most once.

No message is passed to a handler twice. Lost is at most what a killed consumer had in hand: a message for each of its
workers, or in order a message of each of its queues; and the same for every consumer when the broker is killed, because
the responses to commits are lost with it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.fault.recording_consumer import ChildOptions, RecordingConsumer
from tests.support.server_processes import ENVIRONMENT, broker_process
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Producer
from sparrow.model.errors import SparrowError
from sparrow.model.message import Message
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings

GROUP, TOPIC = "once", "steps"
QUEUES, WORKERS, CHILDREN = 4, 8, 2
QUEUE_LOCK_MS = 1_500
"""Short, so that the test need not wait a minute for the queues of a killed consumer in order."""


class Children:
    """All consumers, dead or alive."""

    def __init__(self, name_servers: str, folder: Path, *, is_orderly: bool, is_blocking: bool) -> None:
        self._name_servers, self._folder = name_servers, folder
        self._is_orderly, self._is_blocking = is_orderly, is_blocking
        self.all: list[RecordingConsumer] = []

    async def add(self) -> None:
        child = RecordingConsumer(
            ChildOptions(
                self._name_servers,
                str(self._folder / f"child-{len(self.all)}"),
                TOPIC,
                GROUP,
                is_orderly=self._is_orderly,
                is_blocking=self._is_blocking,
                workers=WORKERS,
                consumer={"at_most_once": True, "commit_interval_ms": 200},
            )
        )
        await child.start(ENVIRONMENT)
        self.all.append(child)

    @property
    def living(self) -> list[RecordingConsumer]:
        return [child for child in self.all if child.process.returncode is None]

    def given(self) -> list[tuple[int, int]]:
        return [place for child in self.all for place in child.given()]

    async def end(self, number: signal.Signals) -> None:
        for child in self.living:
            await child.end(number)


async def send_until(producer: Producer, enough: asyncio.Event) -> set[tuple[int, int]]:
    """Send batches to all queues in turn until it is enough; return queue and offset of each message that is stored."""
    sent = set()
    while not enough.is_set():
        results = await producer.send_batch([Message(TOPIC, "x")] * 20)
        sent.update((result.queue_id, result.queue_offset) for result in results)
        await asyncio.sleep(0.02)
    return sent


async def lag(admin: Admin) -> int | None:
    try:
        return (await admin.progress(GROUP)).lag
    except SparrowError:
        return None  # the broker starts


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("store", "is_orderly", "is_blocking", "is_in_smoke"),
    [
        ("log", False, False, True),
        pytest.param("sqlite", True, True, True, marks=pytest.mark.thorough),
        ("log", True, True, False),
        ("sqlite", False, False, False),
    ],
)
async def test_a_kill_repeats_nothing_and_loses_only_what_was_in_hand(
    tmp_path: Path, scale: str, store: str, is_orderly: bool, is_blocking: bool, is_in_smoke: bool
) -> None:
    if scale == "smoke" and not is_in_smoke:
        pytest.skip("`make fault` runs all combinations")
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SPARROW_SEED={seed}")
    rng = random.Random(seed)
    settings = {"store": f"sqlite:///{tmp_path}/messages.db"} if store == "sqlite" else {}
    async with NameServer(NameServerSettings(port=0)) as naming, AsyncExitStack() as stack:
        names = str(naming.address)
        broker = await stack.enter_async_context(
            broker_process("b", tmp_path / "b", names, queue_lock_ms=QUEUE_LOCK_MS, **settings)
        )
        admin = await stack.enter_async_context(Admin(names))
        await admin.create_topic(TOPIC, QUEUES)
        # A retried send may be stored twice, and only the second place is known: so nothing is counted by its body.
        producer = await stack.enter_async_context(Producer(names, retries=1_000, timeout_ms=60_000))
        children = Children(names, tmp_path, is_orderly=is_orderly, is_blocking=is_blocking)
        stack.push_async_callback(children.end, signal.SIGKILL)
        for _ in range(CHILDREN):
            await children.add()
        enough = asyncio.Event()
        sending = asyncio.create_task(send_until(producer, enough))
        events = ["consumer", "broker", "consumer"] * (1 if scale == "smoke" else 10)
        for event in events:
            before = len(set(children.given()))
            await eventually(lambda before=before: len(set(children.given())) > before + 100, within_s=60)
            await asyncio.sleep(rng.uniform(0, 0.3))
            if event == "broker":
                await broker.kill()
                await broker.start()
            else:
                await rng.choice(children.living).end(signal.SIGKILL)
                await children.add()
        enough.set()
        sent = await sending
        async with asyncio.timeout(120):
            while await lag(admin) != 0:
                await asyncio.sleep(0.05)
        await children.end(signal.SIGTERM)  # running handlers finish
    given = children.given()
    twice = [place for place, count in Counter(given).items() if count > 1]
    assert not twice, (seed, f"{len(twice)} messages were delivered twice", sorted(twice)[:10])
    lost = sent - set(given)
    in_hand = QUEUES if is_orderly else WORKERS
    bound = in_hand * events.count("consumer") + in_hand * CHILDREN * events.count("broker")
    print(f"{len(sent)} sent, {len(lost)} lost, at most {bound} may be; {events.count('consumer')} consumers killed")
    assert len(lost) <= bound, (seed, len(lost), bound)

"""How long a queue rests when its ordered consumer leaves: from its last message there to the first at its successor.

After `close` the lock of the queue is free, and the successor takes it at once. After a kill it waits until the lock
expires at the broker, and tries again every second.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.fault.recording_consumer import ChildOptions, RecordingConsumer
from tests.support.server_processes import ENVIRONMENT, broker_process
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Producer
from sparrow.model.message import Message
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings
from sparrow.wire.bodies import QueueRef

GROUP, TOPIC, QUEUES = "readers", "T", 4
QUEUE_LOCK_MS = 4_000
"""Long enough to notice a successor that does not wait for it; RocketMQ's is a minute."""
LONGEST_GAP_S = {"smoke": 5.0, "full": 2.0}
"""RocketMQ's clients try again after 20 s; the short form shares its machine with other tests."""


async def keep_sending(producer: Producer) -> None:
    while True:
        for queue_id in range(QUEUES):
            await producer.send(Message(TOPIC, "x"), queue=QueueRef(TOPIC, "b", queue_id))
        await asyncio.sleep(0.01)


def queues_after(child: RecordingConsumer, moment: float) -> set[int]:
    return {record.queue_id for record in child.look() if record.moment > moment}


def last_moment(child: RecordingConsumer) -> float:
    return max((record.moment for record in child.look()), default=0.0)


def longest_gap(old: RecordingConsumer, new: RecordingConsumer, queues: set[int]) -> float:
    """Return the longest time without a message of a queue, from one consumer to the next."""
    gaps = []
    for queue_id in queues:
        last = max(record.moment for record in old.look() if record.queue_id == queue_id)
        gaps.append(min(each.moment for each in new.look() if each.queue_id == queue_id and each.moment > last) - last)
    return max(gaps)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_killed", [False, True], ids=["close", "kill"])
async def test_the_successor_continues_soon_after_close_and_after_a_kill_when_the_lock_has_expired(
    tmp_path: Path, is_killed: bool, scale: str
) -> None:
    async with NameServer(NameServerSettings(port=0)) as naming, AsyncExitStack() as stack:
        names = str(naming.address)
        await stack.enter_async_context(broker_process("b", tmp_path / "b", names, queue_lock_ms=QUEUE_LOCK_MS))
        admin = await stack.enter_async_context(Admin(names))
        await admin.create_topic(TOPIC, QUEUES)
        producer = await stack.enter_async_context(Producer(names))
        sending = asyncio.create_task(keep_sending(producer))
        stack.callback(sending.cancel)
        children = [
            RecordingConsumer(ChildOptions(names, str(tmp_path / name), TOPIC, GROUP, is_orderly=True, handling_s=0))
            for name in ("first", "second")
        ]
        first, second = children
        for child in children:
            await child.start(ENVIRONMENT)
            stack.push_async_callback(child.end, signal.SIGKILL)
            await eventually(child.look, within_s=30)

        def is_shared() -> bool:
            shares = [queues_after(child, last_moment(first) - 0.5) for child in children]
            return [len(share) for share in shares] == [QUEUES // 2] * 2 and not shares[0] & shares[1]

        await eventually(is_shared, within_s=30)  # the second has taken its queues from the first, which still runs
        taken = queues_after(second, 0)
        moved = {0, 1, 2, 3} - taken
        joining_s = longest_gap(first, second, taken)
        await first.end(signal.SIGKILL if is_killed else signal.SIGTERM)
        left = last_moment(first)
        await eventually(lambda: queues_after(second, left) >= moved, within_s=30)
        leaving_s = longest_gap(first, second, moved)
    print(f"joining {joining_s:.2f} s, {'killed' if is_killed else 'closed'} {leaving_s:.2f} s")
    assert joining_s < LONGEST_GAP_S[scale]
    assert leaving_s < LONGEST_GAP_S[scale] + (QUEUE_LOCK_MS / 1000 if is_killed else 0)


@pytest.mark.timeout(120)
async def test_a_killed_consumer_that_is_started_with_the_same_instance_name_need_not_wait_for_its_locks(
    tmp_path: Path,
) -> None:
    async with NameServer(NameServerSettings(port=0)) as naming, AsyncExitStack() as stack:
        names = str(naming.address)
        await stack.enter_async_context(broker_process("b", tmp_path / "b", names))  # locks are leased for a minute
        producer = await stack.enter_async_context(Producer(names))
        for name in ("before", "after"):
            await producer.send(Message(TOPIC, name))
            options = ChildOptions(names, str(tmp_path / name), TOPIC, GROUP, is_orderly=True)
            options.consumer = {"instance_name": "worker-1", "commit_interval_ms": 100}
            child = RecordingConsumer(options)
            await child.start(ENVIRONMENT)
            stack.push_async_callback(child.end, signal.SIGKILL)
            await eventually(child.given, within_s=30)
            await child.end(signal.SIGKILL)

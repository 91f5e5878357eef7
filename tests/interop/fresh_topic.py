"""A topic for tests of Sparrow's client, usually on Apache's broker."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tests.interop.platforms import Platform
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.model.message import Message, StoredMessage
from sparrow.model.send_result import SendResult
from sparrow.wire.bodies import QueueRef

QUEUES = 4
TIMEOUT_S = 30.0
_LOOK_S = 0.01


class FreshTopic(NamedTuple):
    """A new topic, and a group without committed offsets."""

    platform: Platform
    topic: str
    group: str

    @property
    def name_servers(self) -> str:
        return self.platform.name_server

    def producer(self, **options: Any) -> Producer:
        # The first send to a JVM that has just started is slow.
        return Producer(self.name_servers, **{"timeout_ms": 10_000} | options)

    def consumer(self, group: str | None = None, **options: Any) -> Consumer:
        return Consumer(self.name_servers, group=group or self.group, **{"timeout_ms": 10_000} | options)

    def message(
        self, body: str, *, tags: str | None = None, keys: str | Iterable[str] = (), **properties: str
    ) -> Message:
        return Message(self.topic, body, tags=tags, keys=keys, properties=properties)

    def queue(self, number: int) -> QueueRef:
        return QueueRef(self.topic, self.platform.broker_name, number)

    @property
    def queues(self) -> list[QueueRef]:
        return [self.queue(number) for number in range(QUEUES)]

    async def send_all(self, bodies: Iterable[str], queue_id: int | None = None, **said: Any) -> list[SendResult]:
        """Send messages sequentially, to one queue or to all in turn."""
        queue = None if queue_id is None else self.queue(queue_id)
        async with self.producer() as producer:
            return [await producer.send(self.message(body, **said), queue=queue) for body in bodies]

    async def wait_until_readable(self, count: int) -> None:
        """Wait until consumers can read this many messages: Apache's brokers build consume queues later."""
        async with Admin(self.name_servers) as admin, asyncio.timeout(TIMEOUT_S):
            while sum(bounds.end for bounds in (await admin.topic_bounds(self.topic)).values()) < count:
                await asyncio.sleep(_LOOK_S)

    async def wait_until_caught_up(self, consumer: Consumer) -> None:
        """Wait until the group has no lag. On Apache's brokers a concurrent pull may set the committed offset back a
        little."""
        async with Admin(self.name_servers) as admin, asyncio.timeout(TIMEOUT_S):
            await consumer.commit()
            while (await admin.progress(self.group, self.topic)).lag:
                await consumer.commit()

    async def read_all(self, count: int) -> list[StoredMessage]:
        """Return all messages of the topic, which must be this many, read by a separate group."""
        async with self.consumer(f"{self.group}_all") as consumer:
            await consumer.subscribe(self.topic)
            return await poll_exactly(consumer, count)


async def poll_exactly(consumer: Consumer, count: int) -> list[StoredMessage]:
    """Return exactly this many messages; they are in progress until the next poll."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            found += await consumer.poll(count)
    assert len(found) == count
    return found


def numbered_bodies(count: int, *, start: int = 0) -> list[str]:
    return [f"message {number}" for number in range(start, start + count)]


def position_of(at: SendResult | StoredMessage) -> tuple[int, int]:
    return at.queue_id, at.queue_offset


def result_ids(results: Sequence[SendResult]) -> dict[tuple[int, int], str]:
    """Return the ids in the send results, by place."""
    return {position_of(result): result.message_id for result in results}


def stored_ids(messages: Sequence[StoredMessage]) -> dict[tuple[int, int], str | None]:
    """Return the ids of the stored messages, by place."""
    return {position_of(message): message.unique_key for message in messages}


async def send_ten_and_time_sixth(fresh_topic: FreshTopic) -> int:
    """Store ten messages in queue 0; return the store time of the sixth, which no other message shares.

    For any other time RocketMQ 4 returns a neighbour: the nearest one, and any of equally near ones.
    """
    await fresh_topic.send_all(numbered_bodies(5), queue_id=0)
    await _wait_for_clock()
    [sixth] = await fresh_topic.send_all(numbered_bodies(1, start=5), queue_id=0)
    await _wait_for_clock()
    await fresh_topic.send_all(numbered_bodies(4, start=6), queue_id=0)
    await fresh_topic.wait_until_readable(10)
    async with Admin(fresh_topic.name_servers) as admin:
        return (await admin.find_by_id(sixth.offset_id)).store_ms


async def _wait_for_clock() -> None:
    start = datetime.now(UTC)
    await eventually(lambda: (datetime.now(UTC) - start).total_seconds() > 0.01)


async def wait_for_queue_counts(members: Sequence[Consumer], topic: str, counts: Sequence[int]) -> None:
    """Wait until the members have these numbers of queues, and no queue twice."""

    def parts() -> list[set[QueueRef]]:
        return [{queue for queue in member.queues if queue.topic == topic} for member in members]

    await eventually(lambda: [len(part) for part in parts()] == list(counts), within_s=TIMEOUT_S)
    assert len(set().union(*parts())) == sum(counts), "a queue has two readers"

"""Traffic of every kind, so that a scrape of the broker has every metric that messages cause."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sparrow import DeadLetter, Message, RetryLater, StoredMessage, TransactionState, aio
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.model.topic import Group

GROUP = "metric_readers"
POP_GROUP = "metric_poppers"
VISIBLE = 14
"""Messages that consumers see before the delayed one is due."""
WITHIN_S = 90


@asynccontextmanager
async def traffic(name_servers: str, topic: str) -> AsyncIterator[None]:
    """Send normal, ordered, delayed and transactional messages; pull, pop, acknowledge and send back.

    The clients stay connected during the block. One popped message stays in flight, one half message open.
    """
    async with aio.Admin(name_servers) as admin:
        await admin.create_topic(topic, 2)
        await admin.create_group(Group(name=GROUP))
    async with (
        aio.Consumer(name_servers, group=GROUP, consume_from="first") as consumer,
        aio.PopConsumer(name_servers, group=POP_GROUP) as popper,
        aio.Producer(name_servers, group="metric_writers") as producer,
    ):
        await _send(producer, topic)
        await _consume(consumer, topic)
        receipts = await popper.receive(topic, count_max=4)
        assert len(receipts) > 1, "two messages must be popped at once"
        await popper.ack(receipts[:-1])
        yield


async def _send(producer: aio.Producer, topic: str) -> None:
    for number in range(8):
        await producer.send(Message(topic, b"x" * 100, tags="normal", keys=str(number)))
    await producer.send_batch([Message(topic, b"y" * 2000) for _ in range(4)])
    await producer.send(Message(topic, b"ordered", properties={PROPERTY_SHARDING_KEY: "a"}))
    await producer.send(Message(topic, b"later"), delay_level=5)
    for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
        sent = await producer.begin_transaction(Message(topic, b"half"))
        await producer.end_transaction(sent, state)
    await producer.begin_transaction(Message(topic, b"open half"))


async def _consume(consumer: aio.Consumer, topic: str) -> None:
    """Read everything, send one message back and make one a dead letter."""
    seen: list[StoredMessage] = []
    is_done = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        seen.append(message)
        if len(seen) >= VISIBLE:
            is_done.set()
        if len(seen) == 1:
            raise RetryLater(5)
        if len(seen) == 2:
            raise DeadLetter()

    await consumer.subscribe(topic)
    await consumer.start(handle)
    async with asyncio.timeout(WITHIN_S):
        await is_done.wait()

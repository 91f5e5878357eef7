"""Loads of every kind of message on a replica set, and what their clients were told.

Each load sends until it is stopped, and repeats a send until it is answered. `test_failover_kinds` kills leaders
meanwhile, and compares what the clients were told with what the set has stored and delivered.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Protocol

from tests.fault import test_order_kill
from tests.support.wait import eventually

from sparrow.client.aio import Consumer, PopConsumer, Producer
from sparrow.model import Message, StoredMessage
from sparrow.model.errors import SparrowError
from sparrow.model.transaction import TransactionState

PATIENCE_S = 120.0
PAUSE_S = 0.02
"""Between two sends of one client: at full speed the backlog would only prolong the end of the test."""
QUEUES = 4
LEVEL, LEVEL_MS = 1, 1_000
"""A delay level, and its delay."""
INVISIBLE_MS = 3_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def patient(name_servers: str, **options: Any) -> Producer:
    """Return a producer that repeats a send until it is answered."""
    return Producer(name_servers, retries=10_000, timeout_ms=60_000, **options)


async def stored(name_servers: str, topic: str, *columns: str) -> list[dict[str, Any]]:
    """Return the rows of a topic; none while no replica leads."""
    try:
        async with Consumer(name_servers, group="checker") as reader:
            return (await reader.read_table(topic, columns=("body", *columns))).to_pylist()
    except SparrowError:
        return []


class Load(Protocol):
    """Clients that send, and receive."""

    @property
    def acknowledged(self) -> int:
        """How many sends were answered."""
        ...

    async def start(self, name_servers: str) -> None:
        """Begin to send."""
        ...

    async def settle(self) -> None:
        """Send no more, and wait until everything that was promised has arrived."""
        ...

    async def close(self) -> None: ...


class SendingTasks:
    """Tasks that send until they are stopped; one that ends by itself has failed."""

    def __init__(self, *work: Coroutine[Any, Any, None]) -> None:
        self._tasks = [asyncio.create_task(one) for one in work]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        failed = [each for each in ended if not isinstance(each, asyncio.CancelledError)]
        assert not failed, f"a load ended unexpectedly: {failed}"


class OrderedLoad:
    """Sends in order for each key, consumed in order by two members, of which one leaves in the end."""

    KEYS = 6

    def __init__(self) -> None:
        self.told: dict[str, int] = {}
        """The number of the last acknowledged message of each key."""
        self.history = test_order_kill.History()

    @property
    def acknowledged(self) -> int:
        return sum(self.told.values())

    async def start(self, name_servers: str) -> None:
        self._producer = patient(name_servers)
        await self._producer.open()
        self.members = test_order_kill.Members(name_servers, self.history)
        await self.members.join()
        await self.members.join()
        self._sending = SendingTasks(
            *(test_order_kill.sends(self._producer, f"key {number}", self.told) for number in range(self.KEYS))
        )

    async def settle(self) -> None:
        # Its queues, with their locks, must move to the other member: at a leader that did not grant them at first.
        await self.members.leave("member 1")
        seen = dict(self.history.newest)
        await eventually(
            lambda: self.history.too_early or all(self.history.newest[key] > seen[key] for key in seen),
            within_s=PATIENCE_S,
        )
        await self._sending.stop()
        await eventually(lambda: self.history.too_early or self.history.holds(self.told), within_s=PATIENCE_S)

    async def close(self) -> None:
        await self.members.close()
        await self._producer.close()


class DelayedLoad:
    """Delayed messages, with a time of delivery or a delay level."""

    TOPIC = "Late"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.due_ms: dict[str, int] = {}
        """Acknowledged messages, and the earliest time of their delivery."""
        self.delivered: list[tuple[str, int]] = []
        """Bodies, and when they were delivered."""

    @property
    def acknowledged(self) -> int:
        return len(self.due_ms)

    async def start(self, name_servers: str) -> None:
        self._name_servers, self._producer = name_servers, patient(name_servers)
        await self._producer.open()
        self._sending = SendingTasks(self._send("a"), self._send("b"))

    async def _send(self, name: str) -> None:
        for number in itertools.count():
            body = f"{name} {number}"
            if self._rng.random() < 0.3:
                due_ms = now_ms() + LEVEL_MS
                await self._producer.send(Message(self.TOPIC, body), delay_level=LEVEL)
            else:
                due_ms = now_ms() + self._rng.randrange(20, 3_000)
                await self._producer.send(Message(self.TOPIC, body), deliver_at=due_ms)
            self.due_ms[body] = due_ms
            await asyncio.sleep(PAUSE_S)

    async def settle(self) -> None:
        await self._sending.stop()
        async with asyncio.timeout(PATIENCE_S):
            while not self.due_ms.keys() <= {body for body, _ in self.delivered}:
                rows = await stored(self._name_servers, self.TOPIC, "store_timestamp")
                self.delivered = [
                    (row["body"].decode(), int(row["store_timestamp"].timestamp() * 1000)) for row in rows
                ]
                await asyncio.sleep(0.2)

    async def close(self) -> None:
        await self._producer.close()


class TransactionLoad:
    """Transactions that are committed, rolled back, or left to check-backs, which decide after the first fail-over."""

    TOPIC = "Paid"
    KINDS = ("commit", "roll back", "commit when asked", "roll back when asked")

    def __init__(self) -> None:
        self.begun: set[str] = set()
        """Acknowledged half messages."""
        self.checks: Counter[str] = Counter()
        self.may_decide = False
        """Whether check-backs get an answer."""
        self.delivered: Counter[str] = Counter()

    @property
    def acknowledged(self) -> int:
        return len(self.begun)

    @property
    def committed(self) -> set[str]:
        """Half messages that must be delivered; the others must never be."""
        return {body for body in self.begun if body.startswith("commit")}

    async def start(self, name_servers: str) -> None:
        self._name_servers = name_servers
        self._producer = patient(name_servers, group="payers", transaction_checker=self._check)
        await self._producer.open()
        self._sending = SendingTasks(*(self._send(kind) for kind in self.KINDS))

    async def _send(self, kind: str) -> None:
        for number in itertools.count():
            body = f"{kind} {number}"
            sent = await self._producer.begin_transaction(Message(self.TOPIC, body))
            self.begun.add(body)
            state = TransactionState.UNKNOWN
            if not kind.endswith("asked"):
                state = TransactionState.COMMIT if kind == "commit" else TransactionState.ROLLBACK
            await self._producer.end_transaction(sent, state)
            await asyncio.sleep(PAUSE_S)

    def _check(self, message: StoredMessage) -> TransactionState:
        body = message.body.decode()
        self.checks[body] += 1
        if not self.may_decide:
            return TransactionState.UNKNOWN
        return TransactionState.COMMIT if body.startswith("commit") else TransactionState.ROLLBACK

    async def settle(self) -> None:
        await self._sending.stop()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (self.committed <= self.delivered.keys() and not self._not_asked_about()):
                    rows = await stored(self._name_servers, self.TOPIC)
                    self.delivered = Counter(row["body"].decode() for row in rows)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            missing = sorted(self.committed - self.delivered.keys())
            raise AssertionError(f"not delivered: {missing}; not asked about: {self._not_asked_about()}") from None

    def _not_asked_about(self) -> list[str]:
        return sorted(body for body in self.begun if body.startswith("roll back when") and not self.checks[body])

    async def close(self) -> None:
        await self._producer.close()


class PoppedLoad:
    """Idempotent sends, popped and acknowledged by two consumers. Now and then a consumer forgets to acknowledge."""

    TOPIC = "Orders"
    FORGOTTEN = 10
    """The first delivery of every message whose number this divides is not acknowledged."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.seen: Counter[str] = Counter()
        self.acknowledged_s: dict[str, float] = {}
        """When a message was first acknowledged, by a monotonic clock."""
        self.seen_after: list[tuple[str, float]] = []
        """Messages that came again after their acknowledgement, and when they were acknowledged."""
        self.stored: Counter[str] = Counter()

    @property
    def acknowledged(self) -> int:
        return min(len(self.sent), len(self.acknowledged_s))

    async def start(self, name_servers: str) -> None:
        self._name_servers = name_servers
        self._producers = [patient(name_servers, idempotent=True) for _ in range(3)]
        self._consumers = [PopConsumer(name_servers, group="pickers", invisible_ms=INVISIBLE_MS) for _ in range(2)]
        for client in (*self._producers, *self._consumers):
            await client.open()
        self._sending = SendingTasks(*(self._send(number) for number in range(len(self._producers))))
        self._popping = SendingTasks(*(self._pop(consumer) for consumer in self._consumers))

    async def _send(self, producer: int) -> None:
        for number in itertools.count():
            body = f"{producer} {number}"
            await self._producers[producer].send(Message(self.TOPIC, body))
            self.sent.add(body)
            await asyncio.sleep(PAUSE_S)

    async def _pop(self, consumer: PopConsumer) -> None:
        while True:
            try:
                receipts = await consumer.receive(self.TOPIC, wait_ms=500)
            except SparrowError:  # no replica leads
                await asyncio.sleep(0.05)
                continue
            for receipt in receipts:
                body = receipt.message.body.decode()
                self.seen[body] += 1
                if body in self.acknowledged_s:
                    self.seen_after.append((body, self.acknowledged_s[body]))
                if self.seen[body] == 1 and int(body.split()[1]) % self.FORGOTTEN == 0:
                    continue
                try:
                    await consumer.ack(receipt)
                    self.acknowledged_s.setdefault(body, time.monotonic())
                except SparrowError:  # the message comes again
                    pass

    async def settle(self) -> None:
        await self._sending.stop()
        await eventually(lambda: self.sent <= self.acknowledged_s.keys(), within_s=PATIENCE_S)
        await self._popping.stop()
        async with asyncio.timeout(PATIENCE_S):
            while not self.sent <= self.stored.keys():
                self.stored = Counter(row["body"].decode() for row in await stored(self._name_servers, self.TOPIC))

    async def close(self) -> None:
        for client in (*self._producers, *self._consumers):
            await client.close()


class PushedLoad:
    """Plain sends, consumed by a push consumer; the pauses of both tell how soon each found the new leader."""

    TOPIC, GROUP = "News", "readers"

    def __init__(self) -> None:
        self.sent_s: dict[str, float] = {}
        self.received_s: dict[str, float] = {}
        """When a message first arrived."""

    @property
    def acknowledged(self) -> int:
        return len(self.sent_s)

    async def start(self, name_servers: str) -> None:
        self._producer = patient(name_servers)
        await self._producer.open()
        self._consumer = Consumer(name_servers, group=self.GROUP, commit_interval_ms=200)
        await self._consumer.subscribe(self.TOPIC)
        await self._consumer.start(self._handle)
        self._sending = SendingTasks(self._send())

    async def _send(self) -> None:
        for number in itertools.count():
            await self._producer.send(Message(self.TOPIC, str(number)))
            self.sent_s[str(number)] = time.monotonic()
            await asyncio.sleep(PAUSE_S)

    async def _handle(self, message: StoredMessage) -> None:
        self.received_s.setdefault(message.body.decode(), time.monotonic())

    def longest_pauses_s(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Return the longest time without an acknowledged send, and without a received message, in a period."""

        def longest(times: dict[str, float]) -> float:
            within = sorted(at for at in times.values() if begin_s <= at <= end_s)
            return max((later - earlier for earlier, later in itertools.pairwise([begin_s, *within, end_s])))

        return longest(self.sent_s), longest(self.received_s)

    async def settle(self) -> None:
        await self._sending.stop()
        await eventually(lambda: self.sent_s.keys() <= self.received_s.keys(), within_s=PATIENCE_S)

    async def close(self) -> None:
        await self._consumer.close()
        await self._producer.close()


TOPICS = {
    test_order_kill.TOPIC: test_order_kill.QUEUES,
    **{load.TOPIC: QUEUES for load in (DelayedLoad, TransactionLoad, PoppedLoad, PushedLoad)},
}
"""The topics of all loads, and their queues."""

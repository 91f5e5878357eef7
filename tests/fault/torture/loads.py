"""Loads of every kind of message. They write everything to the history, and judge nothing.

Producers repeat a message until it is acknowledged, except half messages: a new one has a new id. Consumers run until
the end of the run.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fault.torture.history import (
    Acknowledged,
    Decided,
    Failed,
    HistoryFile,
    Popped,
    Received,
    Sent,
    format_place,
    make_body,
    now_ms,
    read_body,
)

from sparrow import RetryLater
from sparrow.client.aio import Consumer, PopConsumer, Producer
from sparrow.model import Message, StoredMessage
from sparrow.model.errors import SparrowError
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.model.send_result import SendResult
from sparrow.model.transaction import TransactionState

QUEUES = 4
SEND_TIMEOUT_MS = 10_000
LEVEL, LEVEL_MS = 1, 1_000
"""A delay level, and its delay."""
DELAY_MS_MAX = 3_000
INVISIBLE_MS = 3_000
FAILURE_SHARE = 0.02
"""How many messages a handler fails to handle at first, or a pop consumer forgets to acknowledge."""


class Load(ABC):
    """Producers that send to a topic, and consumers that receive from it."""

    topic: str

    def __init__(
        self,
        name_servers: str,
        history: HistoryFile,
        rng: random.Random,
        *,
        producers: int,
        pause_s: float,
        stay_s: float,
    ) -> None:
        """Create a load. `pause_s`, `stay_s`: mean times between two sends, and until a push consumer is replaced."""
        self._name_servers, self._history, self._rng = name_servers, history, rng
        self._producer_count, self._pause_s, self._stay_s = producers, pause_s, stay_s
        self._is_over = asyncio.Event()
        self._clients: list[Producer | Consumer | PopConsumer] = []
        self._sending: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []
        self._moving: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._start_consumers()
        for number in range(self._producer_count):
            producer = self._make_producer()
            self._clients.append(producer)
            await producer.open()
            self._sending.append(asyncio.create_task(self._send_always(producer, f"p{number}")))

    def _make_producer(self) -> Producer:
        return Producer(self._name_servers, retries=10_000, timeout_ms=SEND_TIMEOUT_MS)

    async def _send_always(self, producer: Producer, key: str) -> None:
        for number in itertools.count(1):
            await self._send(producer, key, number)
            await asyncio.sleep(self._rng.uniform(0, 2 * self._pause_s))

    async def stop_sending(self) -> None:
        await _cancel(self._sending)

    async def close(self) -> None:
        self._is_over.set()
        await asyncio.gather(*self._moving)  # not cancelled: a member that is half closed would keep its queues
        await _cancel(self._sending + self._receiving)
        await asyncio.gather(*(client.close() for client in self._clients), return_exceptions=True)

    def assert_alive(self) -> None:
        """Fail if a client has ended by itself."""
        for task in self._sending + self._receiving + self._moving:
            if task.done() and not task.cancelled():
                task.result()
                raise AssertionError(f"a client of {self.topic} has ended")

    # -- what most loads do -------------------------------------------------------------------------------------------

    async def _start_consumers(self) -> None:
        await self._push()

    @abstractmethod
    async def _send(self, producer: Producer, key: str, number: int) -> None: ...

    async def _push(self, *, orderly: bool = False) -> None:
        """Start two members of a group, which are replaced by others now and then."""
        self._moving = [asyncio.create_task(self._be_member(orderly=orderly)) for _ in range(2)]

    async def _be_member(self, *, orderly: bool) -> None:
        while not self._is_over.is_set():
            async with Consumer(self._name_servers, group=f"{self.topic}-readers", commit_interval_ms=500) as consumer:
                await consumer.subscribe(self.topic)
                await consumer.start(self._handle_in_order if orderly else self._handle, orderly=orderly)
                try:
                    async with asyncio.timeout(self._rng.uniform(0, 2 * self._stay_s)):
                        await self._is_over.wait()
                except TimeoutError:
                    pass

    async def _handle(self, message: StoredMessage) -> None:
        self._write_received(message)
        if message.reconsume_times == 0 and self._rng.random() < FAILURE_SHARE:
            raise RetryLater(LEVEL)

    async def _handle_in_order(self, message: StoredMessage) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.004))  # varies, so that concurrent handling would break the order
        self._write_received(message)

    def _write_received(self, message: StoredMessage) -> None:
        name, is_intact = read_body(message.body)
        is_first = message.reconsume_times == 0  # a retried message comes from a queue of its group
        place = format_place(message.topic, message.queue_id, message.queue_offset) if is_first else None
        self._history.write(Received(name, now_ms(), place, is_intact))

    def _message(self, name: str, **properties: str) -> Message:
        return Message(self.topic, make_body(name), properties=properties)

    async def _repeat(self, name: str, send: Callable[[], Awaitable[SendResult]], *, is_placed: bool = True) -> None:
        """Send until it is acknowledged."""
        while True:
            try:
                result = await send()
            except SparrowError as error:
                self._history.write(Failed(name, now_ms(), type(error).__name__))
                await asyncio.sleep(0.05)
                continue
            assert result.is_ok, result
            place = format_place(self.topic, result.queue_id, result.queue_offset) if is_placed else None
            self._history.write(Acknowledged(name, now_ms(), place))
            return


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [each for each in ended if isinstance(each, Exception)]
    assert not failed, f"a client ended unexpectedly: {failed}"


class PlainLoad(Load):
    """Plain sends, received by push consumers, which fail now and then and get the message again."""

    topic = "plain"

    async def _send(self, producer: Producer, key: str, number: int) -> None:
        name = f"plain/{key}/{number}"
        message = self._message(name)
        self._history.write(Sent(name, now_ms()))
        await self._repeat(name, lambda: producer.send(message))


class OrderedLoad(Load):
    """Sends in order for each key, received in order by two members of a group."""

    topic = "ordered"

    async def _start_consumers(self) -> None:
        await self._push(orderly=True)

    async def _send(self, producer: Producer, key: str, number: int) -> None:
        name = f"ordered/{key}/{number}"
        message = self._message(name, **{PROPERTY_SHARDING_KEY: key})
        self._history.write(Sent(name, now_ms(), key, number))
        await self._repeat(name, lambda: producer.send(message))


class DelayedLoad(Load):
    """Messages with a time of delivery, or with a delay level."""

    topic = "delayed"

    async def _send(self, producer: Producer, key: str, number: int) -> None:
        name = f"delayed/{key}/{number}"
        message, at_ms = self._message(name), now_ms()
        if self._rng.random() < 0.3:
            self._history.write(Sent(name, at_ms, delay_ms=LEVEL_MS))
            await self._repeat(name, lambda: producer.send(message, delay_level=LEVEL), is_placed=False)
        else:
            due_ms = at_ms + self._rng.randrange(20, DELAY_MS_MAX)
            self._history.write(Sent(name, at_ms, due_ms=due_ms))
            await self._repeat(name, lambda: producer.send(message, deliver_at=due_ms), is_placed=False)


class TransactionLoad(Load):
    """Transactions that their producer commits, rolls back, or leaves to the check-backs of the broker."""

    topic = "paid"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._decisions: dict[str, TransactionState] = {}
        self._is_ending = False

    async def stop_sending(self) -> None:
        # What is decided from now on may be committed after the consumers have gone.
        self._is_ending = True
        await super().stop_sending()

    def _make_producer(self) -> Producer:
        return Producer(
            self._name_servers,
            group="payers",
            retries=10_000,
            timeout_ms=SEND_TIMEOUT_MS,
            transaction_checker=self._check,
        )

    async def _send(self, producer: Producer, key: str, number: int) -> None:
        name = f"paid/{key}/{number}"
        self._history.write(Sent(name, now_ms(), is_half=True))
        try:
            sent = await producer.begin_transaction(self._message(name))
        except SparrowError as error:  # perhaps it is stored: then it is rolled back when the broker asks
            self._history.write(Failed(name, now_ms(), type(error).__name__))
            self._decide(name, commits=False)
            return
        self._history.write(Acknowledged(name, now_ms()))
        state = TransactionState.UNKNOWN
        if self._rng.random() < 0.8:
            state = self._decide(name, commits=self._rng.random() < 0.7)
        try:
            await producer.end_transaction(sent, state)
        except SparrowError as error:  # the broker asks
            self._history.write(Failed(name, now_ms(), type(error).__name__))

    def _decide(self, name: str, *, commits: bool) -> TransactionState:
        """Decide, unless it was decided before."""
        if name not in self._decisions:
            self._history.write(Decided(name, now_ms(), commits))
            self._decisions[name] = TransactionState.COMMIT if commits else TransactionState.ROLLBACK
        return self._decisions[name]

    def _check(self, message: StoredMessage) -> TransactionState:
        name, _ = read_body(message.body)
        if name not in self._decisions and (self._is_ending or self._rng.random() < 0.3):
            return TransactionState.UNKNOWN
        return self._decide(name, commits=self._rng.random() < 0.7)


class PoppedLoad(Load):
    """Idempotent sends, popped and acknowledged by two consumers, which forget some acknowledgements."""

    topic = "popped"

    def _make_producer(self) -> Producer:
        return Producer(self._name_servers, retries=10_000, timeout_ms=SEND_TIMEOUT_MS, idempotent=True)

    async def _send(self, producer: Producer, key: str, number: int) -> None:
        name = f"popped/{key}/{number}"
        message = self._message(name)
        self._history.write(Sent(name, now_ms()))
        await self._repeat(name, lambda: producer.send(message))

    async def _start_consumers(self) -> None:
        for _ in range(2):
            consumer = PopConsumer(self._name_servers, group="pickers", invisible_ms=INVISIBLE_MS)
            self._clients.append(consumer)
            await consumer.open()
            self._receiving.append(asyncio.create_task(self._pop_always(consumer)))

    async def _pop_always(self, consumer: PopConsumer) -> None:
        while True:
            try:
                receipts = await consumer.receive(self.topic, wait_ms=500)
            except SparrowError:
                await asyncio.sleep(0.05)
                continue
            for receipt in receipts:
                self._write_received(receipt.message)
                if self._rng.random() < FAILURE_SHARE:
                    continue
                name, _ = read_body(receipt.message.body)
                try:
                    await consumer.ack(receipt)
                except SparrowError as error:  # the message comes again
                    self._history.write(Failed(name, now_ms(), type(error).__name__))
                else:
                    self._history.write(Popped(name, now_ms()))


LOADS: tuple[type[Load], ...] = (PlainLoad, OrderedLoad, DelayedLoad, TransactionLoad, PoppedLoad)
TOPICS = {load.topic: QUEUES for load in LOADS}
"""The topics of all loads, and their queues."""

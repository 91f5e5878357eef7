"""A broker killed at random moments while it holds delayed messages, retries and half messages.

Acknowledged messages are delivered, none early, and late only by the outage; no uncommitted transaction becomes
visible. Messages of the delivery round that the kill interrupted may be delivered twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.platforms import encode_properties, open_channel, pull, send, subscribe
from tests.support.server_processes import BrokerProcess, broker_process
from tests.support.wait import eventually

from sparrow.model.errors import Unavailable
from sparrow.model.message import StoredMessage
from sparrow.net import Address, Channel
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import EndTransaction, SendMessageBack

LATE, TRIED, PAID = "Late", "Tried", "Paid"
RETRY = "%RETRY%g"
COMMIT, ROLL_BACK = 8, 12
SLACK_MS = 1_000
"""The delay that a busy machine may add; a kill adds its outage."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class SentMessage:
    """The acknowledged requests of all brokers so far."""

    due_ms: dict[bytes, int] = field(default_factory=dict)
    """Delayed and retried messages, with their earliest delivery time."""
    due_ms_at_latest: dict[bytes, int] = field(default_factory=dict)
    committed: set[bytes] = field(default_factory=set)
    perhaps_committed: set[bytes] = field(default_factory=set)
    """Transactions whose end request got no response."""
    outages: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0

    def name(self, kind: str) -> bytes:
        self.count += 1
        return f"{kind} {self.count}".encode()

    def may_come_until(self, due_ms: int) -> int:
        """Return the latest delivery time: a message that is due during an outage, or shortly before it, is delivered
        after it."""
        for down_ms, up_ms in self.outages:
            if down_ms - SLACK_MS <= due_ms <= up_ms:
                due_ms = up_ms
        return due_ms + SLACK_MS


async def delays(channel: Channel, told: SentMessage, rng: random.Random) -> None:
    while True:
        body = told.name("delayed")
        if rng.random() < 0.3:
            begun = now_ms()
            await send(channel, LATE, body, rng.randrange(4), encode_properties(DELAY="1"))
            told.due_ms[body], told.due_ms_at_latest[body] = begun + 1_000, now_ms() + 1_000
        else:
            due_ms = now_ms() + rng.randrange(20, 2_000)
            await send(channel, LATE, body, rng.randrange(4), encode_properties(TIMER_DELIVER_MS=str(due_ms)))
            told.due_ms[body], told.due_ms_at_latest[body] = due_ms, max(due_ms, now_ms())


async def retries(channel: Channel, told: SentMessage, _: random.Random) -> None:
    while True:
        body = told.name("retried")
        sent = await send(channel, TRIED, body)
        begun = now_ms()
        back = SendMessageBack(int(sent.message_id[-16:], 16), "g", 1)
        answer = await channel.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        told.due_ms[body], told.due_ms_at_latest[body] = begun + 1_000, now_ms() + 1_000


async def transactions(channel: Channel, told: SentMessage, rng: random.Random) -> None:
    while True:
        body = told.name("paid")
        sent = await send(channel, PAID, body, 0, encode_properties(TRAN_MSG="true", PGROUP="p"), sys_flag=4)
        chance = rng.random()
        if chance < 0.2:
            continue  # its producer never ends the transaction
        verdict = COMMIT if chance < 0.8 else ROLL_BACK
        if verdict == COMMIT:
            told.perhaps_committed.add(body)
        word = EndTransaction("p", sent.queue_offset, int(sent.message_id[-16:], 16), verdict, "id")
        answer = await channel.request(RequestCode.END_TRANSACTION, word)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if verdict == COMMIT:
            told.committed.add(body)


async def load(address: Address, told: SentMessage, rng: random.Random) -> None:
    """Send until the broker is down."""

    async def one(work, number: int) -> None:
        try:
            async with open_channel(address) as channel:
                await subscribe(channel, "g", **{TRIED: "*"})
                await work(channel, told, random.Random(rng.random() + number))
        except Unavailable:
            pass

    await asyncio.gather(*(one(work, number) for work in (delays, retries, transactions) for number in range(3)))


async def everything(channel: Channel, topic: str, queues: int) -> list[StoredMessage]:
    messages = []
    for queue_id in range(queues):
        offset = 0
        while (answer := await pull(channel, topic, queue_id, offset, count=1_000)).messages:
            messages += answer.messages
            offset = answer.header.next_offset
    return messages


def assert_right(told: SentMessage, messages: list[StoredMessage]) -> int:
    """Assert the promises of this module; return the number of messages delivered more than once."""
    arrived: dict[bytes, int] = {}
    for message in messages:
        arrived.setdefault(message.body, message.store_ms)
        assert message.store_ms >= told.due_ms.get(message.body, 0), f"{message.body!r} was delivered early"
    lost = told.due_ms.keys() - arrived.keys()
    assert not lost, f"{len(lost)} messages are lost, for example {min(lost)!r}"
    for body, due_ms in told.due_ms_at_latest.items():
        late_ms = arrived[body] - told.may_come_until(due_ms)
        assert late_ms <= 0, f"{body!r} was delivered {late_ms} ms too late"
    return sum(count > 1 for count in Counter(message.body for message in messages).values())


@pytest.mark.timeout(1_800)
async def test_a_kill_loses_nothing_delivers_nothing_early_and_shows_no_unfinished_transaction(
    tmp_path: Path, scale: str
) -> None:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SPARROW_SEED={seed}")
    rng, told = random.Random(seed), SentMessage()
    async with broker_process("killed", tmp_path / "store", "") as broker:
        for _ in range(50 if scale == "full" else 2):
            await round_of(broker, told, rng)
        async with open_channel(address_of(broker)) as channel:
            last_ms = max(told.due_ms_at_latest.values())
            await eventually(lambda: now_ms() > last_ms + SLACK_MS, within_s=10)
            delivered = await everything(channel, LATE, 4) + await everything(channel, RETRY, 1)
            twice = assert_right(told, delivered)
            paid = [message.body for message in await everything(channel, PAID, 1)]
    assert told.committed <= set(paid), "a committed message is lost"
    assert set(paid) <= told.perhaps_committed, "a message was delivered that was never committed"
    seen = len(set(paid))
    print(f"{len(told.due_ms)} delayed or retried, {twice} twice; {seen} paid, {len(paid) - seen} twice")


def address_of(broker: BrokerProcess) -> Address:
    return Address("127.0.0.1", broker._port)


async def round_of(broker: BrokerProcess, told: SentMessage, rng: random.Random) -> None:
    work = asyncio.create_task(load(address_of(broker), told, rng))
    done, _ = await asyncio.wait([work], timeout=rng.uniform(0.05, 1.5))
    assert not done, f"the load ended unexpectedly: {work.exception()}"
    down_ms = now_ms()
    await broker.kill()
    await work
    await broker.start()
    told.outages.append((down_ms, now_ms()))

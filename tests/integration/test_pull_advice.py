"""Pulls of several brokers on one database: a busy leader advises the others, and clients follow."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.platforms import pull, send
from tests.support.recording_handlers import RecordingHandler
from tests.support.sql_brokers import SqlBrokers, running_sql_brokers
from tests.support.wait import eventually

from sparrow.broker.consume import pull_advice
from sparrow.broker.consume.pull_advice import PullAdvisor
from sparrow.client.aio import Admin, Consumer

pytestmark = pytest.mark.one_database

ALWAYS_MS = 0.000_001
"""Every timer is later than that."""
MIDDLE = 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_advice, "SAMPLE_S", 0.02)
    monkeypatch.setattr(pull_advice, "PUBLISH_S", 0.05)
    monkeypatch.setattr(pull_advice, "WINDOW_S", 0.4)
    monkeypatch.setattr(pull_advice, "HOLD_S", 0.4)


async def create_topic(running: SqlBrokers, queues: int = 1) -> None:
    async with Admin(running.name_servers) as admin:
        await admin.create_topic("t", queues)
    await eventually(lambda: all("t" in server.broker.topics for server in running.brokers))


async def advised(running: SqlBrokers, at: int, queue_id: int = MIDDLE) -> int:
    """Return the broker that one broker advises for a queue."""
    return (await pull(running.channels[at], "t", queue_id, 0)).header.suggested_broker_id


async def wait_until_advised(running: SqlBrokers, at: int, broker_id: int) -> None:
    async with asyncio.timeout(30):
        while await advised(running, at) != broker_id:
            await asyncio.sleep(0.01)


async def test_a_busy_leader_advises_a_follower_which_keeps_its_clients_until_the_leader_is_idle(
    tmp_path: Path, database_url: str
) -> None:
    async with running_sql_brokers(tmp_path, database_url, 2, busy_ms=20) as running:
        await create_topic(running)
        assert running.broker_ids == [0, 1]

        async def block() -> None:
            while True:
                time.sleep(0.06)  # a handler that keeps the event loop from its timers
                await asyncio.sleep(0.001)

        load = asyncio.create_task(block())
        await wait_until_advised(running, 0, 1)
        await wait_until_advised(running, 1, 1)
        load.cancel()
        await wait_until_advised(running, 0, 0)
        await wait_until_advised(running, 1, 0)


async def test_queues_spread_over_all_followers_and_a_lonely_leader_keeps_them(
    tmp_path: Path, database_url: str
) -> None:
    async with running_sql_brokers(tmp_path, database_url, 1, busy_ms=ALWAYS_MS) as running:
        await create_topic(running, 2)
        advisor = running.brokers[0].broker.workers[1]
        assert isinstance(advisor, PullAdvisor)
        detector = advisor._detector
        assert detector is not None
        await eventually(lambda: detector.is_busy)
        await advisor.exchange(is_busy=True)
        assert await advised(running, 0) == 0
        await running.start_broker()
        await running.start_broker()
        async with asyncio.timeout(30):
            while {await advised(running, 0, queue_id) for queue_id in range(6)} != {1, 2}:
                await asyncio.sleep(0.05)
        assert await advised(running, 0, 2) == await advised(running, 0, 2), "a queue has one follower"


async def test_a_consumer_follows_the_advice_loses_nothing_and_survives_the_follower(
    tmp_path: Path, database_url: str
) -> None:
    async with running_sql_brokers(tmp_path, database_url, 2, busy_ms=ALWAYS_MS) as running:
        await create_topic(running)
        await wait_until_advised(running, 0, 1)
        handler = RecordingHandler()
        follower = running.brokers[1]
        async with Consumer(
            running.name_servers, group="readers", consume_from="first", commit_interval_ms=10
        ) as consumer:
            await consumer.subscribe("t")
            await consumer.start(handler)
            sent = [f"{number}" for number in range(200)]
            for text in sent[:100]:
                await send(running.channels[0], "t", text.encode())
            await eventually(lambda: handler.texts == sent[:100])
            ports = [message.store_host.port for message in handler.messages]
            assert ports.count(follower.address.port) > 50, "records contain the address of the broker that served them"
            await follower.stop()
            for text in sent[100:]:
                await send(running.channels[0], "t", text.encode())
            await eventually(lambda: set(handler.texts) == set(sent))

"""A wall clock that is set forward: locks and members stay, and retention deletes nothing because of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.broker_client import LOG, BrokerClient, Clock
from tests.support.drafts import make_draft
from tests.support.log_stores import small_settings

from sparrow.broker.clients import heartbeats
from sparrow.broker.server import BrokerServer
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net import connect
from sparrow.settings import BrokerSettings
from sparrow.store.log import LogStore
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import ConsumerData, HeartbeatData, LockedQueues, LockQueues, QueueRef, SubscriptionData
from sparrow.wire.codes import RequestCode

YEAR_MS = 365 * 86_400_000
HOUR_MS = 3_600_000
QUEUE = QueueRef("T", "sparrow", 0)


async def lock(client: BrokerClient, name: str) -> list[QueueRef]:
    body = bodies.write(LockQueues(consumer_group="g", client_id=name, mq_set=[QUEUE]))
    answer = await client.request(RequestCode.LOCK_BATCH_MQ, None, body)
    return list(bodies.read(LockedQueues, answer.body).locked)


async def test_locks_and_members_live_by_a_clock_that_nobody_sets(tmp_path: Path) -> None:
    wall, monotonic = Clock(), Clock(1_000)
    settings = BrokerSettings(port=0)
    async with BrokerServer(settings, tmp_path, LOG, now_ms=wall, monotonic_ms=monotonic) as server:
        channel = await connect(server.address)
        client = BrokerClient(server, channel)
        consumer = ConsumerData("g", subscription_data_set=[SubscriptionData("T", sub_version=1)])
        body = bodies.write(HeartbeatData("one", consumer_data_set=[consumer]))
        await client.request_ok(RequestCode.HEART_BEAT, headers.Heartbeat(), body)
        assert await lock(client, "one") == [QUEUE]

        wall.now_ms += YEAR_MS
        heartbeats.expire_clients(server.broker)
        assert channel.is_open
        assert server.broker.clients.consumers("g") is not None
        assert await lock(client, "two") == [], "the wall clock has freed a queue whose owner is alive"

        wall.now_ms -= 2 * YEAR_MS
        monotonic.now_ms += settings.queue_lock_ms + 1
        assert await lock(client, "two") == [QUEUE], "the wall clock keeps the lock of a dead owner"

        monotonic.now_ms += settings.client_timeout_ms + 1
        heartbeats.expire_clients(server.broker)
        assert server.broker.clients.consumers("g") is None
        channel.close()


async def fill_segments(store: LogStore) -> None:
    await store.catalog.put_topic(Topic(name="T"))
    for number in range(40):
        await store.append(Queue("T", 0), [make_draft(b"%d" % number + bytes(500))])
    assert len(store._log.segments) > 3


async def test_a_clock_that_jumps_forward_lets_retention_delete_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wall, steady = Clock(), Clock(1_000)
    settings = small_settings(retention_hours=72, retention_hour_of_day=4)
    async with LogStore(tmp_path / "store", settings, now_ms=wall, steady_ms=steady) as store:
        await fill_segments(store)
        wall.now_ms += YEAR_MS
        assert await store.trim() == 0
        assert store.first == 0
        assert "was set forward by 8760.0 h" in caplog.text
        assert "Correct the clock" in caplog.text
        wall.now_ms -= YEAR_MS
        for clock in (wall, steady):
            clock.now_ms += 73 * HOUR_MS
        assert await store.trim() > 0, "messages expire by time that has passed"


async def test_messages_are_kept_for_a_day_after_a_start_that_finds_them_very_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wall, steady = Clock(), Clock(1_000)
    settings = small_settings(retention_hours=72)
    async with LogStore(tmp_path / "store", settings, now_ms=wall, steady_ms=steady) as store:
        await fill_segments(store)
    wall.now_ms += YEAR_MS  # the broker was stopped for a year, or the machine has lost its time
    async with LogStore(tmp_path / "store", settings, now_ms=wall, steady_ms=steady) as store:
        assert await store.trim() == 0
        assert "the newest message is" in caplog.text
        for clock in (wall, steady):
            clock.now_ms += 25 * HOUR_MS
        assert await store.trim() > 0

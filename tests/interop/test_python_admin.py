"""Sparrow's admin client against Apache's brokers, old and new."""

import asyncio
from collections import Counter

import pytest
from tests.interop.fresh_topic import TIMEOUT_S, FreshTopic, numbered_bodies, position_of, send_ten_and_time_sixth
from tests.support.recording_handlers import GatedHandler, RecordingHandler, body_texts
from tests.support.wait import eventually

from sparrow.client.aio import Admin
from sparrow.client.options import Prefetch
from sparrow.model.errors import Refused
from sparrow.model.topic import Group

QUICK = Prefetch(long_poll_ms=1_000)
"""RocketMQ 5 notifies a reset only at the end of a long poll."""


async def test_an_admin_sees_topics_routes_and_bounds(fresh_topic: FreshTopic) -> None:
    await fresh_topic.send_all(numbered_bodies(3), queue_id=1)
    await fresh_topic.wait_until_readable(3)
    async with Admin(fresh_topic.name_servers) as admin:
        [cluster] = (await admin.clusters()).values()
        assert cluster.masters == {fresh_topic.platform.broker_name: fresh_topic.platform.broker}
        route = await admin.create_topic(f"{fresh_topic.topic}_more", 6)
        assert len(route.read_queues) == len(route.write_queues) == 6
        assert {fresh_topic.topic, f"{fresh_topic.topic}_more"} <= set(await admin.topics())
        assert list((await admin.route(fresh_topic.topic)).write_queues) == fresh_topic.queues
        bounds = await admin.topic_bounds(fresh_topic.topic)
        assert {queue: (one.first, one.end) for queue, one in bounds.items()} == {
            queue: (0, 3 if queue == fresh_topic.queue(1) else 0) for queue in fresh_topic.queues
        }
        await admin.delete_topic(f"{fresh_topic.topic}_more")
        assert f"{fresh_topic.topic}_more" not in await admin.topics()


async def test_an_admin_finds_messages_by_key_and_by_either_id(fresh_topic: FreshTopic) -> None:
    async with fresh_topic.producer() as producer, Admin(fresh_topic.name_servers) as admin:
        sent = [
            await producer.send(fresh_topic.message(body, keys=[f"key-{n}", "all"]))
            for n, body in enumerate(numbered_bodies(5))
        ]
        async with asyncio.timeout(TIMEOUT_S):
            while len(await admin.find_by_key(fresh_topic.topic, "all")) < 5:  # keys are indexed a moment later
                await asyncio.sleep(0.01)
        assert body_texts(await admin.find_by_key(fresh_topic.topic, "all")) == numbered_bodies(5)
        assert body_texts(await admin.find_by_key(fresh_topic.topic, "key-3")) == ["message 3"]
        assert await admin.find_by_key(fresh_topic.topic, "nothing") == []
        for found_by in (
            await admin.find_by_id(sent[2].offset_id),
            await admin.find_by_id(sent[2].message_id, topic=fresh_topic.topic),
            await admin.find_by_id(sent[2].offset_id, topic=fresh_topic.topic),
        ):
            assert (found_by.body, position_of(found_by)) == (b"message 2", position_of(sent[2]))
        with pytest.raises(Refused):
            await admin.find_by_id("0" * 32, topic=fresh_topic.topic)


async def test_an_admin_sees_members_and_progress(fresh_topic: FreshTopic) -> None:
    await fresh_topic.send_all(numbered_bodies(8))
    await fresh_topic.wait_until_readable(8)
    gate = GatedHandler()
    async with Admin(fresh_topic.name_servers) as admin, fresh_topic.consumer() as consumer:
        assert await admin.members(fresh_topic.group) == []
        await consumer.subscribe(fresh_topic.topic)
        await consumer.start(gate)
        await eventually(lambda: len(gate.messages) == 8, within_s=TIMEOUT_S)
        [member] = await admin.members(fresh_topic.group)
        assert member.client_id == consumer.session.client_id
        await consumer.commit()
        assert (await admin.progress(fresh_topic.group, fresh_topic.topic)).lag == 8
        gate.opened.set()
        await eventually(lambda: len(gate.finished) == 8)
        await consumer.commit()
        progress = await admin.progress(fresh_topic.group, fresh_topic.topic)
        assert progress.lag == 0
        assert {queue: one.end for queue, one in progress.queues.items()} == dict.fromkeys(fresh_topic.queues, 2)
        await consumer.close()
        assert await admin.members(fresh_topic.group) == []


async def test_a_reset_moves_an_offline_group_and_an_online_one(fresh_topic: FreshTopic) -> None:
    sixth_ms = await send_ten_and_time_sixth(fresh_topic)
    async with Admin(fresh_topic.name_servers) as admin:
        await admin.create_group(Group(name=fresh_topic.group))  # RocketMQ 5 resets no unknown group
        assert await admin.reset_offsets(fresh_topic.group, fresh_topic.topic, sixth_ms) == {
            queue: 5 if queue == fresh_topic.queue(0) else 0 for queue in fresh_topic.queues
        }
        handler = RecordingHandler()
        async with fresh_topic.consumer(prefetch=QUICK, commit_interval_ms=100) as consumer:
            await consumer.subscribe(fresh_topic.topic)
            await consumer.start(handler)
            await eventually(lambda: len(handler.messages) >= 5, within_s=TIMEOUT_S)
            assert handler.texts == numbered_bodies(5, start=5)
            await consumer.commit()
            reset = await admin.reset_offsets(fresh_topic.group, fresh_topic.topic, 0)
            assert reset[fresh_topic.queue(0)] == 0
            await eventually(lambda: len(handler.messages) >= 15, within_s=TIMEOUT_S)
            assert Counter(handler.texts[5:]) == Counter(numbered_bodies(10))

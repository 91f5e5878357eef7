"""Sparrow's admin client against Apache's brokers, old and new."""

import asyncio
from collections import Counter

import pytest
from tests.interop.fresh_topic import PATIENCE_S, Stage, early_and_late, lies, numbered
from tests.support.recording_handlers import GatedHandler, RecordingHandler, body_texts
from tests.support.wait import eventually

from sparrow.client.aio import Admin
from sparrow.client.options import Prefetch
from sparrow.model.errors import Refused
from sparrow.model.topic import Group

QUICK = Prefetch(long_poll_ms=1_000)
"""RocketMQ 5 notifies a reset only at the end of a long poll."""


async def test_an_admin_sees_topics_routes_and_bounds(stage: Stage) -> None:
    await stage.put(numbered(3), queue_id=1)
    await stage.readable(3)
    async with Admin(stage.name_servers) as admin:
        [cluster] = (await admin.clusters()).values()
        assert cluster.masters == {stage.platform.broker_name: stage.platform.broker}
        route = await admin.create_topic(f"{stage.topic}_more", 6)
        assert len(route.read_queues) == len(route.write_queues) == 6
        assert {stage.topic, f"{stage.topic}_more"} <= set(await admin.topics())
        assert list((await admin.route(stage.topic)).write_queues) == stage.queues
        bounds = await admin.topic_bounds(stage.topic)
        assert {queue: (one.first, one.end) for queue, one in bounds.items()} == {
            queue: (0, 3 if queue == stage.queue(1) else 0) for queue in stage.queues
        }
        await admin.delete_topic(f"{stage.topic}_more")
        assert f"{stage.topic}_more" not in await admin.topics()


async def test_an_admin_finds_messages_by_key_and_by_either_id(stage: Stage) -> None:
    async with stage.producer() as producer, Admin(stage.name_servers) as admin:
        sent = [
            await producer.send(stage.message(body, keys=[f"key-{n}", "all"])) for n, body in enumerate(numbered(5))
        ]
        async with asyncio.timeout(PATIENCE_S):
            while len(await admin.find_by_key(stage.topic, "all")) < 5:  # keys are indexed a moment later
                await asyncio.sleep(0.01)
        assert body_texts(await admin.find_by_key(stage.topic, "all")) == numbered(5)
        assert body_texts(await admin.find_by_key(stage.topic, "key-3")) == ["message 3"]
        assert await admin.find_by_key(stage.topic, "nothing") == []
        for found_by in (
            await admin.find_by_id(sent[2].offset_id),
            await admin.find_by_id(sent[2].message_id, topic=stage.topic),
            await admin.find_by_id(sent[2].offset_id, topic=stage.topic),
        ):
            assert (found_by.body, lies(found_by)) == (b"message 2", lies(sent[2]))
        with pytest.raises(Refused):
            await admin.find_by_id("0" * 32, topic=stage.topic)


async def test_an_admin_sees_members_and_progress(stage: Stage) -> None:
    await stage.put(numbered(8))
    await stage.readable(8)
    gate = GatedHandler()
    async with Admin(stage.name_servers) as admin, stage.consumer() as consumer:
        assert await admin.members(stage.group) == []
        await consumer.subscribe(stage.topic)
        await consumer.start(gate)
        await eventually(lambda: len(gate.messages) == 8, within_s=PATIENCE_S)
        [member] = await admin.members(stage.group)
        assert member.client_id == consumer.session.client_id
        await consumer.commit()
        assert (await admin.progress(stage.group, stage.topic)).lag == 8
        gate.opened.set()
        await eventually(lambda: len(gate.finished) == 8)
        await consumer.commit()
        progress = await admin.progress(stage.group, stage.topic)
        assert progress.lag == 0
        assert {queue: one.end for queue, one in progress.queues.items()} == dict.fromkeys(stage.queues, 2)
        await consumer.close()
        assert await admin.members(stage.group) == []


async def test_a_reset_moves_an_offline_group_and_an_online_one(stage: Stage) -> None:
    sixth_ms = await early_and_late(stage)
    async with Admin(stage.name_servers) as admin:
        await admin.create_group(Group(name=stage.group))  # RocketMQ 5 resets no unknown group
        assert await admin.reset_offsets(stage.group, stage.topic, sixth_ms) == {
            queue: 5 if queue == stage.queue(0) else 0 for queue in stage.queues
        }
        inbox = RecordingHandler()
        async with stage.consumer(prefetch=QUICK, commit_interval_ms=100) as consumer:
            await consumer.subscribe(stage.topic)
            await consumer.start(inbox)
            await eventually(lambda: len(inbox.messages) >= 5, within_s=PATIENCE_S)
            assert inbox.texts == numbered(5, start=5)
            await consumer.commit()
            reset = await admin.reset_offsets(stage.group, stage.topic, 0)
            assert reset[stage.queue(0)] == 0
            await eventually(lambda: len(inbox.messages) >= 15, within_s=PATIENCE_S)
            assert Counter(inbox.texts[5:]) == Counter(numbered(10))

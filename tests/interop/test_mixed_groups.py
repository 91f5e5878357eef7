"""Official Java clients and Sparrow's client in one group: each computes its allocation alone, and they agree."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.interop.fresh_topic import QUEUES, FreshTopic, numbered_bodies
from tests.interop.java import SETTLE_S, JavaClient
from tests.interop.java import Consumer as JavaConsumer
from tests.interop.platforms import Platform
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually

from sparrow.client.aio import Consumer

pytestmark = pytest.mark.timeout(300)
_LOOK_S = 0.05


async def test_java_and_python_share_a_group_on_apaches_broker(
    fresh_topic: FreshTopic, apache_java: JavaClient
) -> None:
    await share(fresh_topic, apache_java)


async def test_java_and_python_share_a_group_on_sparrows_broker(
    platform: Platform, java: JavaClient, topic: str
) -> None:
    await share(FreshTopic(platform, topic, f"{topic}_group"), java)


async def share(fresh_topic: FreshTopic, java: JavaClient) -> None:
    """Members of both kinds join and leave; after each change, every queue has one reader."""
    theirs = await asyncio.to_thread(java.push_consumer, fresh_topic.group, fresh_topic.topic)
    handler = RecordingHandler()
    try:
        async with fresh_topic.consumer() as one:
            await one.subscribe(fresh_topic.topic)
            await one.start(handler)
            await settled(theirs, [one], fresh_topic, [2, 2])
            await fresh_topic.send_all(numbered_bodies(40))
            mine = {queue.queue_id for queue in one.queues if queue.topic == fresh_topic.topic}
            seen = await asyncio.to_thread(theirs.receive, 20)
            await eventually(lambda: len(handler.messages) >= 20, within_s=SETTLE_S)
            assert {message.queue_id for message in handler.messages} == mine
            assert {message.queue_id for message in seen} == set(range(QUEUES)) - mine
            assert Counter(handler.texts) + Counter(message.body for message in seen) == Counter(numbered_bodies(40))
            async with fresh_topic.consumer() as other:
                await other.subscribe(fresh_topic.topic)
                await other.start(handler)
                await settled(theirs, [one, other], fresh_topic, [1, 1, 2])
            await settled(theirs, [one], fresh_topic, [2, 2])
        await settled(theirs, [], fresh_topic, [4])
        await fresh_topic.send_all(numbered_bodies(20, start=40))
        # Messages of a moved queue may come twice, so they are not counted.
        async with asyncio.timeout(SETTLE_S):
            while {message.body for message in theirs.seen} | set(handler.texts) < set(numbered_bodies(60)):
                await asyncio.to_thread(theirs.drain, 1, within_s=1)
    finally:
        await asyncio.to_thread(theirs.stop)


async def settled(
    theirs: JavaConsumer, ours: Sequence[Consumer], fresh_topic: FreshTopic, counts: Sequence[int]
) -> None:
    """Wait until the members have these numbers of queues, in any distribution, and no queue twice."""
    async with asyncio.timeout(SETTLE_S):
        while True:
            parts = [await asyncio.to_thread(theirs.queues)]
            parts += [{queue.queue_id for queue in one.queues if queue.topic == fresh_topic.topic} for one in ours]
            if sorted(map(len, parts)) == list(counts) and len(set().union(*parts)) == QUEUES:
                return
            await asyncio.sleep(_LOOK_S)

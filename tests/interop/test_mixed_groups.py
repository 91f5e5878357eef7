"""Official Java clients and Sparrow's client in one group: each computes its allocation alone, and they agree."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.interop.java import SETTLE_S, JavaClient
from tests.interop.java import Consumer as JavaConsumer
from tests.interop.platforms import Platform
from tests.interop.stage import QUEUES, Stage, numbered
from tests.support.consuming import Inbox
from tests.support.waiting import eventually

from sparrow.client.aio import Consumer

pytestmark = pytest.mark.timeout(300)
_LOOK_S = 0.05


async def test_java_and_python_share_a_group_on_apaches_broker(stage: Stage, apache_java: JavaClient) -> None:
    await share(stage, apache_java)


async def test_java_and_python_share_a_group_on_sparrows_broker(
    platform: Platform, java: JavaClient, topic: str
) -> None:
    await share(Stage(platform, topic, f"{topic}_group"), java)


async def test_java_ignores_the_report_that_members_of_its_group_differ(
    platform: Platform, java: JavaClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(platform, topic, f"{topic}_group")
    async with stage.consumer() as ours:
        await ours.subscribe(stage.topic, "rare")
        await ours.start(Inbox())
        theirs = await asyncio.to_thread(java.push_consumer, stage.group, stage.topic)
        try:
            await settled(theirs, [ours], stage, [2, 2])
            await ours.session.heartbeat()
            [said] = [record for record in caplog.records if record.name.endswith("connection.group_conflicts")]
            assert f"reads clustering {stage.topic} (rare), but client" in said.getMessage()
            assert f"reads clustering {stage.topic} (*)" in said.getMessage()
            await stage.put(numbered(40))
            mine = {queue.queue_id for queue in ours.queues if queue.topic == stage.topic}
            seen = await asyncio.to_thread(theirs.receive, 20)
            assert {message.queue_id for message in seen} == set(range(QUEUES)) - mine
        finally:
            await asyncio.to_thread(theirs.stop)


async def share(stage: Stage, java: JavaClient) -> None:
    """Members of both kinds join and leave; after each change, every queue has one reader."""
    theirs = await asyncio.to_thread(java.push_consumer, stage.group, stage.topic)
    inbox = Inbox()
    try:
        async with stage.consumer() as one:
            await one.subscribe(stage.topic)
            await one.start(inbox)
            await settled(theirs, [one], stage, [2, 2])
            await stage.put(numbered(40))
            mine = {queue.queue_id for queue in one.queues if queue.topic == stage.topic}
            seen = await asyncio.to_thread(theirs.receive, 20)
            await eventually(lambda: len(inbox.messages) >= 20, within_s=SETTLE_S)
            assert {message.queue_id for message in inbox.messages} == mine
            assert {message.queue_id for message in seen} == set(range(QUEUES)) - mine
            assert Counter(inbox.texts) + Counter(message.body for message in seen) == Counter(numbered(40))
            async with stage.consumer() as other:
                await other.subscribe(stage.topic)
                await other.start(inbox)
                await settled(theirs, [one, other], stage, [1, 1, 2])
            await settled(theirs, [one], stage, [2, 2])
        await settled(theirs, [], stage, [4])
        await stage.put(numbered(20, start=40))
        # Messages of a moved queue may come twice, so they are not counted.
        async with asyncio.timeout(SETTLE_S):
            while {message.body for message in theirs.seen} | set(inbox.texts) < set(numbered(60)):
                await asyncio.to_thread(theirs.drain, 1, within_s=1)
    finally:
        await asyncio.to_thread(theirs.stop)


async def settled(theirs: JavaConsumer, ours: Sequence[Consumer], stage: Stage, counts: Sequence[int]) -> None:
    """Wait until the members have these numbers of queues, in any distribution, and no queue twice."""
    async with asyncio.timeout(SETTLE_S):
        while True:
            parts = [await asyncio.to_thread(theirs.queues)]
            parts += [{queue.queue_id for queue in one.queues if queue.topic == stage.topic} for one in ours]
            if sorted(map(len, parts)) == list(counts) and len(set().union(*parts)) == QUEUES:
                return
            await asyncio.sleep(_LOOK_S)

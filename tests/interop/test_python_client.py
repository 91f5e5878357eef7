"""Sparrow's client against Apache's brokers, old and new: it must behave as on Sparrow's broker."""

import asyncio
import itertools
from collections import Counter, defaultdict
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.interop.fresh_topic import (
    QUEUES,
    TIMEOUT_S,
    FreshTopic,
    numbered_bodies,
    poll_exactly,
    position_of,
    result_ids,
    send_ten_and_time_sixth,
    stored_ids,
    wait_for_queue_counts,
)
from tests.interop.java import JavaClient
from tests.interop.platforms import Platform
from tests.support.recording_handlers import RecordingHandler, body_texts
from tests.support.wait import eventually

from sparrow import client as blocking
from sparrow.client.aio import Admin
from sparrow.model.message import Message, StoredMessage
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.wire.error_codes import RemoteRefused

# -- sending ----------------------------------------------------------------------------------------------------------


async def test_a_message_arrives_unchanged_at_the_place_in_its_send_result(fresh_topic: FreshTopic) -> None:
    async with fresh_topic.producer() as producer:
        results = [
            await producer.send(
                fresh_topic.message(f"第 {n} 条 🚀", tags="TagA", keys=[f"key-{n}", "all"], 城市="北京", n=str(n))
            )
            for n in range(2 * QUEUES)
        ]
    assert all(result.is_ok and result.broker_name == fresh_topic.platform.broker_name for result in results)
    messages = await fresh_topic.read_all(len(results))
    assert stored_ids(messages) == result_ids(results)
    assert {queue_id for queue_id, _ in stored_ids(messages)} == set(range(QUEUES)), "all queues must be used"
    for message in messages:
        number = message.properties["n"]
        assert message.body.decode() == f"第 {number} 条 🚀"
        assert (message.topic, message.tags, message.keys) == (fresh_topic.topic, "TagA", [f"key-{number}", "all"])
        assert message.properties["城市"] == "北京"


async def test_lingering_messages_share_requests_and_each_gets_its_own_place(fresh_topic: FreshTopic) -> None:
    bodies = numbered_bodies(1_000)
    async with fresh_topic.producer(linger_ms=5) as producer:
        futures = [producer.send_soon(fresh_topic.message(body)) for body in bodies]
        results = await asyncio.gather(*futures)
    lots = [queue_id for queue_id, _ in itertools.groupby(result.queue_id for result in results)]
    assert len(lots) <= 20, "messages must be sent in batches, each to one queue"
    messages = await fresh_topic.read_all(1_000)
    assert stored_ids(messages) == result_ids(results)
    by_place = {position_of(message): message.body.decode() for message in messages}
    assert [by_place[position_of(result)] for result in results] == bodies


async def test_messages_of_a_batch_are_adjacent(fresh_topic: FreshTopic) -> None:
    async with fresh_topic.producer() as producer, Admin(fresh_topic.name_servers) as admin:
        sent = await producer.send_batch([fresh_topic.message(body, tags="TagA") for body in numbered_bodies(10)])
        by_offset_id = [await admin.find_by_id(result.offset_id) for result in sent]
    first = sent[0].queue_offset
    assert [position_of(result) for result in sent] == [(sent[0].queue_id, first + n) for n in range(10)]
    assert body_texts(by_offset_id) == numbered_bodies(10)
    messages = await fresh_topic.read_all(10)
    assert stored_ids(messages) == result_ids(sent)
    assert {message.tags for message in messages} == {"TagA"}


async def test_a_message_goes_to_its_chosen_queue_also_one_way(fresh_topic: FreshTopic) -> None:
    async with fresh_topic.producer() as producer, fresh_topic.producer(linger_ms=1) as lingering:
        for queue in fresh_topic.queues:
            await producer.send(fresh_topic.message(f"sent to {queue.queue_id}"), queue=queue)
            await producer.send_one_way(fresh_topic.message(f"told to {queue.queue_id}"), queue=queue)
            await producer.send_batch([fresh_topic.message(f"with others to {queue.queue_id}")], queue=queue)
            await lingering.send(fresh_topic.message(f"slowly to {queue.queue_id}"), queue=queue)
    messages = await fresh_topic.read_all(4 * QUEUES)
    assert Counter(body_texts(messages)) == Counter(
        f"{how} to {number}" for how in ("sent", "told", "with others", "slowly") for number in range(QUEUES)
    )
    assert all(message.body.decode().endswith(f" {message.queue_id}") for message in messages)


async def test_a_sharding_key_selects_the_same_queue_as_in_java(
    fresh_topic: FreshTopic, apache_java: JavaClient
) -> None:
    keys = ["order-1", "order-2", "order-3", "订单", "polygenelubricants"]  # the last one's hash is -2^31
    with apache_java.producer() as java:
        theirs = await asyncio.to_thread(java.send, fresh_topic.topic, [{"body": key, "hash": key} for key in keys])
    async with fresh_topic.producer() as producer, fresh_topic.producer(linger_ms=1) as lingering:
        for key, their in zip(keys, theirs, strict=True):
            message = Message(topic=fresh_topic.topic, body=key.encode(), properties={PROPERTY_SHARDING_KEY: key})
            assert (await producer.send(message)).queue_id == their.queue_id
            assert (await lingering.send(message)).queue_id == their.queue_id


async def test_a_send_to_an_unknown_topic_creates_it(fresh_topic: FreshTopic) -> None:
    unknown = fresh_topic._replace(topic=f"{fresh_topic.topic}_unheard_of")
    results = await unknown.send_all(numbered_bodies(2 * QUEUES))
    assert stored_ids(await unknown.read_all(2 * QUEUES)) == result_ids(results)
    assert {result.queue_id for result in results} == set(range(QUEUES))


async def test_a_compressed_body_is_restored_by_java_and_python_consumers(
    fresh_topic: FreshTopic, apache_java: JavaClient
) -> None:
    ours, theirs = "all work and no play " * 10_000, "makes Jack a dull boy " * 10_000
    async with fresh_topic.producer() as producer:
        sent = await producer.send(fresh_topic.message(ours))
    with apache_java.producer() as java:
        await asyncio.to_thread(java.send, fresh_topic.topic, [theirs])
        seen = await asyncio.to_thread(java.view_by_id, fresh_topic.topic, sent.offset_id)
    assert seen.body == ours
    assert sorted(body_texts(await fresh_topic.read_all(2))) == [ours, theirs]
    async with fresh_topic.consumer() as consumer:
        pulled = [len((await consumer.pull(queue, 0)).records) for queue in fresh_topic.queues]
        assert 0 < sum(pulled) < 10_000, "bodies must be sent and stored compressed"
        table = await consumer.read_table(fresh_topic.topic)
    assert sorted(body.decode() for body in table["body"].to_pylist()) == [ours, theirs]


# -- consuming --------------------------------------------------------------------------------------------------------


async def test_a_condition_that_the_broker_refuses_is_raised_by_subscribe(fresh_topic: FreshTopic) -> None:
    async with fresh_topic.producer() as producer, fresh_topic.consumer() as consumer:
        with pytest.raises(RemoteRefused, match="SUBSCRIPTION_PARSE_FAILED"):
            await consumer.subscribe(fresh_topic.topic, "n >>> 10", expression_type="SQL92")
        await consumer.subscribe(fresh_topic.topic, "n > 10", expression_type="SQL92")
        await consumer.start(handler := RecordingHandler())
        for number in (5, 15):
            await producer.send(fresh_topic.message(f"{number}", n=f"{number}"))
        await eventually(lambda: body_texts(handler.messages) == ["15"], within_s=TIMEOUT_S)
        assert consumer.health().ok


async def test_a_handler_gets_every_message_once_and_the_group_continues_after_a_restart(
    fresh_topic: FreshTopic,
) -> None:
    await fresh_topic.send_all(numbered_bodies(20))
    handler = RecordingHandler()
    async with fresh_topic.consumer() as consumer:
        await consumer.subscribe(fresh_topic.topic)
        await consumer.start(handler)
        await eventually(lambda: len(handler.messages) >= 20, within_s=TIMEOUT_S)
        await fresh_topic.send_all(numbered_bodies(20, start=20))
        await eventually(lambda: len(handler.messages) >= 40, within_s=TIMEOUT_S)
        await fresh_topic.wait_until_caught_up(consumer)
    assert Counter(handler.texts) == Counter(numbered_bodies(40))
    async with fresh_topic.producer() as producer:
        await producer.send_batch([fresh_topic.message(body) for body in numbered_bodies(10, start=40)])
    await fresh_topic.wait_until_readable(50)
    batches: list[list[str]] = []

    async def batch_handler(messages: list[StoredMessage]) -> None:
        batches.append(body_texts(messages))

    async with fresh_topic.consumer() as consumer:
        await consumer.subscribe(fresh_topic.topic)
        await consumer.start(batch_handler, batch=4)
        await eventually(lambda: sum(map(len, batches)) >= 10, within_s=TIMEOUT_S)
    assert batches == [numbered_bodies(4, start=40), numbered_bodies(4, start=44), numbered_bodies(2, start=48)]


async def test_an_orderly_group_has_one_reader_per_queue_and_handles_messages_in_order(fresh_topic: FreshTopic) -> None:
    orders = [f"order-{n}" for n in range(6)]
    handled: dict[str, list[str]] = defaultdict(list)
    failed: set[str] = set()

    async def handler(message: StoredMessage) -> None:
        order, step = message.body.decode().split()
        if step == "3" and order not in failed:
            failed.add(order)
            raise ValueError("not now")
        handled[order].append(step)

    async with fresh_topic.consumer() as one, fresh_topic.consumer() as other:
        for member in (one, other):
            await member.subscribe(fresh_topic.topic)
            await member.start(handler, orderly=True)
        await wait_for_queue_counts([one, other], fresh_topic.topic, [2, 2])
        async with fresh_topic.producer() as producer:
            for step, order in itertools.product(range(10), orders):
                properties = {PROPERTY_SHARDING_KEY: order}
                await producer.send(
                    Message(topic=fresh_topic.topic, body=f"{order} {step}".encode(), properties=properties)
                )
        await eventually(lambda: sum(map(len, handled.values())) >= 60, within_s=TIMEOUT_S)
    assert handled == {order: [str(step) for step in range(10)] for order in orders}
    assert failed == set(orders)


async def test_iteration_delivers_messages_and_commits_the_finished_ones(fresh_topic: FreshTopic) -> None:
    await fresh_topic.send_all(numbered_bodies(5), queue_id=1)
    await fresh_topic.wait_until_readable(5)
    taken: list[str] = []
    async with fresh_topic.consumer() as consumer:
        await consumer.subscribe(fresh_topic.topic)
        async with asyncio.timeout(TIMEOUT_S):
            async for message in consumer:
                taken.append(message.body.decode())
                if len(taken) == 4:
                    break
    assert taken == numbered_bodies(4)
    async with Admin(fresh_topic.name_servers) as admin:
        progress = await admin.progress(fresh_topic.group, fresh_topic.topic)
    assert progress.queues[fresh_topic.queue(1)].committed == 3, "the last message was still in progress"
    assert progress.lag == 2


async def test_at_most_once_the_messages_of_a_poll_are_committed_before_it_returns(fresh_topic: FreshTopic) -> None:
    bodies = numbered_bodies(20)
    await fresh_topic.send_all(bodies)
    await fresh_topic.wait_until_readable(20)
    found: list[StoredMessage] = []
    for count in (7, 20):  # the second consumer gets nothing that the first one has got
        async with fresh_topic.consumer(at_most_once=True) as consumer, asyncio.timeout(TIMEOUT_S):
            await consumer.subscribe(fresh_topic.topic)
            while len(found) < count:
                found += await consumer.poll(count - len(found))
    assert Counter(body_texts(found)) == Counter(bodies)


async def test_a_commit_has_reached_the_broker_when_it_returns(fresh_topic: FreshTopic) -> None:
    await fresh_topic.send_all(numbered_bodies(10), queue_id=2)
    await fresh_topic.wait_until_readable(10)
    async with fresh_topic.consumer() as consumer, Admin(fresh_topic.name_servers) as admin:
        await consumer.subscribe(fresh_topic.topic)
        assert body_texts(await poll_exactly(consumer, 10)) == numbered_bodies(10)
        await consumer.commit()
        progress = await admin.progress(fresh_topic.group, fresh_topic.topic)
        assert progress.queues[fresh_topic.queue(2)].committed == 10
        assert (progress.lag, progress.queues[fresh_topic.queue(2)].end) == (0, 10)


async def test_a_consumer_receives_only_its_subscribed_tags(fresh_topic: FreshTopic) -> None:
    # "Aa" and "BB" have the same hash, so only the client can filter them; the last message proves that all were
    # passed.
    tags = ["TagA", "TagB", "TagC", None, "Aa", "BB"]
    async with fresh_topic.producer() as producer:
        for number, tag in itertools.product(range(5), tags):
            await producer.send(fresh_topic.message(f"{tag} {number}", tags=tag), queue=fresh_topic.queue(0))
        for tag in ("TagA", "Aa"):
            await producer.send(fresh_topic.message(f"{tag} end", tags=tag), queue=fresh_topic.queue(0))
    async with fresh_topic.consumer() as two, fresh_topic.consumer(f"{fresh_topic.group}_alike") as alike:
        await two.subscribe(fresh_topic.topic, "TagA || TagB")
        await alike.subscribe(fresh_topic.topic, "Aa")
        expected = [f"Tag{x} {n}" for n in range(5) for x in "AB"] + ["TagA end"]
        assert body_texts(await poll_exactly(two, 11)) == expected
        assert body_texts(await poll_exactly(alike, 6)) == [*(f"Aa {n}" for n in range(5)), "Aa end"]
        table = await two.read_table(fresh_topic.topic, expression="Aa || TagC")
    assert Counter(table["tags"].to_pylist()) == {"Aa": 6, "TagC": 5}


async def test_a_new_group_starts_at_consume_from(fresh_topic: FreshTopic) -> None:
    sixth_ms = await send_ten_and_time_sixth(fresh_topic)
    async with (
        fresh_topic.consumer(f"{fresh_topic.group}_first", consume_from="first") as first,
        fresh_topic.consumer(f"{fresh_topic.group}_last", consume_from="last") as last,
        fresh_topic.consumer(
            f"{fresh_topic.group}_time", consume_from=datetime.fromtimestamp(sixth_ms / 1000, UTC)
        ) as at_time,
    ):
        for consumer in (first, last, at_time):
            await consumer.subscribe(fresh_topic.topic)
        assert body_texts(await poll_exactly(first, 10)) == numbered_bodies(10)
        if fresh_topic.platform.is_apache_4:
            # While message 0 is in memory, Apache's brokers report offset 0 for every new group.
            assert (
                body_texts(await poll_exactly(at_time, 10))
                == body_texts(await poll_exactly(last, 10))
                == numbered_bodies(10)
            )
            return
        assert body_texts(await poll_exactly(at_time, 5)) == numbered_bodies(5, start=5)
        assert await last.poll(timeout_ms=1) == []
        await eventually(lambda: fresh_topic.queue(0) in last.queues, within_s=TIMEOUT_S)
        await fresh_topic.send_all(["new"], queue_id=0)
        assert body_texts(await poll_exactly(last, 1)) == ["new"]


async def test_a_seek_continues_from_another_offset(fresh_topic: FreshTopic) -> None:
    sixth_ms = await send_ten_and_time_sixth(fresh_topic)
    async with fresh_topic.consumer() as consumer:
        await consumer.subscribe(fresh_topic.topic)
        assert body_texts(await poll_exactly(consumer, 10)) == numbered_bodies(10)
        await consumer.seek(fresh_topic.queue(0), 7)
        assert body_texts(await poll_exactly(consumer, 3)) == numbered_bodies(3, start=7)
        await consumer.seek_to_time(fresh_topic.queue(0), sixth_ms)
        assert body_texts(await poll_exactly(consumer, 5)) == numbered_bodies(5, start=5)
        table = await consumer.read_table(fresh_topic.topic, start=sixth_ms)
    assert [body.decode() for body in table["body"].to_pylist()] == numbered_bodies(5, start=5)


# -- groups -----------------------------------------------------------------------------------------------------------


async def test_members_share_the_queues_and_a_leaving_member_hands_its_queues_over(fresh_topic: FreshTopic) -> None:
    stays, leaves = RecordingHandler(), RecordingHandler()
    async with fresh_topic.consumer() as one:
        await one.subscribe(fresh_topic.topic)
        await one.start(stays)
        async with fresh_topic.consumer() as other:
            await other.subscribe(fresh_topic.topic)
            await other.start(leaves)
            await wait_for_queue_counts([one, other], fresh_topic.topic, [2, 2])
            await fresh_topic.send_all(numbered_bodies(40))
            await eventually(lambda: len(stays.messages) + len(leaves.messages) >= 40, within_s=TIMEOUT_S)
            for member, handler in ((one, stays), (other, leaves)):
                mine = {queue.queue_id for queue in member.queues if queue.topic == fresh_topic.topic}
                assert {message.queue_id for message in handler.messages} == mine
        await fresh_topic.send_all(numbered_bodies(40, start=40))
        await wait_for_queue_counts([one], fresh_topic.topic, [4])
        await eventually(lambda: set(stays.texts + leaves.texts) >= set(numbered_bodies(80)), within_s=TIMEOUT_S)
    assert set(stays.texts + leaves.texts) == set(numbered_bodies(80))
    # Messages of a moved queue may come twice, but not to the same member.
    for handler in (stays, leaves):
        assert len(set(handler.texts)) == len(handler.texts)


async def test_broadcast_delivers_everything_to_every_consumer(fresh_topic: FreshTopic) -> None:
    inboxes = [RecordingHandler(), RecordingHandler()]
    async with fresh_topic.consumer(mode="broadcast") as one, fresh_topic.consumer(mode="broadcast") as other:
        for consumer, handler in zip((one, other), inboxes, strict=True):
            await consumer.subscribe(fresh_topic.topic)
            await consumer.start(handler)
        await fresh_topic.send_all(numbered_bodies(20))
        for handler in inboxes:
            await eventually(lambda handler=handler: len(handler.messages) >= 20, within_s=TIMEOUT_S)
            assert Counter(handler.texts) == Counter(numbered_bodies(20))


async def test_a_message_whose_handler_raised_is_delivered_again(fresh_topic: FreshTopic) -> None:
    tried: list[StoredMessage] = []

    async def handler(message: StoredMessage) -> None:
        tried.append(message)
        if message.body == b"not yet" and message.reconsume_times == 0:
            raise ValueError("not now")

    async with fresh_topic.consumer() as consumer, Admin(fresh_topic.name_servers) as admin:
        await consumer.subscribe(fresh_topic.topic)
        await consumer.start(handler)
        [sent] = await fresh_topic.send_all(["not yet"], queue_id=0, tags="TagA", keys="key")
        await fresh_topic.send_all(["another"], queue_id=0)
        await eventually(lambda: len(tried) == 2, within_s=TIMEOUT_S)
        # Apache's first delay is 10 s. Other messages do not wait: the broker has the failed one.
        await consumer.commit()
        assert (await admin.progress(fresh_topic.group, fresh_topic.topic)).queues[fresh_topic.queue(0)].committed == 2
        await eventually(lambda: len(tried) == 3, within_s=TIMEOUT_S + 10)
    first, _, again = sorted(tried, key=lambda message: (message.reconsume_times, message.queue_offset))
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)
    for message in (first, again):
        assert (message.topic, message.body, message.tags, message.keys) == (
            fresh_topic.topic,
            b"not yet",
            "TagA",
            ["key"],
        )
        assert message.unique_key == sent.message_id
    assert again.properties["ORIGIN_MESSAGE_ID"] == sent.offset_id


# -- tables -----------------------------------------------------------------------------------------------------------


async def test_a_sent_table_is_read_back_unchanged(fresh_topic: FreshTopic) -> None:
    rows = 2_000
    table = pa.table(
        {
            "body": [f"row {n}".encode() for n in range(rows)],
            "keys": [f"key-{n}" for n in range(rows)],
            "tags": ["even" if n % 2 == 0 else None for n in range(rows)],
        }
    )
    async with fresh_topic.producer() as producer, fresh_topic.consumer() as consumer:
        assert await producer.send_table(fresh_topic.topic, table) == rows
        await fresh_topic.wait_until_readable(rows)
        back = await consumer.read_table(fresh_topic.topic, columns=["body", "keys", "tags"])
        assert sorted(back.to_pylist(), key=lambda row: int(row["body"][4:])) == table.to_pylist()
        assert await producer.send_table(fresh_topic.topic, table.slice(0, 500), queue=fresh_topic.queue(2)) == 500
        await fresh_topic.wait_until_readable(rows + 500)
        whole = await consumer.read_table(fresh_topic.topic, columns=["queue_id", "body"])
    in_queue = [row["body"] for row in whole.to_pylist() if row["queue_id"] == 2]
    assert in_queue[-500:] == table["body"].slice(0, 500).to_pylist(), "rows of one queue must keep their order"


# -- without an event loop --------------------------------------------------------------------------------------------


def test_the_blocking_client_sends_consumes_and_administers(apache_broker: Platform) -> None:
    topic, name_servers = "blocking_round_trip", apache_broker.name_server
    with (
        blocking.Admin(name_servers) as admin,
        blocking.Producer(name_servers, linger_ms=1) as producer,
        blocking.Consumer(name_servers, group="blocking_group") as consumer,
    ):
        assert len(admin.create_topic(topic, QUEUES).read_queues) == QUEUES
        futures = [producer.send_soon(Message(topic, body)) for body in numbered_bodies(100)]
        results = [future.result(TIMEOUT_S) for future in futures]
        assert producer.send(Message(topic, "the last")).is_ok
        consumer.subscribe(topic)
        messages = list(itertools.islice(consumer, 101))
        assert Counter(body_texts(messages)) == Counter([*numbered_bodies(100), "the last"])
        assert result_ids(results).items() <= stored_ids(messages).items()
        consumer.commit()
        assert admin.progress("blocking_group", topic).lag == 0
        assert len(consumer.read_table(topic)) == 101

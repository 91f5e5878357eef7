"""Sparrow's client against Apache's brokers, old and new: it must behave as on Sparrow's broker."""

import asyncio
import itertools
from collections import Counter, defaultdict
from datetime import UTC, datetime

import pyarrow as pa
from tests.interop.fresh_topic import (
    PATIENCE_S,
    QUEUES,
    Stage,
    early_and_late,
    found,
    lies,
    numbered,
    polled,
    settled,
    told,
)
from tests.interop.java import JavaClient
from tests.interop.platforms import Platform
from tests.support.recording_handlers import RecordingHandler, body_texts
from tests.support.wait import eventually

from sparrow import client as blocking
from sparrow.client.aio import Admin
from sparrow.model.message import Message, StoredMessage
from sparrow.model.protocol import PROPERTY_SHARDING_KEY

# -- sending ----------------------------------------------------------------------------------------------------------


async def test_a_message_arrives_unchanged_at_the_place_in_its_send_result(stage: Stage) -> None:
    async with stage.producer() as producer:
        results = [
            await producer.send(
                stage.message(f"第 {n} 条 🚀", tags="TagA", keys=[f"key-{n}", "all"], 城市="北京", n=str(n))
            )
            for n in range(2 * QUEUES)
        ]
    assert all(result.is_ok and result.broker_name == stage.platform.broker_name for result in results)
    messages = await stage.all(len(results))
    assert found(messages) == told(results)
    assert {queue_id for queue_id, _ in found(messages)} == set(range(QUEUES)), "the queues take turns"
    for message in messages:
        number = message.properties["n"]
        assert message.body.decode() == f"第 {number} 条 🚀"
        assert (message.topic, message.tags, message.keys) == (stage.topic, "TagA", [f"key-{number}", "all"])
        assert message.properties["城市"] == "北京"


async def test_lingering_messages_share_requests_and_each_gets_its_own_place(stage: Stage) -> None:
    bodies = numbered(1_000)
    async with stage.producer(linger_ms=5) as producer:
        futures = [producer.send_soon(stage.message(body)) for body in bodies]
        results = await asyncio.gather(*futures)
    lots = [queue_id for queue_id, _ in itertools.groupby(result.queue_id for result in results)]
    assert len(lots) <= 20, "messages that go alone take turns at the queues"
    messages = await stage.all(1_000)
    assert found(messages) == told(results)
    by_place = {lies(message): message.body.decode() for message in messages}
    assert [by_place[lies(result)] for result in results] == bodies


async def test_messages_of_a_batch_are_adjacent(stage: Stage) -> None:
    async with stage.producer() as producer, Admin(stage.name_servers) as admin:
        sent = await producer.send_batch([stage.message(body, tags="TagA") for body in numbered(10)])
        by_offset_id = [await admin.find_by_id(result.offset_id) for result in sent]
    first = sent[0].queue_offset
    assert [lies(result) for result in sent] == [(sent[0].queue_id, first + n) for n in range(10)]
    assert body_texts(by_offset_id) == numbered(10)
    messages = await stage.all(10)
    assert found(messages) == told(sent)
    assert {message.tags for message in messages} == {"TagA"}


async def test_a_message_goes_to_its_chosen_queue_also_one_way(stage: Stage) -> None:
    async with stage.producer() as producer, stage.producer(linger_ms=1) as lingering:
        for queue in stage.queues:
            await producer.send(stage.message(f"sent to {queue.queue_id}"), queue=queue)
            await producer.send_one_way(stage.message(f"told to {queue.queue_id}"), queue=queue)
            await producer.send_batch([stage.message(f"with others to {queue.queue_id}")], queue=queue)
            await lingering.send(stage.message(f"slowly to {queue.queue_id}"), queue=queue)
    messages = await stage.all(4 * QUEUES)
    assert Counter(body_texts(messages)) == Counter(
        f"{how} to {number}" for how in ("sent", "told", "with others", "slowly") for number in range(QUEUES)
    )
    assert all(message.body.decode().endswith(f" {message.queue_id}") for message in messages)


async def test_a_sharding_key_selects_the_same_queue_as_in_java(stage: Stage, apache_java: JavaClient) -> None:
    keys = ["order-1", "order-2", "order-3", "订单", "polygenelubricants"]  # the last one's hash is -2^31
    with apache_java.producer() as java:
        theirs = await asyncio.to_thread(java.send, stage.topic, [{"body": key, "hash": key} for key in keys])
    async with stage.producer() as producer, stage.producer(linger_ms=1) as lingering:
        for key, their in zip(keys, theirs, strict=True):
            message = Message(topic=stage.topic, body=key.encode(), properties={PROPERTY_SHARDING_KEY: key})
            assert (await producer.send(message)).queue_id == their.queue_id
            assert (await lingering.send(message)).queue_id == their.queue_id


async def test_a_send_to_an_unknown_topic_creates_it(stage: Stage) -> None:
    unknown = stage._replace(topic=f"{stage.topic}_unheard_of")
    results = await unknown.put(numbered(2 * QUEUES))
    assert found(await unknown.all(2 * QUEUES)) == told(results)
    assert {result.queue_id for result in results} == set(range(QUEUES))


async def test_a_compressed_body_is_restored_by_java_and_python_consumers(
    stage: Stage, apache_java: JavaClient
) -> None:
    ours, theirs = "all work and no play " * 10_000, "makes Jack a dull boy " * 10_000
    async with stage.producer() as producer:
        sent = await producer.send(stage.message(ours))
    with apache_java.producer() as java:
        await asyncio.to_thread(java.send, stage.topic, [theirs])
        seen = await asyncio.to_thread(java.view_by_id, stage.topic, sent.offset_id)
    assert seen.body == ours
    assert sorted(body_texts(await stage.all(2))) == [ours, theirs]
    async with stage.consumer() as consumer:
        pulled = [len((await consumer.pull(queue, 0)).records) for queue in stage.queues]
        assert 0 < sum(pulled) < 10_000, "they travel and are kept compressed"
        table = await consumer.read_table(stage.topic)
    assert sorted(body.decode() for body in table["body"].to_pylist()) == [ours, theirs]


# -- consuming --------------------------------------------------------------------------------------------------------


async def test_a_handler_gets_every_message_once_and_the_group_continues_after_a_restart(stage: Stage) -> None:
    await stage.put(numbered(20))
    inbox = RecordingHandler()
    async with stage.consumer() as consumer:
        await consumer.subscribe(stage.topic)
        await consumer.start(inbox)
        await eventually(lambda: len(inbox.messages) >= 20, within_s=PATIENCE_S)
        await stage.put(numbered(20, start=20))
        await eventually(lambda: len(inbox.messages) >= 40, within_s=PATIENCE_S)
        await stage.caught_up(consumer)
    assert Counter(inbox.texts) == Counter(numbered(40))
    async with stage.producer() as producer:
        await producer.send_batch([stage.message(body) for body in numbered(10, start=40)])
    await stage.readable(50)
    batches: list[list[str]] = []

    async def handler(messages: list[StoredMessage]) -> None:
        batches.append(body_texts(messages))

    async with stage.consumer() as consumer:
        await consumer.subscribe(stage.topic)
        await consumer.start(handler, batch=4)
        await eventually(lambda: sum(map(len, batches)) >= 10, within_s=PATIENCE_S)
    assert batches == [numbered(4, start=40), numbered(4, start=44), numbered(2, start=48)]


async def test_an_orderly_group_has_one_reader_per_queue_and_handles_messages_in_order(stage: Stage) -> None:
    orders = [f"order-{n}" for n in range(6)]
    handled: dict[str, list[str]] = defaultdict(list)
    failed: set[str] = set()

    async def handler(message: StoredMessage) -> None:
        order, step = message.body.decode().split()
        if step == "3" and order not in failed:
            failed.add(order)
            raise ValueError("not now")
        handled[order].append(step)

    async with stage.consumer() as one, stage.consumer() as other:
        for member in (one, other):
            await member.subscribe(stage.topic)
            await member.start(handler, orderly=True)
        await settled([one, other], stage.topic, [2, 2])
        async with stage.producer() as producer:
            for step, order in itertools.product(range(10), orders):
                properties = {PROPERTY_SHARDING_KEY: order}
                await producer.send(Message(topic=stage.topic, body=f"{order} {step}".encode(), properties=properties))
        await eventually(lambda: sum(map(len, handled.values())) >= 60, within_s=PATIENCE_S)
    assert handled == {order: [str(step) for step in range(10)] for order in orders}
    assert failed == set(orders)


async def test_iteration_delivers_messages_and_commits_the_finished_ones(stage: Stage) -> None:
    await stage.put(numbered(5), queue_id=1)
    await stage.readable(5)
    taken: list[str] = []
    async with stage.consumer() as consumer:
        await consumer.subscribe(stage.topic)
        async with asyncio.timeout(PATIENCE_S):
            async for message in consumer:
                taken.append(message.body.decode())
                if len(taken) == 4:
                    break
    assert taken == numbered(4)
    async with Admin(stage.name_servers) as admin:
        progress = await admin.progress(stage.group, stage.topic)
    assert progress.queues[stage.queue(1)].committed == 3, "the last one was still in hand"
    assert progress.lag == 2


async def test_a_commit_has_reached_the_broker_when_it_returns(stage: Stage) -> None:
    await stage.put(numbered(10), queue_id=2)
    await stage.readable(10)
    async with stage.consumer() as consumer, Admin(stage.name_servers) as admin:
        await consumer.subscribe(stage.topic)
        assert body_texts(await polled(consumer, 10)) == numbered(10)
        await consumer.commit()
        progress = await admin.progress(stage.group, stage.topic)
        assert progress.queues[stage.queue(2)].committed == 10
        assert (progress.lag, progress.queues[stage.queue(2)].end) == (0, 10)


async def test_a_consumer_receives_only_its_subscribed_tags(stage: Stage) -> None:
    # "Aa" and "BB" have the same hash, so only the client can filter them; the last message proves that all were
    # passed.
    tags = ["TagA", "TagB", "TagC", None, "Aa", "BB"]
    async with stage.producer() as producer:
        for number, tag in itertools.product(range(5), tags):
            await producer.send(stage.message(f"{tag} {number}", tags=tag), queue=stage.queue(0))
        for tag in ("TagA", "Aa"):
            await producer.send(stage.message(f"{tag} end", tags=tag), queue=stage.queue(0))
    async with stage.consumer() as two, stage.consumer(f"{stage.group}_alike") as alike:
        await two.subscribe(stage.topic, "TagA || TagB")
        await alike.subscribe(stage.topic, "Aa")
        expected = [f"Tag{x} {n}" for n in range(5) for x in "AB"] + ["TagA end"]
        assert body_texts(await polled(two, 11)) == expected
        assert body_texts(await polled(alike, 6)) == [*(f"Aa {n}" for n in range(5)), "Aa end"]
        table = await two.read_table(stage.topic, expression="Aa || TagC")
    assert Counter(table["tags"].to_pylist()) == {"Aa": 6, "TagC": 5}


async def test_a_new_group_starts_at_consume_from(stage: Stage) -> None:
    sixth_ms = await early_and_late(stage)
    async with (
        stage.consumer(f"{stage.group}_first", consume_from="first") as first,
        stage.consumer(f"{stage.group}_last", consume_from="last") as last,
        stage.consumer(f"{stage.group}_time", consume_from=datetime.fromtimestamp(sixth_ms / 1000, UTC)) as at_time,
    ):
        for consumer in (first, last, at_time):
            await consumer.subscribe(stage.topic)
        assert body_texts(await polled(first, 10)) == numbered(10)
        if stage.platform.is_apache_4:
            # While message 0 is in memory, Apache's brokers report offset 0 for every new group.
            assert body_texts(await polled(at_time, 10)) == body_texts(await polled(last, 10)) == numbered(10)
            return
        assert body_texts(await polled(at_time, 5)) == numbered(5, start=5)
        assert await last.poll(timeout_ms=1) == []
        await eventually(lambda: stage.queue(0) in last.queues, within_s=PATIENCE_S)
        await stage.put(["new"], queue_id=0)
        assert body_texts(await polled(last, 1)) == ["new"]


async def test_a_seek_continues_from_another_offset(stage: Stage) -> None:
    sixth_ms = await early_and_late(stage)
    async with stage.consumer() as consumer:
        await consumer.subscribe(stage.topic)
        assert body_texts(await polled(consumer, 10)) == numbered(10)
        await consumer.seek(stage.queue(0), 7)
        assert body_texts(await polled(consumer, 3)) == numbered(3, start=7)
        await consumer.seek_to_time(stage.queue(0), sixth_ms)
        assert body_texts(await polled(consumer, 5)) == numbered(5, start=5)
        table = await consumer.read_table(stage.topic, start=sixth_ms)
    assert [body.decode() for body in table["body"].to_pylist()] == numbered(5, start=5)


# -- groups -----------------------------------------------------------------------------------------------------------


async def test_members_share_the_queues_and_a_leaving_member_hands_its_queues_over(stage: Stage) -> None:
    stays, leaves = RecordingHandler(), RecordingHandler()
    async with stage.consumer() as one:
        await one.subscribe(stage.topic)
        await one.start(stays)
        async with stage.consumer() as other:
            await other.subscribe(stage.topic)
            await other.start(leaves)
            await settled([one, other], stage.topic, [2, 2])
            await stage.put(numbered(40))
            await eventually(lambda: len(stays.messages) + len(leaves.messages) >= 40, within_s=PATIENCE_S)
            for member, inbox in ((one, stays), (other, leaves)):
                mine = {queue.queue_id for queue in member.queues if queue.topic == stage.topic}
                assert {message.queue_id for message in inbox.messages} == mine
        await stage.put(numbered(40, start=40))
        await settled([one], stage.topic, [4])
        await eventually(lambda: set(stays.texts + leaves.texts) >= set(numbered(80)), within_s=PATIENCE_S)
    assert set(stays.texts + leaves.texts) == set(numbered(80))
    # Messages of a moved queue may come twice, but not to the same member.
    for inbox in (stays, leaves):
        assert len(set(inbox.texts)) == len(inbox.texts)


async def test_broadcast_delivers_everything_to_every_consumer(stage: Stage) -> None:
    inboxes = [RecordingHandler(), RecordingHandler()]
    async with stage.consumer(mode="broadcast") as one, stage.consumer(mode="broadcast") as other:
        for consumer, inbox in zip((one, other), inboxes, strict=True):
            await consumer.subscribe(stage.topic)
            await consumer.start(inbox)
        await stage.put(numbered(20))
        for inbox in inboxes:
            await eventually(lambda inbox=inbox: len(inbox.messages) >= 20, within_s=PATIENCE_S)
            assert Counter(inbox.texts) == Counter(numbered(20))


async def test_a_message_whose_handler_raised_is_delivered_again(stage: Stage) -> None:
    tried: list[StoredMessage] = []

    async def handler(message: StoredMessage) -> None:
        tried.append(message)
        if message.body == b"not yet" and message.reconsume_times == 0:
            raise ValueError("not now")

    async with stage.consumer() as consumer, Admin(stage.name_servers) as admin:
        await consumer.subscribe(stage.topic)
        await consumer.start(handler)
        [sent] = await stage.put(["not yet"], queue_id=0, tags="TagA", keys="key")
        await stage.put(["another"], queue_id=0)
        await eventually(lambda: len(tried) == 2, within_s=PATIENCE_S)
        # Apache's first delay is 10 s. Other messages do not wait: the broker has the failed one.
        await consumer.commit()
        assert (await admin.progress(stage.group, stage.topic)).queues[stage.queue(0)].committed == 2
        await eventually(lambda: len(tried) == 3, within_s=PATIENCE_S + 10)
    first, _, again = sorted(tried, key=lambda message: (message.reconsume_times, message.queue_offset))
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)
    for message in (first, again):
        assert (message.topic, message.body, message.tags, message.keys) == (stage.topic, b"not yet", "TagA", ["key"])
        assert message.unique_key == sent.message_id
    assert again.properties["ORIGIN_MESSAGE_ID"] == sent.offset_id


# -- tables -----------------------------------------------------------------------------------------------------------


async def test_a_sent_table_is_read_back_unchanged(stage: Stage) -> None:
    rows = 2_000
    table = pa.table(
        {
            "body": [f"row {n}".encode() for n in range(rows)],
            "keys": [f"key-{n}" for n in range(rows)],
            "tags": ["even" if n % 2 == 0 else None for n in range(rows)],
        }
    )
    async with stage.producer() as producer, stage.consumer() as consumer:
        assert await producer.send_table(stage.topic, table) == rows
        await stage.readable(rows)
        back = await consumer.read_table(stage.topic, columns=["body", "keys", "tags"])
        assert sorted(back.to_pylist(), key=lambda row: int(row["body"][4:])) == table.to_pylist()
        assert await producer.send_table(stage.topic, table.slice(0, 500), queue=stage.queue(2)) == 500
        await stage.readable(rows + 500)
        whole = await consumer.read_table(stage.topic, columns=["queue_id", "body"])
    in_queue = [row["body"] for row in whole.to_pylist() if row["queue_id"] == 2]
    assert in_queue[-500:] == table["body"].slice(0, 500).to_pylist(), "to one queue, rows keep their order"


# -- without an event loop --------------------------------------------------------------------------------------------


def test_the_blocking_client_sends_consumes_and_administers(apache_broker: Platform) -> None:
    topic, name_servers = "blocking_round_trip", apache_broker.name_server
    with (
        blocking.Admin(name_servers) as admin,
        blocking.Producer(name_servers, linger_ms=1) as producer,
        blocking.Consumer(name_servers, group="blocking_group") as consumer,
    ):
        assert len(admin.create_topic(topic, QUEUES).read_queues) == QUEUES
        futures = [producer.send_soon(Message(topic, body)) for body in numbered(100)]
        results = [future.result(PATIENCE_S) for future in futures]
        assert producer.send(Message(topic, "the last")).is_ok
        consumer.subscribe(topic)
        messages = list(itertools.islice(consumer, 101))
        assert Counter(body_texts(messages)) == Counter([*numbered(100), "the last"])
        assert told(results).items() <= found(messages).items()
        consumer.commit()
        assert admin.progress("blocking_group", topic).lag == 0
        assert len(consumer.read_table(topic)) == 101

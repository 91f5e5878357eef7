"""A consumer on a real platform: handlers, poll and iteration, subscriptions, prefetch limits, and offsets."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.log_stores import corrupt_log
from tests.support.platform_driver import PlatformDriver, queue_ref, running_platform_driver
from tests.support.platforms import SMALL_LOG
from tests.support.recording_handlers import GatedHandler, RecordingHandler, body_texts
from tests.support.wait import eventually

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume import handler_delivery
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.options import Prefetch
from sparrow.model.errors import Closed, Refused, SparrowError, UnknownTopic
from sparrow.model.message import Message, StoredMessage
from sparrow.model.queue import Queue
from sparrow.wire.hashes import java_hash

TEN = [f"m{number}" for number in range(10)]


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        yield running


async def polled(consumer: Consumer, count: int) -> list[StoredMessage]:
    """Poll this many messages one by one; the last one is not settled yet."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await consumer.poll(1)
    return found


# -- handlers ---------------------------------------------------------------------------------------------------------


async def test_handler_gets_every_message_once(driver):
    await driver.create_topic("T", queues=4)
    every = await driver.send_to_each_queue("T", queues=4, each=100)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        handler = RecordingHandler()
        await consumer.start(handler)
        await eventually(lambda: len(handler.messages) >= 400)
        await driver.send("T", ["one more"])
        await eventually(lambda: "one more" in handler.texts)
        assert sorted(handler.texts) == sorted([*every, "one more"])
    assert [await driver.committed_offset("readers", "T", n) for n in range(4)] == [101, 100, 100, 100]


async def test_as_many_messages_are_handled_at_once_as_there_are_workers(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        gate = GatedHandler()
        await consumer.start(gate, workers=4)
        await eventually(lambda: len(gate.messages) == 4)
        assert not gate.finished
        gate.opened.set()
        await eventually(lambda: sorted(gate.finished) == TEN)


async def test_batch_has_at_most_the_configured_size(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    batches: list[list[str]] = []

    async def handler(messages: list[StoredMessage]) -> None:
        batches.append(body_texts(messages))

    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler, workers=1, batch=4)
        await eventually(lambda: sum(map(len, batches)) >= 10)
    assert batches == [TEN[:4], TEN[4:8], TEN[8:]]
    assert await driver.committed_offset("readers", "T") == 10


@pytest.mark.parametrize("batch", [None, 3])
async def test_orderly_consumer_handles_a_queue_one_by_one_even_after_a_failure(driver, monkeypatch, batch):
    monkeypatch.setattr(handler_delivery, "ORDERLY_SUSPEND_S", 0.05)
    await driver.create_topic("T", queues=3)
    await driver.send_to_each_queue("T", queues=3, each=20)
    handled: dict[int, list[str]] = defaultdict(list)
    in_hand: set[int] = set()
    failed: list[str] = []

    async def handler(given: StoredMessage | list[StoredMessage]) -> None:
        messages = given if isinstance(given, list) else [given]
        queue_id = messages[0].queue_id
        assert queue_id not in in_hand, "a queue must have one handler call at a time"
        in_hand.add(queue_id)
        try:
            await asyncio.sleep(0.001)
            if messages[0].queue_offset == 6 and queue_id not in {int(body[0]) for body in failed}:
                failed.extend(body_texts(messages))
                raise ValueError("not now")
            handled[queue_id] += body_texts(messages)
        finally:
            in_hand.discard(queue_id)

    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler, orderly=True, batch=batch)
        await eventually(lambda: sum(map(len, handled.values())) >= 60)
    assert {body[0] for body in failed} == {"0", "1", "2"}
    for queue_id in range(3):
        assert handled[queue_id] == [f"{queue_id}-{number}" for number in range(20)]
        assert await driver.committed_offset("readers", "T", queue_id) == 20


async def test_failed_message_is_retried_and_holds_back_the_commit_in_broadcast_mode(driver, monkeypatch):
    """In broadcast mode the broker has no retry topic for it, so the consumer itself retries."""
    monkeypatch.setattr(handler_delivery, "LOCAL_RETRY_S", 0.2)
    await driver.create_topic("T")
    await driver.send("T", TEN)
    tried: list[str] = []

    async def handler(message: StoredMessage) -> None:
        tried.append(message.body.decode())
        if tried.count("m3") <= 2 and tried[-1] == "m3":
            raise ValueError("not now")

    async with Consumer(driver.name_servers, group="readers", mode="broadcast") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler)
        await eventually(lambda: set(tried) == set(TEN))
        await eventually(lambda: consumer.positions() == {queue_ref("T"): 3})
        assert tried.count("m3") < 3, "the message must still be in progress"
        await eventually(lambda: consumer.positions() == {queue_ref("T"): 10})
    assert sorted(tried) == sorted([*TEN, "m3", "m3"])


async def test_failed_batch_is_retried_whole(driver, monkeypatch):
    monkeypatch.setattr(handler_delivery, "LOCAL_RETRY_S", 0.05)
    await driver.create_topic("T")
    await driver.send("T", TEN)
    handled: list[str] = []
    failures: list[str] = []

    async def handler(messages: list[StoredMessage]) -> None:
        if not failures:
            failures.extend(body_texts(messages))
            raise ValueError("not now")
        handled.extend(body_texts(messages))

    async with Consumer(driver.name_servers, group="readers", mode="broadcast") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler, batch=5)
        await eventually(lambda: len(handled) >= 10)
    assert failures == TEN[:5]
    assert sorted(handled) == TEN


@pytest.mark.parametrize("orderly", [False, True])
async def test_handler_whose_own_task_was_cancelled_counts_as_failed(driver, monkeypatch, orderly):
    monkeypatch.setattr(handler_delivery, "LOCAL_RETRY_S", 0.01)
    monkeypatch.setattr(handler_delivery, "ORDERLY_SUSPEND_S", 0.01)
    await driver.create_topic("T")
    await driver.send("T", TEN)
    handled: set[str] = set()
    failed: set[str] = set()

    async def handler(message: StoredMessage) -> None:
        body = message.body.decode()
        if body not in failed:
            failed.add(body)
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner
        handled.add(body)

    async with Consumer(driver.name_servers, group="readers", mode="broadcast") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler, workers=2, orderly=orderly)
        await eventually(lambda: handled == set(TEN))
        await eventually(lambda: consumer.positions() == {queue_ref("T"): 10})


async def test_close_finishes_and_commits_messages_in_progress_and_starts_no_others(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    gate = GatedHandler()
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.start(gate, workers=3)
        await eventually(lambda: len(gate.messages) == 3)
        closing = asyncio.create_task(consumer.close())
        await driver.send("T", ["late"])
        gate.opened.set()
        await closing
    assert gate.finished == gate.texts == TEN[:3]
    assert await driver.committed_offset("readers", "T") == 3


async def test_close_waits_for_a_handler_only_up_to_its_timeout(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    gate = GatedHandler()
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.start(gate, workers=3)
        await eventually(lambda: len(gate.messages) == 3)
        async with asyncio.timeout(30):
            await consumer.close(grace_s=0.01)
    assert not gate.finished
    assert await driver.committed_offset("readers", "T") == 0


# -- poll and async for -----------------------------------------------------------------------------------------------


async def test_async_for_yields_messages_one_by_one(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    found: list[str] = []
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        async for message in consumer:
            found.append(message.body.decode())
            if len(found) == 10:
                break
    assert found == TEN
    assert await driver.committed_offset("readers", "T") == 9, (
        "without another poll the last message is still in progress"
    )


async def test_polled_messages_are_settled_by_the_next_poll_and_not_before(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await consumer.poll(4, timeout_ms=10_000)) == TEN[:4]
        assert body_texts(await consumer.poll(3)) == TEN[4:7]
    assert await driver.committed_offset("readers", "T") == 4
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await consumer.poll(20, timeout_ms=10_000)) == TEN[4:]
        await consumer.commit()
        assert await driver.committed_offset("readers", "T") == 10
    assert await driver.committed_offset("readers", "T") == 10


async def test_poll_returns_an_empty_list_after_its_timeout(driver):
    await driver.create_topic("T")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert await consumer.poll(timeout_ms=20) == []
        await driver.send("T", TEN[:1])
        assert body_texts(await consumer.poll(timeout_ms=10_000)) == TEN[:1]


async def test_close_ends_a_waiting_iteration(driver):
    await driver.create_topic("T")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")

        async def read_all() -> list[StoredMessage]:
            return [message async for message in consumer]

        iterating = asyncio.create_task(read_all())
        await consumer.wait_for_assignment()
        await consumer.close()
        async with asyncio.timeout(30):
            assert await iterating == []
        with pytest.raises(Closed):
            await consumer.poll()


async def test_waiting_first_poll_may_be_cancelled(driver):
    await driver.create_topic("T")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        waiting = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)  # the poll has only begun to join the group
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await driver.send("T", TEN[:1])
        assert body_texts(await consumer.poll(timeout_ms=10_000)) == TEN[:1]


async def test_consumer_with_a_handler_refuses_poll_and_a_second_start(driver):
    await driver.create_topic("T")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        with pytest.raises(Refused, match="subscribe first"):
            await consumer.poll()
        await consumer.subscribe("T")
        await consumer.start(RecordingHandler())
        with pytest.raises(Refused, match="handler"):
            await consumer.poll()
        with pytest.raises(Refused, match="started already"):
            await consumer.start(RecordingHandler())


# -- start offsets and subscriptions ----------------------------------------------------------------------------------


async def test_new_group_starts_at_the_configured_offset(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN[:5])
    store = driver.platform.broker.broker.store
    before_ms = driver.platform.broker.broker.now_ms()
    await eventually(lambda: driver.platform.broker.broker.now_ms() > before_ms)
    middle = datetime.fromtimestamp(driver.platform.broker.broker.now_ms() / 1000, tz=UTC)
    await driver.send("T", TEN[5:])
    expected = {"first": TEN, "last": [], middle: TEN[5:]}
    for number, (start, already_there) in enumerate(expected.items()):
        async with Consumer(driver.name_servers, group=f"readers{number}", consume_from=start) as consumer:
            await consumer.subscribe("T")
            handler = RecordingHandler()
            await consumer.start(handler, workers=1)
            await consumer.wait_for_assignment()
            await driver.send("T", [f"late{number}"])
            await eventually(lambda handler=handler, last=f"late{number}": last in handler.texts)
            late = [f"late{earlier}" for earlier in range(number)] if start != "last" else []
            assert handler.texts == [*already_there, *late, f"late{number}"]
    assert (await store.bounds(Queue("T", 0))).end == 13


async def test_known_group_continues_at_its_committed_offset(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    for part in (TEN[:4], TEN[4:]):
        async with Consumer(driver.name_servers, group="readers", consume_from="first") as consumer:
            await consumer.subscribe("T")
            assert body_texts(await consumer.poll(len(part), timeout_ms=10_000)) == part
            await consumer.commit()
    async with Consumer(driver.name_servers, group="readers", consume_from="first") as consumer:
        await consumer.subscribe("T")
        await driver.send("T", ["late"])
        assert body_texts(await consumer.poll(timeout_ms=10_000)) == ["late"]


async def test_tag_filter_is_exact_even_when_hashes_collide(driver):
    assert java_hash("Aa") == java_hash("BB")
    await driver.create_topic("T")
    for number, tags in enumerate(["Aa", "BB", "C", "", "BB", "Aa"]):
        await driver.send("T", [f"{tags}{number}"], tags=tags)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T", "Aa || C")
        assert body_texts(await polled(consumer, 3)) == ["Aa0", "C2", "Aa5"]
        await consumer.commit()
        assert await driver.committed_offset("readers", "T") == 6


async def test_filtered_out_messages_are_skipped_and_committed(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN, tags="other")
    async with Consumer(driver.name_servers, group="readers", commit_interval_ms=10) as consumer:
        await consumer.subscribe("T", "wanted")
        await consumer.start(RecordingHandler())
        await driver.wait_for_commit(10, "readers", "T")


async def test_second_subscription_to_a_topic_replaces_the_first(driver):
    await driver.create_topic("T")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T", "a")
        handler = RecordingHandler()
        await consumer.start(handler)
        await driver.send("T", ["a1"], tags="a")
        await eventually(lambda: handler.texts == ["a1"])
        await consumer.subscribe("T", "b")
        await driver.send("T", ["a2"], tags="a")
        await driver.send("T", ["b2"], tags="b")
        await eventually(lambda: "b2" in handler.texts)
        assert handler.texts == ["a1", "b2"]


async def test_unsubscribe_stops_its_topic_and_no_other(driver):
    await driver.create_topic("T")
    await driver.create_topic("U")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        await consumer.subscribe("U")
        handler = RecordingHandler()
        await consumer.start(handler)
        await driver.send("T", ["t1"])
        await eventually(lambda: handler.texts == ["t1"])
        await consumer.unsubscribe("T")
        await eventually(lambda: {queue.topic for queue in consumer.queues} == {"U", "%RETRY%readers"})
        await driver.wait_for_commit(1, "readers", "T")
        await driver.send("T", ["t2"])
        await driver.send("U", ["u1"])
        await eventually(lambda: "u1" in handler.texts)
        assert handler.texts == ["t1", "u1"]


async def test_topic_created_after_subscribe_is_read_soon(driver):
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("later")
        handler = RecordingHandler()
        await consumer.start(handler)
        await consumer.wait_for_assignment()
        assert consumer.queues == []
        await driver.create_topic("later", queues=2)
        every = await driver.send_to_each_queue("later", queues=2, each=3)
        await eventually(lambda: set(handler.texts) == every, within_s=15)


async def test_consumer_finds_the_topic_that_a_producer_of_its_session_creates(driver):
    async with ClientSession(driver.name_servers) as session:
        async with Producer(session=session) as producer, Consumer(group="readers", session=session) as consumer:
            await producer.send(Message("other", "x"))  # the broker is connected, and knows no consumer yet
            await consumer.subscribe("made")
            handler = RecordingHandler()
            await consumer.start(handler)
            await consumer.wait_for_assignment()
            await producer.send(Message("made", "first"))
            await eventually(lambda: handler.texts == ["first"], within_s=15)


async def test_first_send_creates_its_topic_while_a_route_request_for_it_fails(driver):
    async with ClientSession(driver.name_servers) as session, Producer(session=session) as producer:
        asking = asyncio.create_task(session.route("new"))
        await asyncio.sleep(0)  # the route request is in progress
        sent = await producer.send(Message("new", "first"))
        assert sent.topic == "new"
        with pytest.raises(UnknownTopic):
            await asking


async def test_session_refuses_a_second_consumer_of_a_group(driver):
    await driver.create_topic("T")
    async with ClientSession(driver.name_servers) as session:
        async with Consumer(group="readers", session=session) as one, Consumer(group="readers", session=session) as two:
            await one.subscribe("T")
            await two.subscribe("T")
            await one.start(RecordingHandler())
            with pytest.raises(Refused, match="readers"):
                await two.start(RecordingHandler())
        assert not session.consumers


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefetch", [Prefetch(count_max=50), Prefetch(bytes_max=50_000, pull_bytes_max=20_000)], ids=["count", "bytes"]
)
async def test_unsettled_messages_do_not_exceed_the_prefetch_limit(driver, prefetch):
    await driver.create_topic("T")
    await driver.send("T", ["x" * 1000 for _ in range(300)])
    counts: list[int] = []
    async with Consumer(driver.name_servers, group="readers", prefetch=prefetch) as consumer:
        await consumer.subscribe("T")

        async def slow(_: StoredMessage) -> None:
            counts.append(consumer._membership.queue_states()[queue_ref("T")][1])
            await asyncio.sleep(0.001)

        await consumer.start(slow, workers=1)
        await eventually(lambda: len(counts) == 300)
    assert 32 < max(counts) <= 50, "the prefetch must hold more than one pull and at most 50 messages"


async def test_prefetch_smaller_than_a_pull_or_a_message_makes_progress(driver):
    await driver.create_topic("T")
    await driver.send("T", ["x" * 1000 for _ in range(20)])
    prefetch = Prefetch(count_max=3, bytes_max=10, pull_bytes_max=5)
    async with Consumer(driver.name_servers, group="readers", prefetch=prefetch) as consumer:
        await consumer.subscribe("T")
        handler = RecordingHandler()
        await consumer.start(handler)
        await eventually(lambda: len(handler.messages) == 20)


# -- offsets ----------------------------------------------------------------------------------------------------------


async def test_seek_continues_at_the_new_offset_and_commits_it(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await polled(consumer, 5)) == TEN[:5]
        await consumer.seek(queue_ref("T"), 2)
        assert await driver.committed_offset("readers", "T") == 2
        assert body_texts(await polled(consumer, 8)) == TEN[2:]
        await consumer.seek(queue_ref("T"), 9)
        assert body_texts(await consumer.poll(timeout_ms=10_000)) == TEN[9:]
        with pytest.raises(Refused, match="not assigned to this consumer"):
            await consumer.seek(queue_ref("T", 7), 0)


async def test_seek_to_time_finds_the_first_message_since(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN[:5])
    broker = driver.platform.broker.broker
    before_ms = broker.now_ms()
    await eventually(lambda: broker.now_ms() > before_ms)
    since_ms = broker.now_ms()
    await driver.send("T", TEN[5:])
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await consumer.poll(1, timeout_ms=10_000)) == TEN[:1]
        await consumer.seek_to_time(queue_ref("T"), since_ms)
        assert body_texts(await polled(consumer, 5)) == TEN[5:]


async def test_paused_queue_delivers_nothing_until_resumed_even_after_a_seek(driver):
    await driver.create_topic("T", queues=2)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        handler = RecordingHandler()
        await consumer.start(handler)
        await driver.send("T", ["first"])
        await eventually(lambda: handler.texts == ["first"])
        consumer.pause([queue_ref("T")])
        await driver.send("T", ["held"])
        await driver.send("T", ["through"], queue_id=1)
        await eventually(lambda: "through" in handler.texts)
        await consumer.seek(queue_ref("T"), 0)
        await driver.send("T", ["through again"], queue_id=1)
        await eventually(lambda: "through again" in handler.texts)
        assert handler.texts == ["first", "through", "through again"]
        consumer.resume([queue_ref("T")])
        await eventually(lambda: handler.texts[3:] == ["first", "held"])


async def test_consumer_with_assigned_queues_reads_exactly_those(driver):
    await driver.create_topic("T", queues=4)
    await driver.send_to_each_queue("T", queues=4, each=5)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.assign([queue_ref("T", 1), queue_ref("T", 3)])
        found = body_texts(await polled(consumer, 10))
        assert sorted(found) == sorted(f"{queue}-{number}" for queue in (1, 3) for number in range(5))
        assert consumer.queues == [queue_ref("T", 1), queue_ref("T", 3)]
        await consumer.commit()
        assert [await driver.committed_offset("readers", "T", n) for n in range(4)] == [None, 5, None, 5]
        await consumer.assign([queue_ref("T", 2)])
        await eventually(lambda: consumer.queues == [queue_ref("T", 2)])
        assert sorted(body_texts(await polled(consumer, 5))) == [f"2-{number}" for number in range(5)]
        with pytest.raises(Refused):
            await consumer.subscribe("T")


async def test_assigned_queue_of_a_missing_topic_does_not_block_the_others(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.assign([queue_ref("missing"), queue_ref("T")])
        assert body_texts(await polled(consumer, 10)) == TEN


async def test_pull_needs_no_group_and_commits_nothing(driver):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        answer = await consumer.pull(queue_ref("T"), 3, count_max=4)
        assert (answer.next_offset, answer.first, answer.end) == (7, 0, 10)
    assert await driver.committed_offset("readers", "T") is None


# -- damage -----------------------------------------------------------------------------------------------------------


async def test_damaged_record_is_skipped_and_the_rest_is_read(driver, tmp_path):
    await driver.create_topic("T")
    await driver.send("T", TEN)
    async with Consumer(driver.name_servers, group="inspectors") as consumer:
        await consumer.subscribe("T")
        fifth = (await polled(consumer, 5))[4]
    # In an IPv4 record, 88 bytes of fields precede the body.
    corrupt_log(tmp_path / "store", fifth.physical_offset + 88, SMALL_LOG.segment_bytes)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        await consumer.subscribe("T")
        assert body_texts(await polled(consumer, 9)) == [*TEN[:4], *TEN[5:]]
        await consumer.commit()
        assert await driver.committed_offset("readers", "T") == 10


async def test_invalid_offset_file_of_a_broadcast_consumer_is_refused_by_name(tmp_path):
    path = tmp_path / "offsets.json"
    path.write_text("[1, 2")
    with pytest.raises(SparrowError, match=r"offsets\.json"):
        Consumer(group="readers", mode="broadcast", offsets_path=path)

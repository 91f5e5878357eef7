"""Several brokers on one database: leadership, shared state, and the loss of a leader."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.platforms import (
    encode_properties,
    pull,
    read_pull_response,
    read_send_response,
    send,
    send_batch,
    try_pull,
    try_send,
)
from tests.support.recording_handlers import RecordingHandler
from tests.support.sql_brokers import BROKER_NAME, SqlBrokers, leadership_of, running_sql_brokers, sql_store_of
from tests.support.wait import eventually

from sparrow.broker.delay.sql import SqlDelayScheduler
from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.model.message import Message
from sparrow.model.queue import Queue
from sparrow.net import Channel
from sparrow.store.sql.drivers.errors import StoreDatabaseUnreachable
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import CommitOffset, EndTransaction, OffsetResponse, QueryOffset, QueueRequest, RecallMessage

pytestmark = [pytest.mark.one_database, pytest.mark.locks]

MIDDLE = 1
"""The queue of a topic with one write queue that receives messages without a priority."""
COMMIT = 8


@pytest.fixture
async def two(tmp_path: Path, database_url: str):
    async with running_sql_brokers(tmp_path, database_url, 2) as running:
        async with Admin(running.name_servers) as admin:
            await admin.create_topic("t", 1)
        await wait_until_known(running, "t")
        yield running


async def wait_until_known(running: SqlBrokers, topic: str) -> None:
    await eventually(lambda: all(topic in server.broker.topics for server in running.brokers))


async def committed(running: SqlBrokers, at: int, group: str, queue_id: int = MIDDLE) -> int | None:
    """Return the committed offset according to one broker."""
    answer = await running.channels[at].request(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset(group, "t", queue_id, False), timeout_ms=5_000
    )
    return headers.read(OffsetResponse, answer.ext).offset if answer.code == ResponseCode.SUCCESS else None


async def commit(running: SqlBrokers, at: int, group: str, offset: int, queue_id: int = MIDDLE) -> None:
    header = CommitOffset(group, "t", queue_id, offset)
    answer = await running.channels[at].request(RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=5_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def wait_until_reads(running: SqlBrokers, at: int, offset: int | None, group: str = "g") -> None:
    """Wait until this broker returns this committed offset."""
    async with asyncio.timeout(30):
        while await committed(running, at, group) != offset:
            await asyncio.sleep(0.01)


async def take_lease(running: SqlBrokers, of: int) -> None:
    """Expire the lease of the leader and let the other broker acquire it."""
    heir = sql_store_of(running.brokers[1 - of])
    await heir.database.execute("UPDATE hermes_lease SET expires_at = 0 WHERE name = 'leader'")
    await leadership_of(running.brokers[1 - of])._renew()


def stop_lease_renewal(running: SqlBrokers, at: int) -> None:
    """Stop the renewal of its lease while the broker keeps running, as if it had been frozen."""
    task = leadership_of(running.brokers[at])._task
    assert task is not None
    task.cancel()


async def read_bodies(channel: Channel, topic: str = "t", queue_id: int = MIDDLE) -> list[bytes]:
    """Return all bodies in a queue. Fetch its end first: pulls may lag a second behind other brokers' appends."""
    answer = await channel.request(RequestCode.GET_MAX_OFFSET, QueueRequest(topic, queue_id), timeout_ms=5_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    end, bodies = headers.read(OffsetResponse, answer.ext).offset, []
    while len(bodies) < end:
        found = await pull(channel, topic, queue_id, len(bodies))
        assert found.messages, f"queue {queue_id} ends at {len(bodies)}, not at {end}"
        bodies += found.bodies
    return bodies


# -- leadership -------------------------------------------------------------------------------------------------------


async def test_one_broker_has_id_0_and_the_others_have_distinct_ids(tmp_path: Path, database_url: str) -> None:
    async with running_sql_brokers(tmp_path, database_url, 3) as running:
        assert sorted(running.broker_ids) == [0, 1, 2]
        members = await running.registered_brokers()
        assert members == {server.broker.broker_id: str(server.address) for server in running.brokers}


async def test_a_stopped_leader_is_replaced_before_its_lease_would_expire(tmp_path: Path, database_url: str) -> None:
    async with running_sql_brokers(tmp_path, database_url, 3, lease_ms=600_000) as running:
        before = sql_store_of(running.brokers[1]).epoch
        await running.brokers[0].stop()
        await eventually(lambda: 0 in running.broker_ids[1:])
        new = running.brokers[1 + running.broker_ids[1:].index(0)]
        assert sql_store_of(new).epoch == before + 1
        await eventually(lambda: {sql_store_of(server).epoch for server in running.brokers[1:]} == {before + 1})
        assert (await running.registered_brokers())[0] == str(new.address)
        assert str(running.brokers[0].address) not in (await running.registered_brokers()).values()


async def test_a_leader_that_stops_renewing_is_replaced_and_gets_another_broker_id(two: SqlBrokers) -> None:
    stop_lease_renewal(two, 0)
    await eventually(lambda: two.brokers[1].broker.broker_id == 0)
    leading = leadership_of(two.brokers[0])
    await leading._renew()
    assert two.brokers[0].broker.broker_id > 0
    assert not leading._running, "a deposed leader must not deliver or check back"
    assert (await two.registered_brokers())[0] == str(two.brokers[1].address)


@pytest.mark.thorough
async def test_a_former_leader_does_not_remove_the_new_one_from_the_routes(two: SqlBrokers) -> None:
    stop_lease_renewal(two, 0)
    async with asyncio.timeout(30):
        while (await two.registered_brokers()).get(0) != str(two.brokers[1].address):
            await asyncio.sleep(0.01)
    await two.brokers[0]._registration.register()  # it registers every 30 s, and still considers itself the leader
    await leadership_of(two.brokers[0])._renew()
    assert (await two.registered_brokers()).get(0) == str(two.brokers[1].address)


async def test_a_stopped_broker_stays_out_of_the_routes(tmp_path: Path, database_url: str) -> None:
    """Even if it announces its topics while it stops."""
    async with running_sql_brokers(tmp_path, database_url, 2) as running:
        leaving = running.brokers[1]
        await leaving._registration.stop()
        await leaving.broker.topics.announce()
        assert str(leaving.address) not in (await running.registered_brokers()).values()


# -- topics and groups ------------------------------------------------------------------------------------------------


async def test_a_topic_created_on_one_broker_is_known_on_the_others(tmp_path: Path, database_url: str) -> None:
    async with running_sql_brokers(tmp_path, database_url, 3) as running:
        for at, channel in enumerate(running.channels):
            await send(channel, f"made-on-{at}", b"first")
        for at in range(3):
            await wait_until_known(running, f"made-on-{at}")
        for at in range(3):
            for channel in running.channels:
                assert await read_bodies(channel, f"made-on-{at}") == [b"first"]


async def test_concurrent_first_sends_to_all_brokers_create_one_topic(tmp_path: Path, database_url: str) -> None:
    async with running_sql_brokers(tmp_path, database_url, 3) as running:
        answers = await asyncio.gather(
            *(send(channel, "t", f"{at}-{n}".encode()) for at, channel in enumerate(running.channels) for n in range(5))
        )
        assert sorted(answer.queue_offset for answer in answers) == list(range(15))
        found = await read_bodies(running.channels[0])
        assert sorted(found) == sorted(f"{at}-{n}".encode() for at in range(3) for n in range(5))


async def test_newly_created_topics_never_disappear(two: SqlBrokers) -> None:
    """Both brokers reload the catalog meanwhile: every second and with every new topic."""
    for number in range(25):
        at, topic = number % 2, f"topic-{number}"
        await send(two.channels[at], topic, b"first")
        for _ in range(3):
            answer = await pull(two.channels[at], topic, MIDDLE)
            assert answer.bodies == [b"first"]


async def test_a_send_to_a_topic_that_another_broker_deleted_is_refused(two: SqlBrokers) -> None:
    await send(two.channels[1], "t", b"before")
    await two.brokers[0].broker.topics.delete("t")
    answer = await try_send(two.channels[1], "t", b"after")
    assert answer.code != ResponseCode.SUCCESS
    assert "t" in (answer.remark or "")
    await eventually(lambda: "t" not in two.brokers[1].broker.topics)


async def test_a_topic_recreated_by_another_broker_loses_no_confirmed_message(two: SqlBrokers) -> None:
    await send(two.channels[1], "other", b"x")
    for number in range(20):
        await send(two.channels[1], "t", f"old-{number}".encode())
    await two.brokers[0].broker.topics.delete("t")
    await send(two.channels[0], "t", b"new")
    kept = [b"new"]
    async with asyncio.timeout(30):
        while len(kept) < 10:  # within a second it knows the new one
            body = f"sent-{len(kept)}".encode()
            if (await try_send(two.channels[1], "t", body)).code == ResponseCode.SUCCESS:
                kept.append(body)
            await asyncio.sleep(0.02)
    assert sorted(await read_bodies(two.channels[0])) == sorted(kept)


# -- messages ---------------------------------------------------------------------------------------------------------


async def test_a_parked_pull_is_woken_by_a_send_to_another_broker(two: SqlBrokers) -> None:
    waits = []
    for number in range(20):
        waiting = asyncio.create_task(try_pull(two.channels[1], "t", MIDDLE, number, long_poll_ms=10_000))
        await eventually(lambda: two.brokers[1].broker.long_polls.count == 1)
        await send(two.channels[0], "t", str(number).encode())
        begun = time.monotonic()
        answer = read_pull_response(await waiting)
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            answer = await pull(two.channels[1], "t", MIDDLE, number)
        waits.append(time.monotonic() - begun)
        assert answer.bodies == [str(number).encode()]
    print("woken within ms:", [round(wait * 1000) for wait in sorted(waits)])
    assert statistics.median(waits) < 0.3, "a look at all queues once a second would take half a second"
    assert max(waits) < 8, "no parked pull may be forgotten"


async def test_a_parked_pull_is_woken_even_if_another_request_saw_the_message_first(two: SqlBrokers) -> None:
    """Another reader, a request for the max offset, or the periodic scan may notice the message first."""
    for number in range(60):
        waiting = asyncio.create_task(try_pull(two.channels[1], "t", MIDDLE, number, long_poll_ms=10_000))
        await eventually(lambda: two.brokers[1].broker.long_polls.count == 1)
        await send(two.channels[0], "t", str(number).encode())
        assert len(await read_bodies(two.channels[1])) == number + 1
        begun = time.monotonic()
        await waiting
        assert time.monotonic() - begun < 8, f"message {number} woke no waiting reader"


async def test_all_brokers_return_messages_in_the_same_order(two: SqlBrokers) -> None:
    async def produce(at: int) -> None:
        for number in range(20):
            await send_batch(two.channels[at], "t", [(f"{at}-{number}-{n}".encode(), b"") for n in range(5)])

    await asyncio.gather(produce(0), produce(1))
    found = [await read_bodies(channel) for channel in two.channels]
    assert found[0] == found[1]
    assert len(found[0]) == 200
    for at in (0, 1):
        mine = [body for body in found[0] if body.startswith(b"%d-" % at)]
        assert mine == [f"{at}-{number}-{n}".encode() for number in range(20) for n in range(5)]


@pytest.mark.thorough
async def test_a_broker_frozen_in_a_transaction_does_not_block_appends_of_others(
    two: SqlBrokers, database: str
) -> None:
    if database == "sqlite":
        pytest.skip("SQLite has no server that could end the transaction of a frozen client")
    await send(two.channels[1], "t", b"before")
    store = sql_store_of(two.brokers[0])
    lane = store.catalog.lane(Queue("t", MIDDLE))
    answer = None
    with contextlib.suppress(StoreDatabaseUnreachable):  # the frozen broker finds its connection closed
        async with store.database.transaction() as session:
            await session.execute("UPDATE hermes_lane SET next_id = next_id + 1 WHERE lane = :lane", lane=lane.number)
            answer = await try_send(two.channels[1], "t", b"after")
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert await read_bodies(two.channels[1]) == [b"before", b"after"]


async def test_a_send_repeated_at_another_broker_is_stored_once(two: SqlBrokers) -> None:
    words = encode_properties(__PID="7F00000112345678ABCDEF01", __SEQ="1", UNIQ_KEY="A1")
    first = await send(two.channels[0], "t", b"once", 0, words)
    again = await send(two.channels[1], "t", b"once", 0, words)
    assert (again.queue_id, again.queue_offset) == (first.queue_id, first.queue_offset)
    both = await asyncio.gather(
        *(
            send(
                channel,
                "t",
                b"at once",
                0,
                encode_properties(__PID="7F00000112345678ABCDEF01", __SEQ="2", UNIQ_KEY="A2"),
            )
            for channel in two.channels * 5
        )
    )
    assert len({answer.queue_offset for answer in both}) == 1
    assert await read_bodies(two.channels[0]) == [b"once", b"at once"]


async def test_a_message_is_found_by_offset_id_and_key_on_every_broker(two: SqlBrokers) -> None:
    result = await send(two.channels[0], "t", b"wanted", 0, encode_properties(KEYS="k"))
    place = int(result.message_id.split(",")[0][-16:], 16)
    for channel in two.channels:
        answer = await channel.request(RequestCode.VIEW_MESSAGE_BY_ID, headers.ViewMessage(place), timeout_ms=5_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        query = headers.QueryMessage("t", "k", 10, 0, 1 << 62)
        answer = await channel.request(RequestCode.QUERY_MESSAGE, query, timeout_ms=5_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert b"wanted" in bytes(answer.body)


# -- committed offsets ------------------------------------------------------------------------------------------------


async def test_a_commit_on_one_broker_is_read_on_the_other(two: SqlBrokers) -> None:
    await send_batch(two.channels[0], "t", [(b"x", b"")] * 10)
    await commit(two, 0, "g", 4)
    assert await committed(two, 0, "g") == 4, "its own commit must be readable at once"
    await wait_until_reads(two, 1, 4)
    await commit(two, 1, "g", 7)
    await wait_until_reads(two, 0, 7)


async def test_a_repeated_commit_applies_after_another_broker_reset_the_offset(two: SqlBrokers) -> None:
    await send_batch(two.channels[0], "t", [(b"x", b"")] * 10)
    await commit(two, 0, "g", 7)
    await wait_until_reads(two, 1, 7)
    await commit(two, 1, "g", 2)  # an operator resets the offset
    await wait_until_reads(two, 0, 2)
    await commit(two, 1, "g", 3)
    await sql_store_of(two.brokers[1]).offsets.flush()
    await commit(two, 0, "g", 2)
    await wait_until_reads(two, 1, 2)
    await commit(two, 1, "g", 5)
    await sql_store_of(two.brokers[1]).offsets.flush()
    await pull(two.channels[0], "t", MIDDLE, 2, group="g", commit=2)
    await wait_until_reads(two, 1, 2)


async def test_a_late_commit_of_a_frozen_broker_does_not_reset_the_group(two: SqlBrokers) -> None:
    await send_batch(two.channels[0], "t", [(b"x", b"")] * 10)
    await commit(two, 0, "g", 1)
    await wait_until_reads(two, 1, 1)
    stop_lease_renewal(two, 0)
    committing = sql_store_of(two.brokers[0]).offsets
    async with committing._flush_lock:  # its commits do not reach the database
        await commit(two, 0, "g", 3)
        await take_lease(two, of=0)
        await commit(two, 1, "g", 9)
        await sql_store_of(two.brokers[1]).offsets.flush()
    await committing.flush()
    await asyncio.sleep(0.2)
    assert await committed(two, 1, "g") == 9


async def test_a_fenced_commit_applies_when_repeated(two: SqlBrokers) -> None:
    """The broker does not know the new leader yet; it learns of it within a quarter of the lease."""
    await send_batch(two.channels[0], "t", [(b"x", b"")] * 10)
    await commit(two, 0, "g", 1)
    await wait_until_reads(two, 1, 1)
    stop_lease_renewal(two, 0)
    await take_lease(two, of=0)
    await commit(two, 1, "g", 2)
    await sql_store_of(two.brokers[1]).offsets.flush()
    await commit(two, 0, "g", 6)
    await sql_store_of(two.brokers[0]).offsets.flush()
    await leadership_of(two.brokers[0])._renew()
    await commit(two, 0, "g", 6)
    await wait_until_reads(two, 1, 6)


async def test_a_group_continues_at_its_offset_after_the_leader_stops(two: SqlBrokers) -> None:
    async with Producer(two.name_servers) as producer:
        for number in range(20):
            await producer.send(Message("t", str(number)))
    async with Consumer(two.name_servers, group="g", commit_interval_ms=50) as consumer:
        await consumer.subscribe("t")
        handler = RecordingHandler()
        await consumer.start(handler)
        await eventually(lambda: len(handler.messages) == 20)
    await wait_until_reads(two, 1, 20)
    await two.brokers[0].stop()
    await eventually(lambda: two.brokers[1].broker.broker_id == 0)
    async with Consumer(two.name_servers, group="g") as consumer:
        await consumer.subscribe("t")
        await send(two.channels[1], "t", b"20")
        assert [message.body for message in await consumer.poll(timeout_ms=5_000)] == [b"20"]


# -- delayed and half messages ----------------------------------------------------------------------------------------


async def test_a_delayed_message_sent_to_another_broker_than_the_leader_is_delivered(two: SqlBrokers) -> None:
    assert two.broker_ids == [0, 1]
    begun = time.monotonic()
    await send(two.channels[1], "t", b"later", 0, encode_properties(DELAY="1"))
    await try_pull(two.channels[1], "t", MIDDLE, 0, long_poll_ms=10_000)
    passed = time.monotonic() - begun
    assert await read_bodies(two.channels[1]) == [b"later"]
    assert 1 <= passed < 8, "the message woke the pull"


async def test_a_delayed_message_of_a_topic_unknown_to_the_leader_is_delivered(two: SqlBrokers) -> None:
    for number in range(5):
        topic = f"new-{number}"
        due_ms = int(time.time() * 1000) + 80
        await send(two.channels[1], topic, b"soon", 0, encode_properties(TIMER_DELIVER_MS=str(due_ms)))
        deadline = time.monotonic() + 5
        while not (found := await read_bodies(two.channels[1], topic)):
            assert time.monotonic() < deadline, f"the message of {topic} was not delivered"
            await asyncio.sleep(0.02)
        assert found == [b"soon"]


async def test_a_timer_message_can_be_recalled_at_another_broker(two: SqlBrokers) -> None:
    due_ms = int(time.time() * 1000) + 60_000
    words = encode_properties(TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY="A1")
    result = await send(two.channels[1], "t", b"never", 0, words)
    assert result.recall_handle is not None
    recall = RecallMessage("t", result.recall_handle)
    answer = await two.channels[0].request(RequestCode.RECALL_MESSAGE, recall, timeout_ms=5_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = await sql_store_of(two.brokers[0]).database.fetch("SELECT COUNT(*) FROM hermes_delay")
    assert found[0][0] == 0
    answer = await two.channels[1].request(RequestCode.RECALL_MESSAGE, recall, timeout_ms=5_000)
    assert answer.code != ResponseCode.SUCCESS


async def test_two_concurrent_leaders_deliver_delayed_messages_once(two: SqlBrokers) -> None:
    first, second = (server.broker.delay for server in two.brokers)
    assert isinstance(first, SqlDelayScheduler)
    assert isinstance(second, SqlDelayScheduler)
    lead = first.run_as_leader, second.run_as_leader
    other = asyncio.create_task(lead[1]())
    due_ms = int(time.time() * 1000) + 300
    await asyncio.gather(
        *(
            send(two.channels[n % 2], "t", str(n).encode(), 0, encode_properties(TIMER_DELIVER_MS=str(due_ms + n)))
            for n in range(100)
        )
    )
    store = sql_store_of(two.brokers[0])
    async with asyncio.timeout(30):
        while (await store.database.fetch("SELECT COUNT(*) FROM hermes_delay"))[0][0]:
            await asyncio.sleep(0.05)
    other.cancel()
    assert sorted(await read_bodies(two.channels[0])) == sorted(str(n).encode() for n in range(100))


async def test_a_new_delayed_message_is_not_confused_with_a_cancelled_one(
    two: SqlBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message is cancelled and another stored between the leader's query and its delivery."""
    store, hour_ms = sql_store_of(two.brokers[0]), str(int(time.time() * 1000) + 3_600_000)
    at_other, append_in_transaction = two.brokers[1].broker.delay, store.append_in_transaction
    assert isinstance(at_other, SqlDelayScheduler)
    came = asyncio.Event()

    async def later(*words: Any) -> Any:
        if not came.is_set():
            assert await at_other.cancel("t", "A", 1)
            await send(two.channels[1], "t", b"new", 0, encode_properties(TIMER_DELIVER_MS=hour_ms))
            came.set()
        return await append_in_transaction(*words)

    monkeypatch.setattr(store, "append_in_transaction", later)
    await send(two.channels[0], "t", b"cancelled", 0, encode_properties(UNIQ_KEY="A", TIMER_DELIVER_MS=hour_ms))
    await store.database.execute("UPDATE hermes_delay SET due = 1")  # make it due
    async with asyncio.timeout(30):
        await came.wait()
        while await store.database.execute("UPDATE hermes_delay SET due = 1"):
            await asyncio.sleep(0.05)
    assert await read_bodies(two.channels[0]) == [b"new"]


async def send_half(running: SqlBrokers, at: int, topic: str, body: bytes) -> EndTransaction:
    """Send a half message to this broker; return the request that commits it."""
    words = encode_properties(TRAN_MSG="true", PGROUP="p", UNIQ_KEY=body.hex().upper())
    result = read_send_response(await try_send(running.channels[at], topic, body, 0, words, sys_flag=4, group="p"))
    return EndTransaction("p", result.queue_offset, int(result.message_id[-16:], 16), COMMIT, "id")


async def test_a_transaction_can_be_ended_on_another_broker(two: SqlBrokers) -> None:
    word = await send_half(two, 1, "t", b"paid")
    assert await read_bodies(two.channels[0]) == []
    answer = await two.channels[0].request(RequestCode.END_TRANSACTION, word, timeout_ms=5_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    for channel in two.channels:
        assert await read_bodies(channel) == [b"paid"]
    for channel in two.channels:  # a repeated commit has no effect
        assert (await channel.request(RequestCode.END_TRANSACTION, word, timeout_ms=5_000)).code == ResponseCode.SUCCESS
    assert await read_bodies(two.channels[0]) == [b"paid"]


async def test_a_repeated_commit_does_not_end_a_later_transaction(two: SqlBrokers) -> None:
    for number in range(3):
        word = await send_half(two, number % 2, "t", str(number).encode())
        for _ in range(2):
            await two.channels[0].request(RequestCode.END_TRANSACTION, word, timeout_ms=5_000)
            await send_half(two, 1, "t", b"undecided")
    assert await read_bodies(two.channels[0]) == [b"0", b"1", b"2"]


async def test_a_transaction_can_be_ended_on_a_broker_that_does_not_know_its_topic(two: SqlBrokers) -> None:
    for number in range(5):
        word = await send_half(two, 1, f"new-{number}", b"paid")
        answer = await two.channels[0].request(RequestCode.END_TRANSACTION, word, timeout_ms=5_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert await read_bodies(two.channels[1], f"new-{number}") == [b"paid"]


async def test_concurrent_commits_of_a_transaction_deliver_it_once(two: SqlBrokers) -> None:
    for number in range(10):
        word = await send_half(two, 0, "t", str(number).encode())
        await asyncio.gather(
            *(channel.request(RequestCode.END_TRANSACTION, word, timeout_ms=5_000) for channel in two.channels * 3)
        )
    assert await read_bodies(two.channels[0]) == [str(number).encode() for number in range(10)]


async def test_producers_and_consumers_continue_after_the_leader_stops(two: SqlBrokers) -> None:
    async with (
        Producer(two.name_servers, timeout_ms=8_000, retries=50) as producer,
        Consumer(two.name_servers, group="g", commit_interval_ms=100) as consumer,
    ):
        await consumer.subscribe("t")
        handler = RecordingHandler()
        await consumer.start(handler)
        for number in range(10):
            await producer.send(Message("t", str(number)))
        stopping = asyncio.create_task(two.brokers[0].stop())
        for number in range(10, 40):
            await producer.send(Message("t", str(number)))
        await stopping
        await producer.send(Message("t", "40"))
        await eventually(lambda: set(handler.texts) == {str(number) for number in range(41)}, within_s=20)
        assert Queue("t", MIDDLE) in sql_store_of(two.brokers[1]).catalog.lanes
        assert two.brokers[1].broker.name == BROKER_NAME

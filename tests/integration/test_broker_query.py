"""Queries of messages by key, by id and by consume-queue position, over a real socket."""

import pytest
from tests.support.broker_client import BrokerClient, Clock, running_broker_client

from sparrow.model.queue import Queue
from sparrow.wire import bodies, headers, record
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.hashes import tags_code
from sparrow.wire.headers import QueryConsumeQueue, QueryMessage, ViewMessage
from sparrow.wire.message_ids import parse_offset_id

Q = Queue("T", 0)
FOREVER = (1 << 63) - 1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def client(tmp_path, clock):
    async with running_broker_client(tmp_path / "store", clock) as client:
        yield client


async def found_by_key(
    client: BrokerClient, key: str, *, topic: str = "T", count: int = 32, unique: bool = False, **times: int
):
    header = QueryMessage(topic, key, count, times.get("begin_ms", 0), times.get("end_ms", FOREVER), unique)
    answer = await client.request(RequestCode.QUERY_MESSAGE, header)
    if answer.code != ResponseCode.SUCCESS:
        return answer.code
    return [message.body for message in record.decode_all(bytes(answer.body))]


async def test_messages_are_found_by_any_of_their_keys_oldest_first(client):
    await client.send(Q, b"1", KEYS="red blue")
    await client.send(Queue("T", 1), b"2", KEYS="blue")
    await client.send(Q, b"3", KEYS="green")
    assert await found_by_key(client, "blue") == [b"1", b"2"]
    assert await found_by_key(client, "red") == [b"1"]


async def test_a_query_for_another_topic_or_time_finds_nothing(client, clock):
    await client.send(Q, b"1", KEYS="k")
    stored_ms = clock.now_ms
    assert await found_by_key(client, "k", begin_ms=stored_ms, end_ms=stored_ms) == [b"1"]
    not_found = ResponseCode.QUERY_NOT_FOUND
    assert await found_by_key(client, "k", topic="Other") == not_found
    assert await found_by_key(client, "k", begin_ms=stored_ms + 1) == not_found
    assert await found_by_key(client, "k", end_ms=stored_ms - 1) == not_found
    assert await found_by_key(client, "") == not_found


async def test_a_query_returns_the_newest_matches_up_to_its_count_and_64(client):
    for number in range(70):
        await client.send(Q, str(number).encode(), KEYS="k")
    assert await found_by_key(client, "k", count=2) == [b"68", b"69"]
    assert await found_by_key(client, "k", count=1_000_000) == [str(number).encode() for number in range(6, 70)]


async def test_a_query_by_unique_key_ignores_the_count(client):
    await client.send(Q, b"1", UNIQ_KEY="0123456789ABCDEF0123456789ABCDEF")
    assert await found_by_key(client, "0123456789ABCDEF0123456789ABCDEF", unique=True, count=0) == [b"1"]


async def test_a_query_result_is_limited_in_bytes_but_has_at_least_one_message(tmp_path):
    async with running_broker_client(tmp_path / "store", pull_bytes_max=1_100) as client:
        for number in range(4):
            await client.send(Q, bytes([number]) * 300, KEYS="k")
        await client.send(Q, b"x" * 2_000, KEYS="large")
        assert await found_by_key(client, "k") == [bytes([2]) * 300, bytes([3]) * 300]
        assert await found_by_key(client, "large") == [b"x" * 2_000]


async def test_a_query_response_contains_the_end_of_the_index(client, clock):
    await client.send(Q, b"1", KEYS="k")
    found = await client.request_ok(RequestCode.QUERY_MESSAGE, QueryMessage("T", "k", 1, 0, FOREVER))
    assert found == headers.QueryMessageResponse(clock.now_ms, client.broker.store.written)


async def test_a_query_with_a_count_below_one_is_refused(client):
    for count in (0, -1):
        code, remark = await client.request_refused(
            RequestCode.QUERY_MESSAGE, QueryMessage("T", "k", count, 0, FOREVER)
        )
        assert (code, "1 or more" in remark) == (ResponseCode.INVALID_PARAMETER, True)


async def test_a_message_is_found_by_the_offset_id_of_its_send(client):
    sent = await client.send(Q, b"hello", KEYS="k")
    answer = await client.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(parse_offset_id(sent.message_id)[1]))
    message = record.decode(bytes(answer.body))
    assert (answer.code, message.body, message.queue_offset) == (ResponseCode.SUCCESS, b"hello", sent.queue_offset)


async def test_viewing_a_message_at_a_wrong_offset_is_refused(client):
    sent = await client.send(Q, b"hello" * 50)
    at = parse_offset_id(sent.message_id)[1]
    for wrong in (at + 1, at - 1, at + 100, client.broker.store.written, 1 << 62, -1, -(1 << 63)):
        code, remark = await client.request_refused(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(wrong))
        assert (code, str(wrong) in remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_consume_queue_entries_contain_offset_size_and_tag_code(client):
    sent = [await client.send(Q, b"x" * 10 * n, TAGS=tag) for n, tag in enumerate(("a", "b", ""))]
    found = await client.request_body(
        bodies.ConsumeQueueEntries, RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueue("T", 0, 0, 10)
    )
    assert [entry.physic_offset for entry in found.queue_data] == [parse_offset_id(s.message_id)[1] for s in sent]
    assert [entry.tags_code for entry in found.queue_data] == [tags_code("a"), tags_code("b"), 0]
    assert all(entry.eval for entry in found.queue_data)
    ends = [entry.physic_offset + entry.physic_size for entry in found.queue_data]
    assert ends[:2] == [entry.physic_offset for entry in found.queue_data[1:]]
    assert (found.min_queue_index, found.max_queue_index, found.subscription_data) == (0, 3, None)


async def test_consume_queue_entries_mark_messages_that_match_the_subscription(client):
    for tag in ("a", "b"):
        await client.send(Q, b"x", TAGS=tag)
    await client.subscribe("g", T="b")
    asked = QueryConsumeQueue("T", 0, 0, 10, "g")
    found = await client.request_body(bodies.ConsumeQueueEntries, RequestCode.QUERY_CONSUME_QUEUE, asked)
    assert [entry.eval for entry in found.queue_data] == [False, True]
    assert found.subscription_data.sub_string == "b"


async def test_consume_queue_entries_start_at_the_index_and_stop_at_the_count(client):
    for _ in range(5):
        await client.send(Q, b"x")
    for index, count, expected in ((0, 2, 2), (3, 10, 2), (5, 10, 0), (99, 1, 0)):
        asked = QueryConsumeQueue("T", 0, index, count)
        found = await client.request_body(bodies.ConsumeQueueEntries, RequestCode.QUERY_CONSUME_QUEUE, asked)
        assert (len(found.queue_data), found.max_queue_index) == (expected, 5)


@pytest.mark.parametrize("asked", [QueryConsumeQueue("T", 0, 0, 0), QueryConsumeQueue("T", 0, 0, 1 << 30)])
async def test_an_invalid_count_of_consume_queue_entries_is_refused(client, asked):
    await client.send(Q, b"x")
    assert (await client.request_refused(RequestCode.QUERY_CONSUME_QUEUE, asked))[0] == ResponseCode.INVALID_PARAMETER


async def test_consume_queue_entries_of_an_unknown_topic_are_refused_and_of_an_unknown_queue_empty(client):
    asked = QueryConsumeQueue("Nowhere", 0, 0, 1)
    assert (await client.request_refused(RequestCode.QUERY_CONSUME_QUEUE, asked))[0] == ResponseCode.TOPIC_NOT_EXIST
    await client.send(Q, b"x")
    for odd in (-1, 7, (1 << 31) - 1):
        asked = QueryConsumeQueue("T", odd, 0, 1)
        assert (
            await client.request_body(bodies.ConsumeQueueEntries, RequestCode.QUERY_CONSUME_QUEUE, asked)
        ).queue_data == []

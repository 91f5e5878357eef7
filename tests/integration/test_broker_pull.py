"""Pulls from a real broker: result codes, long polling, subscriptions, and large or cold reads."""

import asyncio
import inspect
import threading

import msgspec
import pytest
from tests.support.platforms import (
    SMALL_LOG,
    TIMEOUT_MS,
    broker_server,
    encode_properties,
    log_store_of,
    open_channel,
    pull,
    pull_header,
    read_pull_response,
    running_broker,
    send,
    send_batch,
    subscribe,
    try_pull,
)
from tests.support.raw_connection import open_raw_connection
from tests.support.wait import eventually

from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, Serialization

FOUND, NOT_FOUND, AGAIN, MOVED = 0, 19, 20, 21


@pytest.fixture
async def server(tmp_path):
    async with running_broker(tmp_path) as server:
        await server.broker.topics.put(Topic(name="T", read_queues=2, write_queues=2))
        yield server


@pytest.fixture
async def channel(server):
    async with open_channel(server.address) as channel:
        yield channel


def four(answer):
    header = answer.header
    return header.suggested_broker_id, header.next_offset, header.min_offset, header.max_offset


# -- result codes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_a_pull_returns_records_and_the_next_offset(channel, code):
    for number in range(5):
        await send(channel, "T", b"%d" % number)
    found = await pull(channel, "T", 0, 1, count=3, code=code)
    assert (found.code, found.remark, found.bodies) == (FOUND, "FOUND", [b"1", b"2", b"3"])
    assert four(found) == (0, 4, 0, 5)
    assert [message.queue_offset for message in found.messages] == [1, 2, 3]


async def test_a_pull_at_the_end_of_a_queue_is_not_found(channel):
    empty = await pull(channel, "T", 1)
    assert (empty.code, four(empty), empty.messages) == (NOT_FOUND, (0, 0, 0, 0), [])
    await send(channel, "T", b"0")
    at_end = await pull(channel, "T", 0, 1)
    assert (at_end.code, at_end.remark, four(at_end)) == (NOT_FOUND, "NO_NEW_MSG", (0, 1, 0, 1))


async def test_a_pull_without_matches_returns_the_offset_behind_the_scanned_messages(channel):
    for _ in range(5):
        await send(channel, "T", b"x", 0, encode_properties(TAGS="a"))
    answer = await pull(channel, "T", tags="b")
    assert (answer.code, answer.remark, four(answer)) == (AGAIN, "NO_MATCHED_MSG", (0, 5, 0, 5))


@pytest.mark.parametrize(("offset", "to"), [(4, 3), (1 << 40, 3), ((1 << 63) - 1, 3), (-1, 0), (-(1 << 63), 0)])
async def test_an_offset_outside_the_queue_is_moved_to_the_nearest_bound(channel, offset, to):
    for _ in range(3):
        await send(channel, "T", b"x")
    for long_poll_ms in (0, 5_000):  # such a pull is not parked
        answer = await pull(channel, "T", 0, offset, long_poll_ms=long_poll_ms)
        assert (answer.code, answer.remark, four(answer)) == (MOVED, "OFFSET_ILLEGAL", (0, to, 0, 3))


async def test_an_offset_in_an_empty_queue_is_moved_to_its_start(channel):
    answer = await pull(channel, "T", 1, 7)
    assert (answer.code, four(answer)) == (MOVED, (0, 0, 0, 0))


async def test_an_offset_deleted_by_retention_is_moved_to_the_oldest_message(tmp_path):
    log = SMALL_LOG.model_copy(update={"segment_bytes": 1 << 16, "retention_hours": 0, "message_bytes_max": 1 << 15})
    async with running_broker(tmp_path, log=log) as server, open_channel(server.address) as channel:
        for _ in range(40):
            await send(channel, "T", b"x" * 10_000)
        await server.broker.store.trim()
        first = server.broker.store.bounds_nowait(Queue("T", 0)).first
        assert 0 < first < 40
        answer = await pull(channel, "T")
        assert (answer.code, four(answer)) == (MOVED, (0, first, first, 40))
        assert len((await pull(channel, "T", 0, first)).messages) == 40 - first


async def test_a_binary_pull_gets_a_binary_response(server, channel):
    await send(channel, "T", b"x")
    async with open_raw_connection(server.address) as wire:
        ext = headers.write(pull_header("T"))
        answer = await wire.request(RemotingCommand(11, 1, ext=ext, serialization=Serialization.BINARY))
        assert (answer.serialization, read_pull_response(answer).bodies) == (Serialization.BINARY, [b"x"])


async def test_a_one_way_pull_is_not_answered_and_delays_no_request(server, channel):
    async with open_raw_connection(server.address) as wire:
        wire.write(RemotingCommand(11, 1, ONE_WAY_FLAG, ext=headers.write(pull_header("T"))))
        wire.write(RemotingCommand(11, 2, ext=headers.write(pull_header("T"))))
        assert (await wire.read())[0].opaque == 2


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_a_pull_is_limited_by_count_and_bytes_but_returns_at_least_one_message(channel):
    for _ in range(20):
        await send(channel, "T", b"x" * 1000)
    assert len((await pull(channel, "T", count=7)).messages) == 7
    some = await pull(channel, "T", bytes_max=5_000)
    assert len(some.messages) == 4
    assert some.header.next_offset == 4
    assert len((await pull(channel, "T", bytes_max=1)).messages) == 1


async def test_a_client_of_rocketmq_gets_at_most_32_messages_unless_the_broker_is_configured_otherwise(
    channel, tmp_path
):
    await send_batch(channel, "T", [(b"%d" % number, b"") for number in range(100)])
    assert len((await pull(channel, "T", count=100, accepts_many=None)).messages) == 32
    assert len((await pull(channel, "T", count=100)).messages) == 100, "as Sparrow's clients ask"
    async with running_broker(tmp_path / "other", pull_messages_default=64) as server:
        async with open_channel(server.address) as other:
            await send_batch(other, "T", [(b"%d" % number, b"") for number in range(100)])
            assert len((await pull(other, "T", count=100, accepts_many=None)).messages) == 64


@pytest.mark.parametrize("count", [0, -1, -(1 << 31)])
async def test_a_pull_of_no_message_returns_one(channel, count):
    """Go's pull consumer asks for 0 by default."""
    await send_batch(channel, "T", [(b"%d" % number, b"") for number in range(3)])
    assert (await pull(channel, "T", count=count)).bodies == [b"0"]


async def test_a_pull_without_a_byte_limit_returns_up_to_256_kib(channel):
    for _ in range(40):
        await send(channel, "T", b"x" * 10_000)
    for unlimited in (None, 0, -1):
        found = await pull(channel, "T", count=40, bytes_max=unlimited)
        assert sum(len(body) for body in found.bodies) in range(240_000, 262_145)


async def test_a_large_pull_returns_8_mib_in_one_response(channel):
    """Spark pulls 8 MiB, which spans several segments."""
    body = b"x" * 50_000
    for _ in range(200):
        await send(channel, "T", body)
    found = await pull(channel, "T", count=1_000, bytes_max=8 << 20)
    assert found.code == FOUND
    assert (8 << 20) - 60_000 < sum(map(len, found.bodies)) < 8 << 20
    rest = await pull(channel, "T", 0, found.header.next_offset, count=1_000, bytes_max=8 << 20)
    assert len(found.messages) + len(rest.messages) == 200
    assert set(found.bodies + rest.bodies) == {body}


async def test_the_limits_of_the_broker_apply_to_every_pull(tmp_path):
    async with running_broker(tmp_path, pull_bytes_max=10_000, pull_messages_max=5) as server:
        async with open_channel(server.address) as channel:
            for size in (10,) * 10 + (4_000,) * 10:
                await send(channel, "T", b"x" * size)
            assert len((await pull(channel, "T", count=10_000)).messages) == 5
            assert len((await pull(channel, "T", 0, 10, count=10_000, bytes_max=1 << 30)).messages) == 2


async def test_one_pull_returns_ten_thousand_small_messages(channel):
    for _ in range(5):
        await send_batch(channel, "T", [(b"%d" % number, b"") for number in range(2_000)])
    found = await pull(channel, "T", count=10_000, bytes_max=8 << 20)
    assert found.bodies == [b"%d" % number for number in range(2_000)] * 5


async def test_pulls_of_a_peer_that_does_not_read_use_bounded_memory(server, channel):
    body = b"x" * 100_000
    for _ in range(30):
        await send(channel, "T", body)
    async with open_raw_connection(server.address, receive_bytes=1 << 14) as wire:
        ask = headers.write(pull_header("T", bytes_max=8 << 20))
        wire.write(*(RemotingCommand(11, number, ext=ask) for number in range(60)))  # 60 x 3 MB of responses
        await eventually(lambda: any(peer.is_blocked for peer in server._listener.channels))
        (peer,) = [peer for peer in server._listener.channels if peer.is_blocked]
        waiting = peer._transport.get_write_buffer_size()
        peer.abort()
        assert waiting < 32 << 20


# -- cold reads -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_page_cache")
async def test_cold_reads_return_the_same_as_hot_reads(tmp_path):
    log = SMALL_LOG.model_copy(update={"hot_bytes": 0})
    async with running_broker(tmp_path, log=log) as server, open_channel(server.address) as channel:
        for number in range(50):
            await send(channel, "T", b"%d" % number, 0, encode_properties(TAGS="ab"[number % 2]))
        assert server.broker.store.read_nowait(Queue("T", 0), 0) is None  # must be read from disk
        found = await pull(channel, "T", count=50)
        assert (found.code, found.bodies, four(found)) == (FOUND, [b"%d" % n for n in range(50)], (0, 50, 0, 50))
        assert (await pull(channel, "T", count=50, tags="b")).bodies == [b"%d" % n for n in range(1, 50, 2)]
        assert (await pull(channel, "T", tags="c")).code == AGAIN
        assert (await pull(channel, "T", 0, 50)).code == NOT_FOUND


async def test_messages_stored_before_a_restart_are_read_from_disk(tmp_path):
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        for number in range(10):
            await send(channel, "T", b"%d" % number)
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"10")
        assert (await pull(channel, "T", 0, 5)).bodies[:5] == [b"5", b"6", b"7", b"8", b"9"]


@pytest.mark.usefixtures("no_page_cache")
async def test_a_parked_pull_is_woken_although_all_data_is_cold(tmp_path):
    log = SMALL_LOG.model_copy(update={"hot_bytes": 0})
    async with running_broker(tmp_path, log=log) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"0")
        held = asyncio.ensure_future(pull(channel, "T", 0, 1, long_poll_ms=15_000))
        await eventually(lambda: server.broker.long_polls.count == 1)
        await send(channel, "T", b"1")
        answer = await asyncio.wait_for(held, 12)
        assert (answer.code, answer.header.next_offset) in ((FOUND, 2), (AGAIN, 1))


# -- long polling -----------------------------------------------------------------------------------------------------


async def test_a_parked_pull_is_answered_when_a_message_arrives(server, channel):
    held = asyncio.ensure_future(pull(channel, "T", long_poll_ms=15_000))
    await eventually(lambda: server.broker.long_polls.count == 1)
    assert (await send(channel, "T", b"elsewhere", 1)).queue_id == 1
    assert not held.done()
    await send(channel, "T", b"here")
    answer = await asyncio.wait_for(held, 12)
    assert (answer.code, answer.bodies, four(answer)) == (FOUND, [b"here"], (0, 1, 0, 1))
    assert server.broker.long_polls.count == 0


async def test_a_parked_pull_times_out_as_not_found(server, channel):
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    answer = await pull(channel, "T", long_poll_ms=150)
    assert (answer.code, four(answer)) == (NOT_FOUND, (0, 0, 0, 0))
    assert 0.145 <= loop.time() - asked_at < 5
    assert server.broker.long_polls.count == 0


async def test_a_pull_is_parked_no_longer_than_the_broker_allows(tmp_path):
    async with running_broker(tmp_path, long_poll_ms_max=50) as server, open_channel(server.address) as channel:
        await server.broker.topics.put(Topic(name="T"))
        answer = await asyncio.wait_for(pull(channel, "T", long_poll_ms=1 << 62), 12)
        assert answer.code == NOT_FOUND


async def test_a_pull_without_long_polling_is_not_parked(server, channel):
    for how in (
        {"long_poll_ms": 0, "sys_flag": 6},
        {"sys_flag": 4, "long_poll_ms": 15_000},
        {"sys_flag": 6, "long_poll_ms": -5},
    ):
        answer = await asyncio.wait_for(pull(channel, "T", **how), 12)
        assert answer.code == NOT_FOUND
    assert server.broker.long_polls.count == 0


async def test_a_parked_pull_waits_for_its_tags(server, channel):
    held = asyncio.ensure_future(pull(channel, "T", tags="b || c", long_poll_ms=15_000))
    await eventually(lambda: server.broker.long_polls.count == 1)
    for _ in range(3):
        await send(channel, "T", b"other", 0, encode_properties(TAGS="a"))
        await send(channel, "T", b"untagged")
    assert server.broker.long_polls.count == 1
    await send(channel, "T", b"wanted", 0, encode_properties(TAGS="c"))
    answer = await asyncio.wait_for(held, 12)
    assert (answer.code, answer.bodies, four(answer)) == (FOUND, [b"wanted"], (0, 7, 0, 7))


async def test_a_parked_pull_without_matches_advances_its_offset_at_timeout(server, channel):
    held = asyncio.ensure_future(pull(channel, "T", tags="b", long_poll_ms=300))
    await eventually(lambda: server.broker.long_polls.count == 1)
    await send(channel, "T", b"other", 0, encode_properties(TAGS="a"))
    answer = await asyncio.wait_for(held, 12)
    # The client need not scan these messages again.
    assert (answer.code, four(answer)) == (NOT_FOUND, (0, 1, 0, 1))


async def test_many_parked_pulls_of_one_connection_do_not_block_other_requests(server, channel):
    held = [asyncio.ensure_future(pull(channel, "T", number % 2, long_poll_ms=15_000)) for number in range(100)]
    await eventually(lambda: server.broker.long_polls.count == 100)
    assert (await channel.request(RequestCode.GET_MAX_OFFSET, headers.QueueRequest("T", 0))).code == 0
    await send(channel, "T", b"for half of them", 1)
    await eventually(lambda: server.broker.long_polls.count == 50)
    await send(channel, "T", b"for the others", 0)
    assert {(await one).code for one in held} == {FOUND}


async def test_a_pull_beyond_the_long_poll_limit_is_refused_as_busy(tmp_path):
    async with running_broker(tmp_path, long_polls_max=2) as server, open_channel(server.address) as channel:
        await server.broker.topics.put(Topic(name="T"))
        held = [asyncio.ensure_future(pull(channel, "T", long_poll_ms=15_000)) for _ in range(2)]
        await eventually(lambda: server.broker.long_polls.count == 2)
        assert (await try_pull(channel, "T", long_poll_ms=15_000)).code == ResponseCode.SYSTEM_BUSY
        await send(channel, "T", b"x")
        assert {(await one).code for one in held} == {FOUND}


async def test_parked_pulls_of_a_closed_connection_are_dropped_when_the_queue_grows(server, channel):
    async with open_channel(server.address) as gone:
        asked = gone.request(RequestCode.PULL_MESSAGE, pull_header("T", tags="b", long_poll_ms=15_000))
        await eventually(lambda: server.broker.long_polls.count == 1)
    await asyncio.gather(asked, return_exceptions=True)
    await eventually(lambda: len(server._listener.channels) == 1)
    await send(channel, "T", b"nothing it wanted", 0, encode_properties(TAGS="a"))
    await eventually(lambda: server.broker.long_polls.count == 0)


async def test_a_message_that_becomes_visible_just_before_parking_wakes_the_pull(tmp_path, monkeypatch):
    """Another thread makes it visible between the read and the parking, when no pull is there to wake."""
    log = SMALL_LOG.model_copy(update={"visible_after": "replicated"})
    async with running_broker(tmp_path, log=log) as server, open_channel(server.address) as channel:
        store, hold = log_store_of(server.broker), server.broker.long_polls
        await send(channel, "T", b"not shipped yet")
        park = hold.park

        def park_too_late(held, long_poll_ms):
            thread = threading.Thread(target=store.replica.commit_to, args=(store.written,))
            thread.start()
            thread.join()
            park(held, long_poll_ms)

        monkeypatch.setattr(hold, "park", park_too_late)
        answer = await asyncio.wait_for(pull(channel, "T", long_poll_ms=15_000), 12)
        assert answer.bodies == [b"not shipped yet"]


async def test_a_stopping_broker_answers_parked_pulls(tmp_path):
    server = broker_server(tmp_path)
    await server.start()
    async with open_channel(server.address) as channel:
        await server.broker.topics.put(Topic(name="T"))
        held = asyncio.ensure_future(pull(channel, "T", long_poll_ms=60_000))
        await eventually(lambda: server.broker.long_polls.count == 1)
        await asyncio.wait_for(server.stop(), 12)
        assert (await held).code == NOT_FOUND


async def test_the_flusher_wakes_parked_pulls_if_messages_are_visible_when_durable(tmp_path):
    log = SMALL_LOG.model_copy(update={"flush": "sync", "visible_after": "durable"})
    async with running_broker(tmp_path, log=log) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"0")
        for number in range(1, 20):
            held = asyncio.ensure_future(pull(channel, "T", 0, number, long_poll_ms=15_000))
            await send(channel, "T", b"%d" % number)
            answer = await asyncio.wait_for(held, 12)
            assert (answer.code, answer.bodies) == (FOUND, [b"%d" % number])


async def test_a_parked_pull_of_a_deleted_topic_is_answered_at_timeout(server, channel):
    await send(channel, "Doomed", b"0")
    held = asyncio.ensure_future(try_pull(channel, "Doomed", 0, 1, long_poll_ms=200))
    await eventually(lambda: server.broker.long_polls.count == 1)
    await server.broker.topics.delete("Doomed")
    answer = await asyncio.wait_for(held, 12)
    assert answer.code in (NOT_FOUND, MOVED, ResponseCode.TOPIC_NOT_EXIST)


# -- committing with a pull -------------------------------------------------------------------------------------------


async def committed(channel, group="readers", queue_id=0):
    answer = await channel.request(
        RequestCode.QUERY_CONSUMER_OFFSET, headers.QueryOffset(group, "T", queue_id, zero_if_unknown=False)
    )
    return headers.read(headers.OffsetResponse, answer.ext).offset if answer.code == 0 else answer.code


async def test_a_pull_commits_its_offset_with_any_result(channel):
    for _ in range(5):
        await send(channel, "T", b"x")
    assert await committed(channel) == ResponseCode.QUERY_NOT_FOUND
    for offset, code in ((3, FOUND), (5, NOT_FOUND), (9, MOVED)):
        assert (await pull(channel, "T", 0, offset, commit=offset - 1)).code == code
        assert await committed(channel) == offset - 1


async def test_a_parked_pull_has_committed_its_offset(server, channel):
    await send(channel, "T", b"x")
    held = asyncio.ensure_future(pull(channel, "T", 0, 1, commit=1, long_poll_ms=15_000))
    await eventually(lambda: server.broker.long_polls.count == 1)
    assert await committed(channel) == 1
    await send(channel, "T", b"y")
    await held


async def test_a_pull_without_the_commit_flag_commits_nothing(channel):
    await send(channel, "T", b"x")
    await pull(channel, "T", commit_offset=1)
    assert await committed(channel) == ResponseCode.QUERY_NOT_FOUND


# -- subscriptions ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def tagged(channel):
    for tag in ("a", "b", "c", "Aa", "标签", ""):
        await send(channel, "T", tag.encode() or b"none", 0, encode_properties(TAGS=tag))
    return channel


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("*", ["a", "b", "c", "Aa", "标签", "none"]),
        ("", ["a", "b", "c", "Aa", "标签", "none"]),
        ("a", ["a"]),
        ("a || c", ["a", "c"]),
        (" b||标签 ", ["b", "标签"]),
        ("BB", ["Aa"]),  # both tags have one hash code: the client filters again
        ("z", []),
    ],
)
async def test_a_subscription_in_the_request_filters_by_tag(tagged, expression, found):
    answer = await pull(tagged, "T", tags=expression)
    assert [body.decode() for body in answer.bodies] == found
    assert answer.header.next_offset == 6


async def test_a_subscription_from_the_heartbeat_filters_by_tag(tagged):
    await subscribe(tagged, "readers", T="a || b")
    assert (await pull(tagged, "T", tags=None)).bodies == [b"a", b"b"]


async def test_a_subscription_in_the_request_overrides_the_heartbeat(tagged):
    await subscribe(tagged, "readers", T="a || b")
    assert (await pull(tagged, "T", tags="c")).bodies == [b"c"]


async def test_a_pull_without_any_subscription_is_refused(server, tagged):
    refused = await try_pull(tagged, "T", tags=None)
    assert (refused.code, "'readers'" in refused.remark) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, True)
    await subscribe(tagged, "readers", Other="*")
    assert (await try_pull(tagged, "T", tags=None)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_a_pull_with_a_newer_subscription_than_the_heartbeat_is_refused(tagged):
    await subscribe(tagged, "readers", version=10, T="a")
    refused = await try_pull(tagged, "T", tags=None, sub_version=11)
    assert refused.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert refused.remark
    for version in (0, 9, 10):  # the Go client sends 0
        assert (await pull(tagged, "T", tags=None, sub_version=version)).bodies == [b"a"]
    await subscribe(tagged, "readers", version=11, T="b")
    assert (await pull(tagged, "T", tags=None, sub_version=11)).bodies == [b"b"]


async def test_a_tag_expression_without_a_tag_is_refused(tagged):
    refused = await try_pull(tagged, "T", tags=" || ")
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_an_sql92_subscription_returns_matching_messages(channel):
    for number in range(40):
        await send(channel, "Priced", str(number).encode(), 0, encode_properties(price=str(number)))
    found = await pull(channel, "Priced", tags="price > 7 AND price < 36", expression_type="SQL92", count=10)
    assert found.bodies == [str(number).encode() for number in range(8, 18)]
    assert found.header.next_offset == 18, "the next offset must be the first message not returned"
    found = await pull(channel, "Priced", 0, 18, tags="price > 7 AND price < 36", expression_type="SQL92", count=100)
    assert (found.bodies[-1], found.header.next_offset) == (b"35", 40)


async def test_an_sql92_pull_without_matches_is_retried_immediately(channel):
    for number in range(3):
        await send(channel, "Priced", b"x", 0, encode_properties(price=str(number)))
    found = await try_pull(channel, "Priced", tags="price > 7", expression_type="SQL92")
    assert found.code == ResponseCode.PULL_RETRY_IMMEDIATELY


async def test_an_sql92_pull_examines_a_limited_amount_and_continues_after_it(channel):
    """A condition with many properties on large property strings would take seconds for one pull."""
    large = encode_properties(wanted="yes", **{f"p{number}": "x" for number in range(3_500)})
    for number in range(12):
        await send(channel, "Large", b"%d" % number, 0, large)
    condition = " AND ".join(["wanted = 'yes'"] * 400)
    offset, read, pulls = 0, [], 0
    while offset < 12:
        found = await pull(
            channel, "Large", 0, offset, tags=condition, expression_type="SQL92", count=32, bytes_max=8 << 20
        )
        offset, pulls = found.header.next_offset, pulls + 1
        read += found.bodies
    assert read == [b"%d" % number for number in range(12)]
    assert pulls >= 6, "12 messages of 28 KB and 400 properties are too much for one pull"


async def test_a_parked_sql92_pull_waits_for_a_matching_message(server, channel):
    await send(channel, "Priced", b"first", 0, encode_properties(price="1"))
    held = asyncio.ensure_future(
        pull(channel, "Priced", 0, 1, tags="price > 7", expression_type="SQL92", long_poll_ms=15_000)
    )
    await eventually(lambda: server.broker.long_polls.count == 1)
    await send(channel, "Priced", b"cheap", 0, encode_properties(price="2"))
    await send(channel, "Priced", b"dear", 0, encode_properties(price="8"))
    assert (await asyncio.wait_for(held, 12)).bodies == [b"dear"]


async def test_invalid_sql92_is_refused_with_the_position_of_the_error(tagged):
    refused = await try_pull(tagged, "T", tags="a > AND", expression_type="SQL92")
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "4" in refused.remark


async def test_changing_the_subscription_does_not_affect_a_parked_pull(server, channel):
    await subscribe(channel, "readers", version=1, T="a")
    held = asyncio.ensure_future(pull(channel, "T", tags=None, long_poll_ms=15_000))
    await eventually(lambda: server.broker.long_polls.count == 1)
    await subscribe(channel, "readers", version=2, T="b")
    await send(channel, "T", b"a", 0, encode_properties(TAGS="a"))
    assert (await asyncio.wait_for(held, 12)).bodies == [b"a"]


# -- groups and topics ------------------------------------------------------------------------------------------------


async def test_a_pull_creates_its_group_unless_auto_creation_is_off(server, channel, tmp_path):
    assert server.broker.groups.get("fresh") is None
    await pull(channel, "T", group="fresh")
    assert server.broker.groups.get("fresh") is not None
    async with running_broker(tmp_path / "other", auto_create_groups=False) as strict:
        async with open_channel(strict.address) as other:
            await send(other, "T", b"x")
            refused = await try_pull(other, "T", group="fresh")
            assert (refused.code, "'fresh'" in refused.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, True)
            assert (await pull(other, "T", group="TOOLS_CONSUMER")).bodies == [b"x"]


async def test_a_pull_without_read_or_consume_permission_is_refused(server, channel):
    await server.broker.topics.put(Topic(name="WriteOnly", permission=2))
    await server.broker.groups.put(Group(name="silenced", may_consume=False))
    assert (await try_pull(channel, "WriteOnly")).code == ResponseCode.NO_PERMISSION
    assert (await try_pull(channel, "T", group="silenced")).code == ResponseCode.NO_PERMISSION


async def test_a_pull_of_an_unknown_topic_or_queue_is_refused(channel):
    assert (await try_pull(channel, "NoSuchTopic")).code == ResponseCode.TOPIC_NOT_EXIST
    for queue_id in (2, -1, 1 << 30):
        refused = await try_pull(channel, "T", queue_id)
        assert (refused.code, str(queue_id) in refused.remark) == (ResponseCode.INVALID_PARAMETER, True)


async def test_pull_checks_run_in_the_order_of_rocketmq(channel):
    """Topic, queue, subscription: clients and tools act on the first refusal."""
    assert (await try_pull(channel, "NoSuchTopic", 9, tags=None)).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await try_pull(channel, "T", 9, tags=None)).code == ResponseCode.INVALID_PARAMETER


async def test_consume_permission_is_checked_first(server, channel):
    await server.broker.groups.put(Group(name="silenced", may_consume=False))
    assert (await try_pull(channel, "NoSuchTopic", group="silenced")).code == ResponseCode.NO_PERMISSION


async def test_a_group_with_skip_backlog_skips_a_long_backlog(server, channel):
    await server.broker.groups.put(Group(name="impatient", attributes={"skip.backlog": "5"}))
    for number in range(6):
        await send(channel, "T", b"%d" % number)
    near = await pull(channel, "T", 0, 1, group="impatient")
    assert near.bodies == [b"1", b"2", b"3", b"4", b"5"]
    far = await pull(channel, "T", 0, 0, group="impatient")
    assert (far.code, far.header.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 6)


async def test_the_body_of_a_parked_pull_is_not_kept(server, channel):
    body = bytes(1 << 19)
    header = pull_header("Held", long_poll_ms=60_000)
    await send(channel, "Held")
    held = channel.request(
        RequestCode.PULL_MESSAGE, msgspec.structs.replace(header, offset=1), body, timeout_ms=TIMEOUT_MS + 60_000
    )
    await eventually(lambda: server.broker.long_polls.count == 1)
    (parked,) = server.broker.long_polls.parked_on(Queue("Held", 0))
    kept = inspect.getclosurevars(parked.resume).nonlocals["command"]
    assert kept.body == b""
    await send(channel, "Held", b"news")
    assert read_pull_response(await held).bodies == [b"news"]

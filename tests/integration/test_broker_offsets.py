"""Committed offsets and queue bounds: requests 14, 15 and 29 to 32."""

import pytest
from tests.support.broker_client import Clock
from tests.support.platforms import SMALL_LOG, broker_settings, log_store_of, open_channel, pull, running_broker, send
from tests.support.raw_connection import open_raw_connection

from sparrow.broker.server import BrokerServer
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand
from sparrow.wire.headers import (
    CommitOffset,
    OffsetResponse,
    QueryOffset,
    QueueRequest,
    SearchOffset,
    StoreTimeResponse,
)

UNKNOWN = int(ResponseCode.QUERY_NOT_FOUND)


@pytest.fixture
def clock():
    return Clock(1_000_000)


@pytest.fixture
async def server(tmp_path, clock):
    async with BrokerServer(broker_settings(), tmp_path / "store", SMALL_LOG, now_ms=clock) as server:
        await server.broker.topics.put(Topic(name="T", read_queues=2, write_queues=2))
        yield server


@pytest.fixture
async def channel(server):
    async with open_channel(server.address) as channel:
        yield channel


async def ask(channel, code, header):
    """Return the number in the response, or the code of a refusal."""
    answer = await channel.request(code, header)
    if answer.code != ResponseCode.SUCCESS:
        assert answer.remark
        return int(answer.code)
    found = headers.read(headers.response_header_type(code), answer.ext)
    if isinstance(found, OffsetResponse):
        return found.offset
    assert isinstance(found, headers.StoreTimeResponse)
    return found.time_ms


async def committed(channel, group="g", queue_id=0, *, zero_if_unknown=True, topic="T"):
    return await ask(
        channel, RequestCode.QUERY_CONSUMER_OFFSET, QueryOffset(group, topic, queue_id, zero_if_unknown=zero_if_unknown)
    )


async def commit(channel, offset, group="g", queue_id=0, topic="T"):
    answer = await channel.request(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset(group, topic, queue_id, offset))
    return answer.code


# -- committed offsets ------------------------------------------------------------------------------------------------


async def test_a_committed_offset_is_returned(channel):
    assert await commit(channel, 5) == 0
    assert await committed(channel) == 5
    assert await committed(channel, queue_id=1, zero_if_unknown=False) == UNKNOWN
    assert await committed(channel, group="other", zero_if_unknown=False) == UNKNOWN


async def test_committing_backwards_or_beyond_the_end_is_allowed(channel):
    for offset in (7, 3, 0, 1 << 62):
        assert await commit(channel, offset) == 0
        assert await committed(channel) == offset


async def test_a_new_group_starts_at_0_in_a_queue_that_still_has_offset_0(channel):
    """Also in an empty one: a client that is told "unknown" asks for the end, and a message may arrive in between."""
    assert await committed(channel) == 0
    await send(channel, "T", b"x")
    assert await committed(channel) == 0
    assert await committed(channel, queue_id=1) == 0
    assert await committed(channel, zero_if_unknown=False) == UNKNOWN


async def test_the_offset_of_an_unknown_topic_or_queue_is_not_found(channel):
    assert await committed(channel, topic="NoSuchTopic") == UNKNOWN
    assert await committed(channel, queue_id=99) == UNKNOWN
    assert await committed(channel, queue_id=-1) == UNKNOWN


async def test_committing_a_negative_offset_is_refused(channel):
    assert await commit(channel, -1) == ResponseCode.INVALID_PARAMETER
    assert await committed(channel, zero_if_unknown=False) == UNKNOWN


async def test_committing_to_an_unknown_topic_is_refused_and_creates_no_group(server, channel):
    assert await commit(channel, 1, topic="NoSuchTopic") == ResponseCode.TOPIC_NOT_EXIST
    assert await committed(channel, topic="NoSuchTopic", zero_if_unknown=False) == UNKNOWN
    assert server.broker.groups.get("g") is None


async def test_a_commit_creates_its_group_unless_auto_creation_is_off(server, channel, tmp_path):
    assert await commit(channel, 1, group="fresh") == 0
    assert server.broker.groups.get("fresh") is not None
    assert await commit(channel, 1, group="il legal") == ResponseCode.INVALID_PARAMETER
    async with running_broker(tmp_path / "strict", auto_create_groups=False) as strict:
        async with open_channel(strict.address) as other:
            await send(other, "T", b"x")
            assert await commit(other, 1) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert await commit(other, 1, group="TOOLS_CONSUMER") == 0


async def test_one_way_commits_are_applied_and_not_answered(server, channel):
    async with open_raw_connection(server.address) as wire:
        for offset in (1, 2):
            wire.write(RemotingCommand(15, 1, ONE_WAY_FLAG, ext=headers.write(CommitOffset("g", "T", 0, offset))))
        answer = await wire.request(RemotingCommand(14, 2, ext=headers.write(QueryOffset("g", "T", 0))))
        assert (answer.opaque, headers.read(OffsetResponse, answer.ext).offset) == (2, 2)


async def test_committed_offsets_survive_a_restart_of_the_broker(tmp_path):
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"x")
        await commit(channel, 1)
        await pull(channel, "T", 0, 1, group="puller", commit=1)
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        assert await committed(channel) == 1
        assert await committed(channel, group="puller") == 1
        assert server.broker.groups.get("g") is not None


async def test_deleting_a_topic_deletes_its_committed_offsets(server, channel):
    await send(channel, "Doomed", b"x")
    await commit(channel, 1, topic="Doomed")
    await server.broker.topics.delete("Doomed")
    await server.broker.topics.put(Topic(name="Doomed"))
    assert await committed(channel, topic="Doomed", zero_if_unknown=False) == UNKNOWN


# -- queue bounds -----------------------------------------------------------------------------------------------------


async def test_queue_bounds_are_returned_and_are_0_for_empty_and_unknown_queues(channel):
    queue, empty, nowhere = QueueRequest("T", 0), QueueRequest("T", 1), QueueRequest("NoSuchTopic", 0)
    for _ in range(3):
        await send(channel, "T", b"x")
    assert [await ask(channel, RequestCode.GET_MAX_OFFSET, one) for one in (queue, empty, nowhere)] == [3, 0, 0]
    # For an unknown queue, 4.9 answers 0 and 5.x answers -1; clients treat both as 0.
    assert [await ask(channel, RequestCode.GET_MIN_OFFSET, one) for one in (queue, empty, nowhere)] == [0, 0, 0]


async def test_the_max_offset_excludes_unreplicated_messages(tmp_path):
    log = SMALL_LOG.model_copy(update={"visible_after": "replicated"})
    async with running_broker(tmp_path, log=log) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"not shipped yet")
        assert await ask(channel, RequestCode.GET_MAX_OFFSET, QueueRequest("T", 0)) == 0
        assert (await pull(channel, "T")).code == ResponseCode.PULL_NOT_FOUND
        log_store_of(server.broker).replica.commit_to(server.broker.store.written)
        assert await ask(channel, RequestCode.GET_MAX_OFFSET, QueueRequest("T", 0)) == 1
        assert server.broker.store.bounds_nowait(Queue("T", 0)).end == 1


async def test_earliest_store_time_is_that_of_the_oldest_message(clock, channel):
    assert await ask(channel, RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRequest("T", 0)) == -1
    assert await ask(channel, RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRequest("NoSuchTopic", 0)) == -1
    clock.now_ms = 1_000_500
    await send(channel, "T", b"x")
    clock.now_ms = 1_000_900
    await send(channel, "T", b"y")
    assert await ask(channel, RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRequest("T", 0)) == 1_000_500


async def test_the_earliest_store_time_field_is_named_timestamp(channel):
    answer = await channel.request(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRequest("T", 0))
    assert answer.fields() == {"timestamp": "-1"}
    assert headers.read(StoreTimeResponse, answer.ext).time_ms == -1


@pytest.fixture
async def timed(clock, channel):
    """Store offsets 0 to 4 at +100, +200, +200, +200 and +300 ms."""
    for after in (100, 200, 200, 200, 300):
        clock.now_ms = 1_000_000 + after
        await send(channel, "T", b"x")
    return channel


BY_TIME = [
    # ms after the start, first offset at or after it, last offset at or before it
    (-1_000_000, 0, 0),
    (0, 0, 0),
    (100, 0, 0),
    (150, 1, 0),
    (200, 1, 3),
    (250, 4, 3),
    (300, 4, 4),
    (301, 5, 4),
    (10_000_000, 5, 4),
]


@pytest.mark.parametrize("boundary", [None, "LOWER", "lower", "UPPER", "upper"])
async def test_searching_by_time_finds_the_first_at_or_after_or_the_last_at_or_before(timed, boundary):
    for after, lower, upper in BY_TIME:
        asked = SearchOffset("T", 0, 1_000_000 + after, boundary)
        expected = upper if asked.wants_upper else lower
        assert await ask(timed, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, asked) == expected, f"{after} ms after"


async def test_searching_by_time_accepts_any_64_bit_time(timed):
    for time_ms in (-(1 << 63), -1, 0, (1 << 63) - 1):
        found = await ask(timed, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset("T", 0, time_ms))
        assert found == (5 if time_ms > 0 else 0)
        assert await ask(timed, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset("T", 1, time_ms)) == 0
        assert await ask(timed, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset("NoSuchTopic", 0, time_ms)) == 0

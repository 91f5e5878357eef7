"""Topics with lanes on a real broker: creation, sends, routes, reads, and pops in the order of priorities."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.broker_client import LOG, BrokerClient, Clock, running_broker_client
from tests.support.platforms import encode_properties, open_channel, running_platform, send, send_batch, try_send
from tests.support.wait import eventually

from sparrow.broker.server import BrokerServer
from sparrow.model.message import StoredMessage
from sparrow.model.priority import LANES_SYS_FLAG, Priority
from sparrow.model.queue import Queue
from sparrow.settings import BrokerSettings
from sparrow.store.spi import Slice
from sparrow.wire import batch, bodies, headers, record
from sparrow.wire.bodies import QueueRef, RouteData, TopicConfig
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import (
    EndTransaction,
    GetRoute,
    PeekMessage,
    PopMessage,
    SendMessageResponse,
    TopicRequest,
    UpdateTopic,
)

HIGH, MIDDLE, LOW = Priority
PARTS = 2
STARVATION_MS = 30_000
IN_TRANSACTION = 4
COMMIT = 8


def topic_request(name: str = "T", **changes: object) -> UpdateTopic:
    fields = {
        "topic": name,
        "template_topic": "TBW102",
        "read_queues": PARTS,
        "write_queues": PARTS,
        "permission": 6,
        "filter_type": "SINGLE_TAG",
        "is_ordered": False,
        "sys_flag": LANES_SYS_FLAG,
    }
    return UpdateTopic(**(fields | changes))


class LanesClient:
    """One client of a broker that has a topic with lanes."""

    def __init__(self, client: BrokerClient, clock: Clock) -> None:
        self.client, self.clock, self.channel, self.store = client, clock, client.channel, client.broker.store

    async def update_topic(self, **changes: object) -> TopicConfig:
        await self.client.request_ok(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request(**changes))
        return await self.client.request_body(TopicConfig, RequestCode.GET_TOPIC_CONFIG, TopicRequest("T"))

    async def send(
        self, priority: Priority | None, body: bytes = b"", part: int = 0, **said: str
    ) -> SendMessageResponse:
        word = {} if priority is None else {"PRIORITY": priority.label}
        return await send(self.channel, "T", body, part, encode_properties(**word, **said))

    async def send_many(self, priority: Priority, count: int, part: int = 0) -> None:
        members = [(b"%d" % number, encode_properties(PRIORITY=priority.label).encode()) for number in range(count)]
        await send_batch(self.channel, "T", members, part)

    async def read_stored(self, queue_id: int) -> list[StoredMessage]:
        found = await self.store.read(Queue("T", queue_id), 0, count_max=1_000)
        return record.decode_all(found.tobytes()) if isinstance(found, Slice) else []

    async def read_bodies(self, queue_id: int) -> list[bytes]:
        return [message.body for message in await self.read_stored(queue_id)]

    async def pop(self, count: int = 32, *, poll_ms: int = 0, queue_id: int = -1) -> list[StoredMessage]:
        header = PopMessage("G", "T", queue_id, count, 600_000, poll_ms, self.clock(), init_mode=0)
        answer = await self.channel.request(RequestCode.POP_MESSAGE, header, timeout_ms=10_000 + poll_ms)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), answer.remark
        return record.decode_all(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []

    async def pop_and_count_lanes(self, count: int = 32) -> Counter[Priority]:
        return Counter(Priority(message.queue_id % 3) for message in await self.pop(count))


@asynccontextmanager
async def running_lanes_client(path: Path, **settings: object) -> AsyncIterator[LanesClient]:
    clock = Clock()
    async with running_broker_client(path / "store", clock, **settings) as client:
        lanes = LanesClient(client, clock)
        await lanes.update_topic()
        yield lanes


@pytest.fixture
async def lanes(tmp_path: Path) -> AsyncIterator[LanesClient]:
    async with running_lanes_client(tmp_path) as lanes:
        yield lanes


# -- topics -----------------------------------------------------------------------------------------------------------


async def test_a_topic_with_lanes_is_created_and_gets_more_write_queues(lanes):
    config = await lanes.update_topic()
    assert (config.write_queue_nums, config.read_queue_nums, config.topic_sys_flag) == (2, 6, LANES_SYS_FLAG)
    config = await lanes.update_topic(write_queues=4, read_queues=12, permission=4)
    assert (config.write_queue_nums, config.read_queue_nums, config.perm) == (4, 12, 4)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "new", "read_queues": 5}, "2 write queues need 6 read queues, not 5"),
        ({"sys_flag": 0}, "topic 'T' has lanes, and that cannot change"),
        ({"write_queues": 1, "read_queues": 3}, "messages in the others would be unreadable"),
        ({"name": "%RETRY%G"}, "those have no lanes"),
        ({"name": "new", "write_queues": 30_000, "read_queues": 30_000}, "cannot have 90000 queues in lanes"),
        ({"sys_flag": LANES_SYS_FLAG | 8}, "24 is not a topic flag"),
        ({"sys_flag": -1}, "-1 is not a topic flag"),
    ],
)
async def test_a_topic_change_that_breaks_lanes_is_refused(lanes, changes, why):
    before = list(lanes.client.broker.topics)
    _, remark = await lanes.client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request(**changes))
    assert why in remark
    assert list(lanes.client.broker.topics) == before


async def test_adding_lanes_to_an_ordinary_topic_is_refused(lanes):
    await send(lanes.channel, "ordinary", b"x")
    _, remark = await lanes.client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("ordinary"))
    assert "topic 'ordinary' has no lanes, and that cannot change" in remark


async def test_lanes_and_their_messages_survive_a_restart(tmp_path):
    async with running_lanes_client(tmp_path) as lanes:
        await lanes.send(LOW, b"x", part=1)
    async with running_broker_client(tmp_path / "store", Clock()) as client:
        lanes = LanesClient(client, Clock())
        assert [message.body for message in await lanes.pop()] == [b"x"]
        assert (await lanes.send(HIGH, part=1)).queue_id == 3


async def test_topic_stats_contain_the_bounds_of_every_lane(lanes):
    for priority in Priority:
        await lanes.send_many(priority, 1 + priority, part=1)
    stats = await lanes.client.request_body(bodies.TopicStats, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest("T"))
    name = lanes.client.broker.name
    ends = {queue.queue_id: bounds.max_offset for queue, bounds in stats.offset_table.items()}
    assert ends == {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 3}
    assert QueueRef("T", name, 5) in stats.offset_table


async def test_an_offset_reset_covers_every_lane(lanes):
    for priority in Priority:
        await lanes.send_many(priority, 2, part=1)
        await lanes.client.commit("G", Queue("T", 3 + priority), 2)
    await lanes.client.subscribe("G", T="*")
    header = headers.ResetOffset("T", "G", 0, True)
    said = await lanes.client.request_body(bodies.OffsetTable, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert {queue.queue_id: offset for queue, offset in said.offset_table.items()} == dict.fromkeys(range(6), 0)


async def test_consume_time_spans_cover_every_lane(lanes):
    await lanes.send_many(LOW, 1, part=1)
    header = headers.GetConsumeTimeSpans("T", "G")
    said = await lanes.client.request_body(bodies.ConsumeTimeSpans, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
    assert [span.message_queue.queue_id for span in said.consume_time_span_set] == list(range(6))


async def test_routes_contain_the_lane_flag_and_the_queue_counts(tmp_path):
    async with running_platform(tmp_path) as platform, open_channel(platform.broker.address) as broker:
        answer = await broker.request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request(), timeout_ms=10_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        async with open_channel(platform.name_server.address) as naming:
            answer = await naming.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("T"), timeout_ms=10_000)
        (queues,) = bodies.read(RouteData, answer.body).queue_datas
        assert (queues.write_queue_nums, queues.read_queue_nums, queues.topic_sys_flag) == (2, 6, LANES_SYS_FLAG)
        assert b'"topicSysFlag":16' in bytes(answer.body)


# -- sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("priority", "lane"), [(None, MIDDLE), *((each, each) for each in Priority)])
@pytest.mark.parametrize("part", range(PARTS))
async def test_a_send_stores_in_the_lane_of_its_priority_and_returns_its_queue_id(lanes, priority, lane, part):
    sent = await lanes.send(priority, b"x", part)
    assert (sent.queue_id, sent.queue_offset) == (part * 3 + lane, 0)
    (message,) = await lanes.read_stored(sent.queue_id)
    assert (message.body, message.queue_id) == (b"x", sent.queue_id)


async def test_a_send_without_a_queue_goes_to_any_write_queue_in_its_lane(lanes):
    ids = {(await lanes.send(LOW, part=-1)).queue_id for _ in range(64)}
    assert ids == {LOW, 3 + LOW}


async def test_a_send_to_an_unknown_write_queue_is_refused(lanes):
    answer = await try_send(lanes.channel, "T", b"x", PARTS)
    assert answer.code != ResponseCode.SUCCESS
    assert "topic 'T' has no queue 2: its queues are 0 to 1" in (answer.remark or "")


async def test_an_unknown_priority_is_refused_only_by_topics_with_lanes(lanes):
    answer = await try_send(lanes.channel, "T", b"x", 0, encode_properties(PRIORITY="urgent"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "use high, middle or low" in (answer.remark or "")
    sent = await send(lanes.channel, "ordinary", b"x", 3, encode_properties(PRIORITY="urgent"))
    assert sent.queue_id == 3


@pytest.mark.parametrize("count", [2, 1_000])
async def test_a_batch_is_stored_in_the_lane_of_its_messages(lanes, count):
    members = [(b"%d" % number, encode_properties(PRIORITY="low").encode()) for number in range(count)]
    sent = await send_batch(lanes.channel, "T", members, 1)
    assert sent.queue_id == 3 + LOW
    assert await lanes.read_bodies(3 + LOW) == [body for body, _ in members]


async def test_a_batch_without_a_priority_is_stored_in_the_middle_lane(lanes):
    assert (await send_batch(lanes.channel, "T", [(b"PRIORITY", b""), (b"b", b"")])).queue_id == MIDDLE


async def test_a_batch_of_several_priorities_is_refused_completely(lanes):
    members = [
        (0, b"a", encode_properties(PRIORITY="low").encode()),
        (0, b"b", encode_properties(PRIORITY="high").encode()),
    ]
    answer = await try_send(lanes.channel, "T", batch.encode(members), code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "its messages have priorities high, low" in (answer.remark or "")
    assert [await lanes.read_bodies(queue_id) for queue_id in range(3)] == [[], [], []]
    ordinary = await send_batch(lanes.channel, "ordinary", [(body, said) for _, body, said in members])
    assert ordinary.queue_id == 0


@pytest.mark.parametrize("said", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
async def test_a_delayed_message_keeps_its_lane(lanes, said):
    sent = await lanes.send(HIGH, b"later", part=1, **said)
    assert sent.queue_id == 3 + HIGH
    assert await lanes.read_bodies(3 + HIGH) == []
    lanes.clock.now_ms += 1_000
    lanes.client.broker.delay.wake()
    await eventually(lambda: lanes.store.bounds_nowait(Queue("T", 3 + HIGH)).end == 1)
    assert await lanes.read_bodies(3 + HIGH) == [b"later"]


async def test_a_transactional_message_keeps_its_lane(lanes):
    said = encode_properties(TRAN_MSG="true", PGROUP="p", PRIORITY="low")
    sent = await send(lanes.channel, "T", b"paid", 1, said, sys_flag=IN_TRANSACTION, group="p")
    assert sent.queue_id == 3 + LOW
    word = EndTransaction("p", sent.queue_offset, int(sent.message_id[-16:], 16), COMMIT, "id")
    assert (await lanes.channel.request(RequestCode.END_TRANSACTION, word)).code == ResponseCode.SUCCESS
    assert await lanes.read_bodies(3 + LOW) == [b"paid"]


async def test_every_lane_can_be_pulled(lanes):
    for priority in Priority:
        await lanes.send(priority, priority.label.encode())
        answer = await lanes.client.pull("G", Queue("T", priority))
        assert [message.body for message in record.decode_all(bytes(answer.body))] == [priority.label.encode()]


# -- popping ----------------------------------------------------------------------------------------------------------


async def test_a_pop_returns_high_then_middle_then_low(lanes):
    for priority in (LOW, HIGH, MIDDLE):
        for part in range(PARTS):
            await lanes.send_many(priority, 5, part)
    got = [message.queue_id % 3 for message in await lanes.pop(24)]
    assert got == [HIGH] * 10 + [MIDDLE] * 10 + [LOW] * 4
    assert [message.queue_id % 3 for message in await lanes.pop(24)] == [LOW] * 6


async def test_a_later_message_of_higher_priority_is_popped_first(lanes):
    await lanes.send_many(LOW, 30)
    assert await lanes.pop_and_count_lanes(10) == {LOW: 10}
    await lanes.send_many(HIGH, 5)
    assert await lanes.pop_and_count_lanes(10) == {HIGH: 5, LOW: 5}


async def test_a_pop_of_one_queue_returns_that_lane_only(lanes):
    await lanes.send_many(HIGH, 3)
    await lanes.send_many(LOW, 3)
    assert [message.queue_id for message in await lanes.pop(queue_id=LOW)] == [LOW] * 3


async def test_a_peek_returns_the_highest_priority_first(lanes):
    for priority in (LOW, MIDDLE, HIGH):
        await lanes.send_many(priority, 2, part=1)
    await lanes.pop(1)
    answer = await lanes.channel.request(RequestCode.PEEK_MESSAGE, PeekMessage("G", "T", -1, 4))
    found = record.decode_all(bytes(answer.body))
    assert [message.queue_id % 3 for message in found] == [HIGH, MIDDLE, MIDDLE, LOW]


@pytest.mark.parametrize("priority", Priority)
async def test_a_parked_pop_is_woken_by_any_lane(lanes, priority):
    waiting = asyncio.ensure_future(lanes.pop(poll_ms=20_000))
    await eventually(lambda: lanes.client.broker.long_polls.count == 1)
    sent = await lanes.send(priority, b"x", part=1)
    (message,) = await asyncio.wait_for(waiting, 12)
    assert message.queue_id == sent.queue_id == 3 + priority


async def test_lower_lanes_wait_while_higher_lanes_fill_the_batch(lanes):
    for priority in Priority:
        await lanes.send_many(priority, 100)
    lanes.clock.now_ms += STARVATION_MS
    assert [await lanes.pop_and_count_lanes(10) for _ in range(3)] == [{HIGH: 10}] * 3


async def test_starved_lanes_get_their_share_of_every_batch(lanes):
    for priority in Priority:
        await lanes.send_many(priority, 100)
    lanes.clock.now_ms += STARVATION_MS + 1
    assert [await lanes.pop_and_count_lanes(10) for _ in range(3)] == [{HIGH: 7, MIDDLE: 2, LOW: 1}] * 3


async def test_the_shares_of_starved_lanes_hold_over_small_batches(lanes):
    for priority in Priority:
        await lanes.send_many(priority, 100)
    lanes.clock.now_ms += STARVATION_MS + 1
    got = sum([await lanes.pop_and_count_lanes(1) for _ in range(61)], Counter())
    assert got == {HIGH: 43, MIDDLE: 12, LOW: 6}


async def test_only_starved_lanes_get_a_share_and_batches_stay_full(lanes):
    await lanes.send_many(LOW, 2)
    lanes.clock.now_ms += STARVATION_MS + 1
    await lanes.send_many(HIGH, 100)
    await lanes.send_many(MIDDLE, 100)
    assert [await lanes.pop_and_count_lanes(30) for _ in range(2)] == [{HIGH: 28, LOW: 2}, {HIGH: 30}]


@pytest.mark.usefixtures("no_page_cache")
async def test_a_starved_lane_on_disk_gets_its_share_as_separate_pops(tmp_path):
    clock, cold = Clock(), LOG.model_copy(update={"hot_bytes": 0})
    async with BrokerServer(BrokerSettings(port=0), tmp_path / "store", cold, now_ms=clock) as server:
        async with open_channel(server.address) as channel:
            lanes = LanesClient(BrokerClient(server, channel), clock)
            await lanes.update_topic()
            await lanes.send_many(HIGH, 100)
            await lanes.send_many(LOW, 100)
            assert lanes.store.read_nowait(Queue("T", LOW), 0) is None
            clock.now_ms += STARVATION_MS + 1
            popped = [await lanes.pop_and_count_lanes(5) for _ in range(20)]
    assert popped == ([{HIGH: 5}] * 9 + [{LOW: 5}]) * 2


async def test_without_a_starvation_time_the_order_is_strict(tmp_path):
    async with running_lanes_client(tmp_path, lane_starvation_ms=0) as lanes:
        for priority in Priority:
            await lanes.send_many(priority, 100)
        lanes.clock.now_ms += 3_600_000
        assert [await lanes.pop_and_count_lanes(10) for _ in range(12)] == [{HIGH: 10}] * 10 + [{MIDDLE: 10}] * 2


async def test_a_pop_response_names_no_queue_twice(lanes):
    for priority in Priority:
        for part in range(PARTS):
            await lanes.send_many(priority, 50, part)
    lanes.clock.now_ms += STARVATION_MS + 1
    header = PopMessage("G", "T", -1, 32, 600_000, 0, lanes.clock(), init_mode=0)
    for _ in range(5):
        answer = await lanes.channel.request(RequestCode.POP_MESSAGE, header)
        starts = headers.read(headers.PopMessageResponse, answer.ext).start_offsets.split(";")
        names = [entry.split(" ")[1] for entry in starts]
        assert len(names) == len(set(names))


# -- RocketMQ's priorities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["log", "sqlite"])
async def test_a_topic_of_type_priority_has_lanes_for_the_numbers_of_rocketmq(tmp_path, store):
    settings = {} if store == "log" else {"store": f"sqlite:///{tmp_path}/sparrow.db"}
    lane_of = {"0": LOW, "1": MIDDLE, "2": HIGH, "7": HIGH, "": MIDDLE, "-1": MIDDLE, "x": MIDDLE}
    async with running_broker_client(tmp_path / "store", Clock(), **settings) as client:

        async def update_topic(**changes: object) -> TopicConfig:
            request = topic_request("urgent", sys_flag=0, **changes)  # of a tool that knows nothing of lanes
            await client.request_ok(RequestCode.UPDATE_AND_CREATE_TOPIC, request)
            return await client.request_body(TopicConfig, RequestCode.GET_TOPIC_CONFIG, TopicRequest("urgent"))

        config = await update_topic(attributes="+message.type=PRIORITY")
        assert (config.write_queue_nums, config.read_queue_nums) == (2, 6)
        assert config.attributes == {"message.type": "PRIORITY"}
        for number, lane in lane_of.items():
            assert (await client.send(Queue("urgent", 1), b"x", _SYS_MSG_PRIORITY_=number)).queue_id == 3 + lane
        both = {"_SYS_MSG_PRIORITY_": "2", "PRIORITY": "low"}
        assert (await client.send(Queue("urgent", 0), b"x", **both)).queue_id == LOW
        config = await update_topic(permission=4)
        assert (config.write_queue_nums, config.read_queue_nums, config.perm) == (2, 6, 4)


async def test_messages_with_numbers_are_popped_by_priority(lanes):
    for number in range(3):
        await lanes.send(None, b"%d" % number, _SYS_MSG_PRIORITY_=str(number))
    assert [message.body for message in await lanes.pop()] == [b"2", b"1", b"0"]


async def test_a_batch_goes_to_the_lane_of_its_number(lanes):
    await send_batch(lanes.channel, "T", [(b"x", encode_properties(_SYS_MSG_PRIORITY_="0").encode())] * 2, 0)
    assert await lanes.read_bodies(LOW) == [b"x", b"x"]


async def test_an_ordinary_topic_cannot_become_one_of_type_priority(lanes):
    await send(lanes.channel, "ordinary", b"x")
    change = topic_request("ordinary", sys_flag=0, attributes="+message.type=PRIORITY")
    _, remark = await lanes.client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC, change)
    assert "it was created without lanes" in remark

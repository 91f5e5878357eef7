"""Batches of very many messages: a limit refuses them, and those below it are stored whole, whatever their shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.platforms import open_channel, pull, running_broker, send, try_send

from sparrow.broker.server import BrokerServer
from sparrow.model.priority import LANES_SYS_FLAG
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net import Channel
from sparrow.settings import LogSettings
from sparrow.store.sql.append.lane_writer import KEYS_MAX
from sparrow.store.sql.read import lane_view
from sparrow.wire import batch, properties
from sparrow.wire.codes import RequestCode, ResponseCode

LIMIT = 7_000
BATCH = {"code": RequestCode.SEND_BATCH_MESSAGE, "batch": True}
Members = list[tuple[int, bytes, bytes]]
SHAPES: dict[str, Callable[[int], Members]] = {
    "equal sizes": lambda count: [(0, b"%06d" % number, b"") for number in range(count)],
    "many sizes": lambda count: [(0, b"%d" % number, b"a\x01%d\x02" % number) for number in range(count)],
    # Such batches were judged by the size of the first message, and so encoded one by one.
    "a large one first": lambda count: [
        (0, b"%d" % number + b"." * (0 if number else 60_000), b"") for number in range(count)
    ],
    # The next ones look like messages with a delay, a reference of the broker, or a priority.
    "a word of delays": lambda count: [(0, b"%d" % number, b"DELAYED\x01x\x02") for number in range(count)],
    "references": lambda count: [(0, b"%d" % number, b"__REF\x01x\x02") for number in range(count)],
    "priorities": lambda count: [(0, b"%d" % number, b"PRIORITY\x01high\x02") for number in range(count)],
}


@pytest.fixture(params=["log", "lanes", "sqlite"])
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerServer]:
    settings: dict[str, object] = {"batch_messages_max": LIMIT}
    if request.param == "sqlite":
        settings["store"] = f"sqlite:///{tmp_path}/messages.sqlite"
    async with running_broker(tmp_path, log=LogSettings(warm_bytes=0, segment_bytes=64 << 20), **settings) as running:
        flag = LANES_SYS_FLAG if request.param != "log" else 0
        queues = {"read_queues": 3, "write_queues": 1} if flag else {}
        await running.broker.topics.put(Topic(name="t", sys_flag=flag, **queues))  # type: ignore[arg-type]
        yield running


@pytest.fixture
async def channel(running: BrokerServer) -> AsyncIterator[Channel]:
    async with open_channel(running.address) as channel:
        yield channel


def stored_messages(running: BrokerServer) -> int:
    topic = running.broker.topics["t"]
    ends = [running.broker.store.bounds_nowait(Queue("t", number)).end for number in range(topic.read_queues)]
    return sum(ends)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_batch_of_as_many_messages_as_permitted_is_stored_in_order(shape, running, channel):
    members = SHAPES[shape](LIMIT)
    answered = await send(channel, "t", batch.encode(members), **BATCH)
    assert answered.message_id.count(",") == LIMIT - 1

    found: list[bytes] = []
    while len(found) < LIMIT:
        pulled = await pull(channel, "t", answered.queue_id, len(found), count=LIMIT, bytes_max=8 << 20)
        assert pulled.messages, pulled.remark
        found += pulled.bodies
        assert all("__REF" not in message.properties for message in pulled.messages)
    assert found == [body for _, body, _ in members]
    assert stored_messages(running) == LIMIT


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [LIMIT + 1, 60_000])
async def test_a_batch_of_more_messages_is_refused_as_a_whole(shape, count, running, channel):
    refused = await try_send(channel, "t", batch.encode(SHAPES[shape](count)), **BATCH)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert refused.remark == (
        "the batch has more messages than broker.batch_messages_max = 7000: send them in several batches, or raise the "
        "limit"
    )
    assert stored_messages(running) == 0


async def test_the_limit_may_be_lower_than_the_number_of_messages_that_are_encoded_one_by_one(tmp_path):
    async with running_broker(tmp_path, batch_messages_max=3) as running, open_channel(running.address) as channel:
        members = [(0, b"x" * 1_000, b"")] * 4
        await send(channel, "t", batch.encode(members[:3]), **BATCH)
        refused = await try_send(channel, "t", batch.encode(members), **BATCH)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("delayed", [0, 6_999])
async def test_a_delayed_message_anywhere_in_a_large_batch_refuses_it(delayed, running, channel):
    members = SHAPES["many sizes"](LIMIT)
    members[delayed] = (0, b"later", properties.encode({"DELAY": "3"}))
    refused = await try_send(channel, "t", batch.encode(members), **BATCH)
    assert (refused.code, stored_messages(running)) == (ResponseCode.MESSAGE_ILLEGAL, 0)
    assert "cannot be delayed" in (refused.remark or "")


async def test_a_large_batch_that_cannot_be_decoded_is_refused(running, channel):
    body = batch.encode(SHAPES["references"](LIMIT))[:-1]
    refused = await try_send(channel, "t", body, **BATCH)
    assert (refused.code, stored_messages(running)) == (ResponseCode.INVALID_PARAMETER, 0)
    assert "the batch cannot be decoded" in (refused.remark or "")


@pytest.mark.parametrize("running", ["sqlite"], indirect=True)
async def test_a_database_gets_a_limited_number_of_keys_with_one_request(running, channel):
    keys = b"KEYS\x01" + b" ".join(b"%d" % number for number in range(1 + KEYS_MAX // 1_000)) + b"\x02"
    body = batch.encode([(0, b"", keys)] * 1_001)
    refused = await try_send(channel, "t", body, **BATCH)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert refused.remark == "the messages have 50050 keys, and one request may have 50000: send fewer at a time"
    await send(channel, "t", batch.encode([(0, b"", keys)] * 1_000), **BATCH)


@pytest.mark.parametrize("running", ["sqlite"], indirect=True)
@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_pull_from_a_database_returns_a_limited_number_of_messages(is_cached, running, channel, monkeypatch):
    monkeypatch.setattr(lane_view, "MESSAGES_READ_MAX", 1_000)
    sent = await send(channel, "t", batch.encode(SHAPES["many sizes"](2_500)), **BATCH)
    if not is_cached:
        running.broker.store._views.forget()
        await running.broker.store.bounds(Queue("t", sent.queue_id))
    counts, offset = [], 0
    while offset < 2_500:
        pulled = await pull(channel, "t", sent.queue_id, offset, count=2_500, bytes_max=8 << 20)
        assert [message.queue_offset for message in pulled.messages] == [*range(offset, offset + len(pulled.messages))]
        counts.append(len(pulled.messages))
        offset = pulled.header.next_offset
    assert counts == [1_000, 1_000, 500]

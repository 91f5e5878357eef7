"""Pops from a topic with many queues, on both stores: nothing is missed, and others have turns meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.platforms import TIMEOUT_MS, open_channel, running_broker, send
from tests.support.wait import eventually

from sparrow.broker.pop import fetch
from sparrow.broker.server import BrokerServer
from sparrow.model.topic import Topic
from sparrow.net import Channel
from sparrow.wire import headers, record
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import NotificationRequest, NotificationResponse, PopMessage

QUEUES_A_STEP, QUEUES = 4, 16
POLL_MS = 60_000


@pytest.fixture(params=["log", "sqlite"])
async def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BrokerServer]:
    monkeypatch.setattr(fetch, "QUEUES_A_STEP", QUEUES_A_STEP)  # a topic of 16 queues is wide
    changes = {"store": f"sqlite:///{tmp_path}/store.db"} if request.param == "sqlite" else {}
    async with running_broker(tmp_path, **changes) as running:
        await running.broker.topics.put(Topic(name="wide", read_queues=QUEUES, write_queues=QUEUES))
        yield running


@pytest.fixture
async def channel(server: BrokerServer) -> AsyncIterator[Channel]:
    async with open_channel(server.address) as channel:
        # The first pop of a group loads positions on a database, and may be answered before its time is over.
        assert (await pop(server, channel)).code == ResponseCode.POLLING_TIMEOUT
        yield channel


def pop_request(server: BrokerServer, *, poll_ms: int = 0, group: str = "G") -> PopMessage:
    return PopMessage(group, "wide", -1, 32, 60_000, poll_ms, server.broker.now_ms(), init_mode=0)


async def pop(server: BrokerServer, channel: Channel, **how: object) -> RemotingCommand:
    request = pop_request(server, **how)
    return await channel.request(RequestCode.POP_MESSAGE, request, timeout_ms=TIMEOUT_MS + POLL_MS)


def bodies_of(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in record.decode_all(bytes(answer.body))] if answer.body else []


async def test_all_messages_of_a_wide_topic_are_popped_once(server: BrokerServer, channel: Channel) -> None:
    sent = {b"%d" % number for number in range(QUEUES)}
    for body in sent:
        await send(channel, "wide", body, queue_id=int(body))
    popped: list[bytes] = []
    async with asyncio.timeout(60):
        while len(popped) < len(sent):
            popped += bodies_of(await pop(server, channel))
    assert sorted(popped) == sorted(sent)
    assert (await pop(server, channel)).code == ResponseCode.POLLING_TIMEOUT


async def test_a_parked_pop_of_a_wide_topic_gets_the_message_of_any_queue(
    server: BrokerServer, channel: Channel
) -> None:
    for number in (3, QUEUES - 1, 3):
        waiting = asyncio.ensure_future(pop(server, channel, poll_ms=POLL_MS))
        await eventually(lambda: server.broker.long_polls.count == 1)
        await send(channel, "wide", b"%d" % number, queue_id=number)
        assert bodies_of(await waiting) == [b"%d" % number]


async def test_a_message_that_arrives_while_the_queues_are_examined_is_not_missed(
    server: BrokerServer, channel: Channel
) -> None:
    for number in range(20):
        waiting = asyncio.ensure_future(pop(server, channel, poll_ms=POLL_MS))
        await send(channel, "wide", b"%d" % number, queue_id=number * QUEUES // 20)
        assert bodies_of(await waiting) == [b"%d" % number]


async def test_a_notification_of_a_wide_topic_tells_of_any_queue(server: BrokerServer, channel: Channel) -> None:
    async def notify(poll_ms: int) -> bool:
        request = NotificationRequest("G", "wide", -1, poll_ms, server.broker.now_ms())
        answer = await channel.request(RequestCode.NOTIFICATION, request, timeout_ms=TIMEOUT_MS + POLL_MS)
        return headers.read(NotificationResponse, answer.ext).has_message

    assert not await notify(0)
    waiting = asyncio.ensure_future(notify(POLL_MS))
    await eventually(lambda: server.broker.long_polls.count == 1)
    await send(channel, "wide", b"news", queue_id=QUEUES // 2)
    assert await waiting
    assert await notify(0)


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[int]]:
    """Count the iterations of the event loop."""
    turns = [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    try:
        yield turns
    finally:
        task.cancel()


async def test_others_have_turns_while_the_queues_of_a_wide_topic_are_examined(
    server: BrokerServer, channel: Channel
) -> None:
    examined = []
    fetcher_fill = server._serving._plain[RequestCode.POP_MESSAGE].__self__._fetcher  # type: ignore[attr-defined]
    fill = fetcher_fill.fill
    turns_of_fills: list[int] = []
    async with counted_turns() as turns:

        def counting_fill(response):  # type: ignore[no-untyped-def]
            turns_of_fills.append(turns[0])
            result = fill(response)
            examined.append(len(response.sources))
            return result

        fetcher_fill.fill = counting_fill
        await asyncio.gather(*(pop(server, channel, group=f"G{number % 2}") for number in range(6)))
    assert sum(examined) >= QUEUES
    assert max(examined) <= QUEUES_A_STEP + 1
    assert len(set(turns_of_fills)) == len(turns_of_fills), "one step a turn, however many pops wait"

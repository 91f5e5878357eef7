"""Requests and replies through a real broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.platforms import encode_properties, pull, running_broker, send_header
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually

from sparrow import client
from sparrow.client.aio import Consumer, Producer
from sparrow.model.errors import RequestTimeout, SparrowError
from sparrow.model.message import Message, StoredMessage
from sparrow.net import Address, Channel, connect
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestDispatcher
from sparrow.testing import RunningPlatform
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import HeartbeatData, ProducerData
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import Heartbeat, PushReply, SendMessageResponse

REPLIES = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        await running.create_topic("T")
        yield running


@asynccontextmanager
async def answering(
    driver: PlatformDriver, answer: Callable[[Producer, StoredMessage], Awaitable[object]]
) -> AsyncIterator[Producer]:
    """Start a consumer that replies, and yield a producer for requests."""
    async with Consumer(driver.name_servers, group="answerers") as consumer:
        async with Producer(session=consumer.session, group="answers") as answers:

            async def handle(message: StoredMessage) -> None:
                await answer(answers, message)

            await consumer.subscribe("T")
            await consumer.start(handle)
            async with Producer(driver.name_servers, group="askers") as producer:
                yield producer
            await consumer.close()


async def upper(answers: Producer, message: StoredMessage) -> None:
    await answers.reply(message, message.body.upper())


async def test_request_gets_its_reply(driver: PlatformDriver) -> None:
    async with answering(driver, upper) as producer:
        texts = [f"question {number}" for number in range(50)]
        replies = await asyncio.gather(*(producer.request(Message("T", text), timeout_ms=10_000) for text in texts))
        assert [reply.body.decode() for reply in replies] == [text.upper() for text in texts]
        assert {reply.topic for reply in replies} == {REPLIES}
        assert producer.session.pending_replies == {}


async def test_long_reply_is_received_whole(driver: PlatformDriver) -> None:
    async with answering(driver, upper) as producer:
        reply = await producer.request(Message("T", "x" * 100_000), timeout_ms=10_000)
        assert reply.body == b"X" * 100_000


async def test_reply_is_stored_in_the_reply_topic(driver: PlatformDriver) -> None:
    async with answering(driver, upper) as producer:
        await producer.request(Message("T", "question"), timeout_ms=10_000)
    kept = await pull(driver.channel, REPLIES)
    assert kept.bodies == [b"QUESTION"]
    assert kept.messages[0].properties["MSG_TYPE"] == "reply"


async def test_request_without_a_reply_times_out(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers) as producer:
        with pytest.raises(RequestTimeout, match="consumer of topic 'T' did not respond to the request within 100 ms"):
            await producer.request(Message("T", "anybody?"), timeout_ms=100)
        assert producer.session.pending_replies == {}


async def test_late_reply_is_ignored(driver: PlatformDriver) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    told: list[object] = []

    async def late(answers: Producer, message: StoredMessage) -> None:
        if message.body == b"slow":
            asked.set()
            await go_on.wait()
        told.append(await answers.reply(message, b"answer"))

    async with answering(driver, late) as producer:
        with pytest.raises(RequestTimeout):
            await producer.request(Message("T", "slow"), timeout_ms=200)
        await asked.wait()
        go_on.set()
        await eventually(lambda: len(told) == 1)
        assert (await producer.request(Message("T", "quick"), timeout_ms=10_000)).body == b"answer"


async def test_reply_raises_when_the_requester_is_offline(driver: PlatformDriver) -> None:
    handler = RecordingHandler()
    async with Consumer(driver.name_servers, group="answerers") as consumer:
        await consumer.subscribe("T")
        await consumer.start(handler)
        async with Producer(driver.name_servers, group="askers") as producer:
            with pytest.raises(RequestTimeout):
                await producer.request(Message("T", "wait for me"), timeout_ms=500)
        await eventually(lambda: handler.messages)
        async with Producer(driver.name_servers, group="answers") as answers:
            with pytest.raises(SparrowError, match="not online here"):
                await answers.reply(handler.messages[0], b"too late")


def test_blocking_client_requests_and_replies(platform: RunningPlatform) -> None:
    with (
        client.Producer(platform.name_servers, group="askers") as producer,
        client.Producer(platform.name_servers, group="answers") as answers,
        client.Consumer(platform.name_servers, group="answerers") as consumer,
    ):
        consumer.subscribe("T")
        consumer.start(lambda message: answers.reply(message, message.body[::-1]), workers=2)
        assert producer.request(Message("T", "abc"), timeout_ms=10_000).body == b"cba"


# -- broker -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def asker(
    address: Address, say: ResponseCode = ResponseCode.SUCCESS
) -> AsyncIterator[list[tuple[PushReply, bytes]]]:
    """Connect a client that the broker knows as a producer, and that accepts or refuses replies."""
    pushed: list[tuple[PushReply, bytes]] = []

    async def take(header: PushReply, _: None, call: RequestContext) -> HandlerResponse:
        pushed.append((header, bytes(call.command.body)))
        return HandlerResponse(code=say, remark=None if say is ResponseCode.SUCCESS else "no, thanks")

    serving = RequestDispatcher(None, {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take})
    channel = await connect(address, serving)
    beat = bodies.write(HeartbeatData("me@1", [ProducerData("askers")]))
    assert (await channel.request(RequestCode.HEART_BEAT, Heartbeat(), beat)).code == ResponseCode.SUCCESS
    try:
        yield pushed
    finally:
        channel.close()


async def reply(channel: Channel, code: RequestCode, **words: str) -> tuple[int, str | None, SendMessageResponse]:
    header = send_header(REPLIES, 0, encode_properties(**words), v2=code is RequestCode.SEND_REPLY_MESSAGE_V2)
    answer = await channel.request(code, header, b"42")
    return answer.code, answer.remark, headers.read(SendMessageResponse, answer.ext)


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_reply_in_both_request_versions_is_pushed_and_stored(tmp_path: Path, code: RequestCode) -> None:
    async with running_broker(tmp_path) as server, asker(server.address) as pushed:
        channel = await connect(server.address)
        assert (await reply(channel, code, REPLY_TO_CLIENT="me@1", CORRELATION_ID="C1"))[0] == ResponseCode.SUCCESS
        ((header, body),) = pushed
        assert (header.topic, body) == (REPLIES, b"42")
        assert header.store_host == str(server.address)
        assert "CORRELATION_ID\x01C1\x02" in header.properties
        assert "PUSH_REPLY_TIME\x01" in header.properties
        assert (await pull(channel, REPLIES)).bodies == [b"42"]
        channel.close()


async def test_reply_that_cannot_be_pushed_is_stored_and_its_sender_gets_an_error(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server, asker(server.address, ResponseCode.SYSTEM_ERROR):
        channel = await connect(server.address)
        for words, why in (
            ({}, "the reply has no requester"),
            ({"REPLY_TO_CLIENT": "nobody@1"}, "the requesting client 'nobody@1' is not online"),
            ({"REPLY_TO_CLIENT": "me@1"}, "did not accept the reply: no, thanks"),
        ):
            code, remark, sent = await reply(channel, RequestCode.SEND_REPLY_MESSAGE_V2, **words)
            assert code == ResponseCode.SYSTEM_ERROR
            assert why in (remark or "")
        assert sent.queue_offset == 2
        channel.close()


@pytest.mark.parametrize(
    ("topic", "queue_id", "code"),
    [("nowhere", 0, ResponseCode.TOPIC_NOT_EXIST), (REPLIES, 9, ResponseCode.INVALID_PARAMETER)],
)
async def test_reply_is_validated_like_a_message(tmp_path: Path, topic: str, queue_id: int, code: ResponseCode) -> None:
    async with running_broker(tmp_path) as server:
        channel = await connect(server.address)
        answer = await channel.request(RequestCode.SEND_REPLY_MESSAGE_V2, send_header(topic, queue_id), b"42")
        assert answer.code == code
        channel.close()

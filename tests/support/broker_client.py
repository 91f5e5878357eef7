"""A broker on a real socket, and a client that sends it single requests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from sparrow.broker.server import BrokerServer
from sparrow.model.queue import Queue
from sparrow.net import Channel, connect
from sparrow.settings import BrokerSettings, LogSettings
from sparrow.wire import bodies, headers, properties
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import Header

LOG = LogSettings(segment_bytes=1 << 20, warm_bytes=0, index_slots=1024, index_entries=4096, queue_file_entries=1000)
B = TypeVar("B")


class Clock:
    """A clock that stands still until a test sets it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class BrokerClient:
    """One connection to one broker."""

    def __init__(self, server: BrokerServer, channel: Channel) -> None:
        self.server, self.broker, self.channel = server, server.broker, channel

    async def request(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """Return the response, a success or not."""
        return await self.channel.request(code, header, body)

    async def request_ok(self, code: int, header: Header | None = None, body: bytes = b"") -> Any:
        """Return the header of a response that must be a success."""
        answer = await self.request(code, header, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return headers.read(headers.response_header_type(code), answer.ext)

    async def request_body(self, kind: type[B], code: int, header: Header | None = None, body: bytes = b"") -> B:
        """Return the body of a response that must be a success."""
        answer = await self.request(code, header, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return bodies.read(kind, bytes(answer.body))

    async def request_refused(self, code: int, header: Header | None = None, body: bytes = b"") -> tuple[int, str]:
        """Return code and remark of a response that must not be a success; the connection must stay open."""
        answer = await self.request(code, header, body)
        assert answer.code != ResponseCode.SUCCESS
        assert answer.remark
        assert (await self.request(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS
        return answer.code, answer.remark

    async def send(self, queue: Queue, body: bytes, **named: str) -> headers.SendMessageResponse:
        said = properties.encode(named).decode()
        header = headers.SendMessageV2("p", queue.topic, "TBW102", 4, queue.id, 0, 1, 0, said)
        sent = await self.request_ok(RequestCode.SEND_MESSAGE_V2, header, body)
        assert isinstance(sent, headers.SendMessageResponse)
        return sent

    async def commit(self, group: str, queue: Queue, offset: int) -> None:
        await self.request_ok(
            RequestCode.UPDATE_CONSUMER_OFFSET, headers.CommitOffset(group, queue.topic, queue.id, offset)
        )

    async def pull(self, group: str, queue: Queue, offset: int = 0) -> RemotingCommand:
        """Pull with the subscription in the request, as admin tools do."""
        flag = headers.pull.SUBSCRIPTION_FLAG
        return await self.request(
            RequestCode.PULL_MESSAGE,
            headers.PullMessage(group, queue.topic, queue.id, offset, 32, flag, 0, 0, 0, subscription="*"),
        )

    async def subscribe(self, group: str, **expressions: str) -> None:
        """Register as a consumer of a group."""
        wanted = [
            bodies.SubscriptionData(topic, words, sub_version=1, tags_set=[] if words == "*" else words.split(" || "))
            for topic, words in expressions.items()
        ]
        beat = bodies.HeartbeatData("client@1", [], [bodies.ConsumerData(group, subscription_data_set=wanted)])
        await self.request_ok(RequestCode.HEART_BEAT, headers.Heartbeat(), bodies.write(beat))


@asynccontextmanager
async def running_broker_client(
    path: Path, clock: Clock | None = None, **settings: object
) -> AsyncIterator[BrokerClient]:
    async with BrokerServer(
        BrokerSettings.model_validate({"port": 0, **settings}), path, LOG, now_ms=clock or Clock()
    ) as server:
        channel = await connect(server.address)
        yield BrokerClient(server, channel)
        channel.close()

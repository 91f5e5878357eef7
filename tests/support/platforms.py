"""A small platform or broker on free ports, with functions to send and to pull."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from sparrow.broker.context import Broker
from sparrow.broker.delay.log import LogDelayScheduler
from sparrow.broker.server import BrokerServer
from sparrow.cli.server.platform import Platform
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import PULL_MESSAGES_DEFAULT
from sparrow.net import Address, Channel, connect
from sparrow.net.channel import RequestReceiver
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings
from sparrow.store.log.engine import LogStore
from sparrow.wire import batch, bodies, headers, properties, record
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import PullMessage, PullMessageResponse, SendMessage, SendMessageResponse, SendMessageV2
from sparrow.wire.headers.pull import COMMIT_OFFSET_FLAG, SUBSCRIPTION_FLAG, SUSPEND_FLAG

SMALL_LOG = LogSettings(
    segment_bytes=4 << 20, warm_bytes=0, index_slots=1024, index_entries=4096, queue_file_entries=1000
)
TIMEOUT_MS = 10_000
"""A generous timeout for busy machines; the code under test is fast."""


# -- platforms and brokers --------------------------------------------------------------------------------------------


def broker_settings(**changes: object) -> BrokerSettings:
    """Return default settings with a free port."""
    return BrokerSettings.model_validate({"port": 0, **changes})


@asynccontextmanager
async def running_platform(
    folder: Path, *, log: LogSettings = SMALL_LOG, name_server: NameServerSettings | None = None, **broker: object
) -> AsyncIterator[Platform]:
    """Run a name server and a broker. Other keyword arguments are broker settings."""
    async with Platform(
        folder, name_server=name_server or NameServerSettings(port=0), broker=broker_settings(**broker), log=log
    ) as platform:
        yield platform


def broker_server(folder: Path, *, log: LogSettings = SMALL_LOG, **broker: object) -> BrokerServer:
    """Return a broker server that is not started, for tests that start and stop it."""
    return BrokerServer(broker_settings(**broker), folder / "store", log)


@asynccontextmanager
async def running_broker(
    folder: Path, *, log: LogSettings = SMALL_LOG, **broker: object
) -> AsyncIterator[BrokerServer]:
    """Run a broker alone, registered with no name server unless the settings name one."""
    async with broker_server(folder, log=log, **broker) as server:
        yield server


@asynccontextmanager
async def open_channel(address: Address, serve: RequestReceiver | None = None) -> AsyncIterator[Channel]:
    channel = await connect(address, serve)
    try:
        yield channel
    finally:
        channel.close()


# -- sending ----------------------------------------------------------------------------------------------------------


def send_header(
    topic: str, queue_id: int = 0, properties: str = "", *, v2: bool = True, **others: object
) -> SendMessage:
    """Return the header of a send, in Java's short spelling or (`v2=False`) in Go's long one."""
    fields: dict[str, object] = {
        "group": "producers",
        "topic": topic,
        "template_topic": "TBW102",
        "default_topic_queues": 4,
        "queue_id": queue_id,
        "sys_flag": 0,
        "born_ms": 1,
        "flag": 0,
        "properties": properties,
    }
    return (SendMessageV2 if v2 else SendMessage)(**(fields | others))  # type: ignore[arg-type]


async def try_send(
    channel: Channel,
    topic: str,
    body: bytes = b"",
    queue_id: int = 0,
    properties: str = "",
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    **others: object,
) -> RemotingCommand:
    """Send and return the response, a success or not."""
    header = send_header(topic, queue_id, properties, v2=code != RequestCode.SEND_MESSAGE, **others)
    return await channel.request(code, header, body, timeout_ms=TIMEOUT_MS)


async def send(
    channel: Channel,
    topic: str,
    body: bytes = b"",
    queue_id: int = 0,
    properties: str = "",
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    **others: object,
) -> SendMessageResponse:
    """Send a message that must be stored; return its place."""
    return read_send_response(await try_send(channel, topic, body, queue_id, properties, code=code, **others))


async def send_batch(
    channel: Channel, topic: str, members: Iterable[tuple[bytes, bytes]], queue_id: int = 0, **others: object
) -> SendMessageResponse:
    """Send several messages in one request, each a body and a property string."""
    body = batch.encode((0, body, said) for body, said in members)
    return await send(channel, topic, body, queue_id, code=RequestCode.SEND_BATCH_MESSAGE, batch=True, **others)


def read_send_response(answer: RemotingCommand) -> SendMessageResponse:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return headers.read(SendMessageResponse, answer.ext)


def encode_properties(**said: str) -> str:
    """Return a property string."""
    return properties.encode(said).decode()


# -- pulling ----------------------------------------------------------------------------------------------------------


class PullResult(NamedTuple):
    code: int
    remark: str
    header: PullMessageResponse
    """All four fields; decoding fails on a response without them."""
    messages: list[StoredMessage]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def pull_header(
    topic: str,
    queue_id: int = 0,
    offset: int = 0,
    *,
    group: str = "readers",
    count: int = 32,
    long_poll_ms: int = 0,
    tags: str | None = "*",
    commit: int | None = None,
    **others: object,
) -> PullMessage:
    """Return the header of a pull. `tags=None` uses the subscription of the group's heartbeat, `long_poll_ms` allows a
    long poll, `commit` also commits.
    """
    flag = (
        (SUSPEND_FLAG if long_poll_ms else 0)
        | (SUBSCRIPTION_FLAG if tags is not None else 0)
        | (COMMIT_OFFSET_FLAG if commit is not None else 0)
    )
    fields: dict[str, object] = {
        "group": group,
        "topic": topic,
        "queue_id": queue_id,
        "offset": offset,
        "messages_max": count,
        "sys_flag": flag,
        "commit_offset": commit or 0,
        "long_poll_ms": long_poll_ms,
        "sub_version": 0,
        "subscription": tags,
        "accepts_many": count > PULL_MESSAGES_DEFAULT or None,
    }
    return PullMessage(**(fields | others))  # type: ignore[arg-type]


async def try_pull(
    channel: Channel,
    topic: str,
    queue_id: int = 0,
    offset: int = 0,
    *,
    code: int = RequestCode.PULL_MESSAGE,
    **how: object,
) -> RemotingCommand:
    """Pull and return the response, a success or not. `how` are arguments of `pull_header`."""
    header = pull_header(topic, queue_id, offset, **how)  # type: ignore[arg-type]
    return await channel.request(code, header, timeout_ms=TIMEOUT_MS + header.long_poll_ms)


async def pull(
    channel: Channel,
    topic: str,
    queue_id: int = 0,
    offset: int = 0,
    *,
    code: int = RequestCode.PULL_MESSAGE,
    **how: object,
) -> PullResult:
    """Pull; the response must have one of the four codes of a pull (0, 19, 20, 21)."""
    return read_pull_response(await try_pull(channel, topic, queue_id, offset, code=code, **how))


def read_pull_response(answer: RemotingCommand) -> PullResult:
    header = headers.read(PullMessageResponse, answer.ext)
    assert answer.code == ResponseCode.SUCCESS or not answer.body, "only a successful pull may have a body"
    return PullResult(answer.code, answer.remark or "", header, record.decode_all(bytes(answer.body)))


async def subscribe(channel: Channel, group: str, *, version: int = 1, **expressions: str) -> None:
    """Register as a member of a group that subscribes to these topics."""
    wanted = [bodies.SubscriptionData(topic, tags, sub_version=version) for topic, tags in expressions.items()]
    consumer = bodies.ConsumerData(group, subscription_data_set=wanted)
    beat = bodies.write(bodies.HeartbeatData(f"client@{channel.address}", consumer_data_set=[consumer]))
    answer = await channel.request(RequestCode.HEART_BEAT, headers.Heartbeat(), beat, timeout_ms=TIMEOUT_MS)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def log_store_of(broker: Broker) -> LogStore:
    """Return the store of a broker that keeps a log."""
    assert isinstance(broker.store, LogStore)
    return broker.store


def log_delay_of(broker: Broker) -> LogDelayScheduler:
    """Return the delay scheduler of a broker that keeps a log."""
    assert isinstance(broker.delay, LogDelayScheduler)
    return broker.delay

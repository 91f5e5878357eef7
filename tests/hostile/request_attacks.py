"""Attacks by valid requests that cost much, or that fill what is kept for long."""

from __future__ import annotations

import asyncio

from tests.hostile.attack_connection import AttackConnection, attack_connection, attack_connections
from tests.hostile.honest_client import TOPIC
from tests.hostile.tally import Tally
from tests.hostile.target import Target
from tests.support.platforms import encode_properties, pull_header, send_header

from sparrow.wire import batch, bodies, headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RESPONSE_FLAG, RemotingCommand, encode
from sparrow.wire.headers import Header

_LONG_POLL_MS = 60_000


def request(code: int, header: Header | None = None, body: object = b"") -> RemotingCommand:
    encoded = body if isinstance(body, bytes) else bodies.write(body)
    return RemotingCommand(code, ext=None if header is None else headers.write(header), body=encoded)


def heartbeat(client: str, groups: int) -> RemotingCommand:
    producers = [bodies.ProducerData(f"{client}-{number}") for number in range(groups)]
    return request(RequestCode.HEART_BEAT, headers.Heartbeat(), bodies.HeartbeatData(client, producers))


async def wide_heartbeats(target: Target, tally: Tally, count: int) -> None:
    """Register clients in as many groups as permitted, and in far more, and hang up."""
    for number in range(count):
        async with attack_connection(target.broker, tally) as connection:
            await connection.send([heartbeat(f"wide-{number}", 2_000), heartbeat(f"wider-{number}", 80_000)])
    await target.hold()


async def unquoted_heartbeats(target: Target, tally: Tally, count: int) -> None:
    """Send heartbeats that only the slow parser of the dialect reads, below and above the limit of a body."""
    async with attack_connection(target.broker, tally) as connection:
        for items in (100_000, 1_400_000):
            body = b'{"clientID":"c","x":[' + b",".join([b"{0:1}"] * items) + b"]}"
            await connection.send([request(RequestCode.HEART_BEAT, headers.Heartbeat(), body)] * count)
    await target.hold()


async def wide_pops(target: Target, tally: Tally, count: int) -> None:
    """Pop from a topic with as many queues as a topic may have."""
    async with attack_connection(target.broker, tally) as connection:
        topic = headers.UpdateTopic("hostile-wide", "TBW102", 65_536, 65_536, 6, "SINGLE_TAG", False)
        await connection.send([request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)])
        pops = [headers.PopMessage(f"pop-{number}", "hostile-wide", -1, 32, 60_000, 0) for number in range(count)]
        await connection.send([request(RequestCode.POP_MESSAGE, pop) for pop in pops])
    await target.hold()


async def heavy_filters(target: Target, tally: Tally, count: int) -> None:
    """Filter megabytes of properties by SQL92, with a condition that matches nothing."""
    properties = encode_properties(**{f"p{number}": "x" * 200 for number in range(140)})
    async with attack_connection(target.broker, tally) as connection:
        send = request(RequestCode.SEND_MESSAGE_V2, send_header("hostile-filtered", 0, properties))
        await connection.send([send] * 500)
        condition = " OR ".join(f"p{number} = '{number}'" for number in range(100))
        pull = pull_header("hostile-filtered", tags=condition, expression_type="SQL92", count=32)
        await connection.send([request(RequestCode.PULL_MESSAGE, pull)] * count)
    await target.hold()


async def tiny_messages(target: Target, tally: Tally, count: int) -> None:
    """Send batches of very many empty messages: far more than permitted, and as many as permitted in several shapes."""
    empty = [(0, b"", b"")]
    shapes = [
        empty * 190_000,
        empty * 10_000,
        [(0, b"x" * 60_000, b""), *empty * 9_999],  # its first message does not look like one of many
        [(0, b"x" * (number % 2), b"") for number in range(10_000)],
        [(0, b"", b"DELAY\x010\x02")] * 10_000,  # has no delay, which only a look at each message tells
        [(0, b"", b"__REF\x01x\x02")] * 10_000,
        [(0, b"", b"KEYS\x01a b c d\x02TAGS\x01t\x02")] * 10_000,
    ]
    sends = [
        request(RequestCode.SEND_BATCH_MESSAGE, send_header("hostile-tiny", batch=True), batch.encode(shape))
        for shape in shapes
    ]
    async with attack_connection(target.broker, tally) as connection:
        for number in range(count):
            await connection.send([sends[number % len(sends)]])
    await target.hold()


async def mass_wake(target: Target, tally: Tally, count: int) -> None:
    """Park pulls, from 10 connections, until no place is left for them or all are parked; wake all by one message."""
    async with attack_connection(target.broker, tally) as waker:
        send = request(RequestCode.SEND_MESSAGE_V2, send_header("hostile-wake"), b"wake")
        await waker.send([send])
        pull = request(RequestCode.PULL_MESSAGE, pull_header("hostile-wake", 0, 1, long_poll_ms=_LONG_POLL_MS))
        async with attack_connections(target.broker, tally, 10) as connections:
            for connection in connections:
                connection.post(*[pull] * (count // 10))
            await target.hold()
            await waker.send([send])
            await asyncio.gather(*(connection.read_responses() for connection in connections))


async def long_poll_places(target: Target, tally: Tally, count: int) -> None:
    """Take places of long polling on a queue that never grows, and keep them."""
    send = request(RequestCode.SEND_MESSAGE_V2, send_header("hostile-idle"), b"x")
    pull = request(RequestCode.PULL_MESSAGE, pull_header("hostile-idle", 1, long_poll_ms=_LONG_POLL_MS))
    async with attack_connection(target.broker, tally) as creator:
        await creator.send([send])
    async with attack_connections(target.broker, tally, 10) as connections:
        for connection in connections:
            connection.post(*[pull] * (count // 10))
        await target.hold()


async def foreign_offsets(target: Target, tally: Tally, count: int) -> None:
    """Commit offsets of queues that do not exist, and of many groups that nobody reads with."""
    async with attack_connection(target.broker, tally) as connection:
        await connection.send(
            request(RequestCode.UPDATE_CONSUMER_OFFSET, headers.CommitOffset("hostile", TOPIC, 4 + number, 5))
            for number in range(count)
        )
        await connection.send(
            request(RequestCode.UPDATE_CONSUMER_OFFSET, headers.CommitOffset(f"offsets-{number}", TOPIC, 0, 5))
            for number in range(count)
        )
    await target.hold()


async def foreign_locks(target: Target, tally: Tally, count: int) -> None:
    """Lock queues, of other groups and of topics that do not exist."""
    queues = [bodies.QueueRef(f"none-{queue}", "sparrow", 0) for queue in range(100)]
    async with attack_connection(target.broker, tally) as connection:
        await connection.send(
            request(
                RequestCode.LOCK_BATCH_MQ,
                headers.EmptyHeader(),
                bodies.LockQueues(f"lock-{number}", "c@1", mq_set=queues),
            )
            for number in range(count)
        )
    await target.hold()


async def new_topics(target: Target, tally: Tally, count: int) -> None:
    """Create topics by sending to them."""
    async with attack_connection(target.broker, tally) as connection:
        await connection.send(
            request(RequestCode.SEND_MESSAGE_V2, send_header(f"hostile-topic-{number}"), b"x")
            for number in range(count)
        )
    await target.hold()


async def long_names(target: Target, tally: Tally, count: int) -> None:
    """Ask for names that a response would quote: a remark must not outgrow its frame."""
    name = "g" * 100_000
    for address, asked in (
        (target.broker, request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, headers.ListConsumers(name))),
        (target.name_server, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute(name))),
    ):
        async with attack_connection(address, tally) as connection:
            await connection.send([asked] * count)
    await target.hold()


async def forged_registrations(target: Target, tally: Tally, count: int) -> None:
    """Take over the honest client's routes, or empty them, by requests to the name server that nobody signed."""
    forged = [
        request(
            RequestCode.REGISTER_BROKER,
            headers.RegisterBroker("sparrow", "127.0.0.1:1", "DefaultCluster", "", 0),
            bodies.BrokerRegistration(),
        ),
        request(
            RequestCode.UNREGISTER_BROKER,
            headers.UnregisterBroker("sparrow", str(target.broker), "DefaultCluster", 0),
        ),
        request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, headers.ChangeWritePermission("sparrow")),
        request(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopic(TOPIC)),
    ]
    async with attack_connection(target.name_server, tally) as connection:
        await connection.send(forged * count)
    await target.hold()


async def replies_to_nothing(target: Target, tally: Tally, count: int) -> None:
    """Answer requests that the servers never made."""
    responses = b"".join(_response(number) for number in range(1_000))
    async with attack_connection(target.broker, tally) as connection:
        for _ in range(count):
            await connection.write(responses)
        await _still_answers(connection)
    await target.hold()


def _response(opaque: int) -> bytes:
    return encode(RemotingCommand(0, opaque, RESPONSE_FLAG, body=b"?"))


async def _still_answers(connection: AttackConnection) -> None:
    await connection.send([RemotingCommand(7777)])
    assert not connection.is_closed

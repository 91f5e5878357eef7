"""A complete bus beside a service that uses the format of .NET CAP: real brokers, and a plain client in CAP's place.

The peer publishes an order in CAP's format and requests a reply. Our handler processes it, and the reply arrives in the
format that CAP reads: text headers, PascalCase JSON, no wrapping document.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aio_pika
import nats
import pytest
import redis.asyncio
from nats.js.api import StreamConfig
from tests.support.databases import ServerNotInstalled
from tests.support.message_brokers import MessageBroker, rabbitmq_server
from tests.support.redis_nats import nats_server, redis_server

from sparrow.bus import Headers
from sparrow.bus.aio import EventBus

QUESTION, ANSWER = "order.placed", "order.accepted"
CAP_HEADERS: dict[str, str | None] = {
    "cap-msg-id": "7146913258311680001",
    "cap-msg-name": QUESTION,
    "cap-msg-type": "OrderPlaced",
    "cap-corr-id": "7146913258311680001",
    "cap-corr-seq": "0",
    "cap-callback-name": ANSWER,
    "cap-senttime": "11/15/2026 10:20:30",
}
CAP_BODY = b'{"OrderNumber":7,"TotalPrice":12.50,"Lines":[{"SkuCode":"A-1","Count":2}]}'
PATIENCE_S = 20.0


@dataclass
class Line:
    sku_code: str
    count: int


@dataclass
class OrderPlaced:
    order_number: int
    total_price: Decimal
    lines: list[Line]


@dataclass
class OrderAccepted:
    order_number: int
    is_paid: bool


class Heard(NamedTuple):
    headers: dict[str, Any]
    body: bytes


class Peer(Protocol):
    """A service that knows the broker and CAP's format, and nothing of Sparrow."""

    async def publish(self, name: str, headers: dict[str, str | None], body: bytes) -> None: ...

    async def hear(self) -> Heard: ...


@asynccontextmanager
async def on_rabbitmq(url: str) -> AsyncIterator[Peer]:
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    exchange = await channel.declare_exchange("cap.default.router", "topic", durable=True)
    queue = await channel.declare_queue("cap.queue.peer.v1", durable=True, arguments={"x-message-ttl": 864_000_000})
    await queue.bind(exchange, ANSWER)

    class Rabbit:
        async def publish(self, name: str, headers: dict[str, str | None], body: bytes) -> None:
            table: Any = dict(headers)
            await exchange.publish(aio_pika.Message(body, headers=table, message_id=headers["cap-msg-id"]), name)

        async def hear(self) -> Heard:
            async with queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    return Heard(dict(message.headers), message.body)
            raise AssertionError("the queue ended")

    yield Rabbit()
    await connection.close()


@asynccontextmanager
async def on_redis(url: str) -> AsyncIterator[Peer]:
    async with redis.asyncio.Redis.from_url(url, protocol=2) as client:
        await client.xgroup_create(ANSWER, "cap.queue.peer.v1", "$", mkstream=True)

        class Streams:
            async def publish(self, name: str, headers: dict[str, str | None], body: bytes) -> None:
                quoted = json.dumps(base64.b64encode(body).decode())
                await client.xadd(name, {"headers": json.dumps(headers), "body": quoted})

            async def hear(self) -> Heard:
                while True:
                    found: Any = await client.xreadgroup(
                        "cap.queue.peer.v1", "cap.queue.peer.v1", {ANSWER: ">"}, count=1, block=1000
                    )
                    for _, entries in found or ():
                        for _, fields in entries:
                            body = base64.b64decode(json.loads(fields[b"body"]))
                            return Heard(json.loads(fields[b"headers"]), body)

        yield Streams()


@asynccontextmanager
async def on_nats(url: str) -> AsyncIterator[Peer]:
    client = await nats.connect(url)
    js = client.jetstream()
    # As CAP does: one stream per first word of the names.
    await js.add_stream(StreamConfig(name="order", subjects=[ANSWER]))
    subscription = await client.subscribe(ANSWER)

    class JetStream:
        async def publish(self, name: str, headers: dict[str, str | None], body: bytes) -> None:
            text = {key: value or "" for key, value in headers.items()} | {"Nats-Msg-Id": headers["cap-msg-id"] or ""}
            await js.publish(name, body, headers=text)

        async def hear(self) -> Heard:
            message = await subscription.next_msg(timeout=PATIENCE_S)
            return Heard(dict(message.headers or {}), message.data)

    yield JetStream()
    await client.close()


Starter = Callable[[], AbstractContextManager[MessageBroker]]
BROKERS: dict[str, tuple[Starter, Callable[[str], Any]]] = {
    "rabbitmq": (rabbitmq_server, on_rabbitmq),
    "redis": (redis_server, on_redis),
    "nats": (nats_server, on_nats),
}


@pytest.fixture(params=list(BROKERS))
def broker(request: pytest.FixtureRequest) -> Iterator[tuple[str, Callable[[str], Any]]]:
    start, peer = BROKERS[request.param]
    try:
        with start() as server:
            yield server.url, peer
    except ServerNotInstalled as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.mark.thorough
async def test_cap_service_gets_a_reply_in_its_own_format(
    broker: tuple[str, Callable[[str], Any]], tmp_path: Path
) -> None:
    url, on_broker = broker
    bus = EventBus(f"sqlite:///{tmp_path}/bus.db", url, app="shop", naming="pascal", relay_batch=10)
    taken: list[tuple[OrderPlaced, Headers]] = []

    @bus.subscribe(QUESTION, group="shop")
    async def accept(order: OrderPlaced, headers: Headers) -> OrderAccepted:
        taken.append((order, headers))
        headers.add_response_header("region", "north")
        return OrderAccepted(order.order_number, is_paid=True)

    async with bus, on_broker(url) as peer, asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(bus.core.worker.listening(group) for group in bus.subscriptions.groups()))
        await peer.publish(QUESTION, CAP_HEADERS, CAP_BODY)
        await peer.publish(QUESTION, CAP_HEADERS, CAP_BODY)  # a duplicate, as a broker may deliver
        answer = await peer.hear()
        await bus.drain()

    [(order, headers)] = taken
    assert order == OrderPlaced(7, Decimal("12.50"), [Line("A-1", 2)])
    assert (headers.id, headers.name, headers.group) == (CAP_HEADERS["cap-msg-id"], QUESTION, "shop.v1")
    assert json.loads(answer.body) == {"OrderNumber": 7, "IsPaid": True}
    assert answer.headers["cap-msg-name"] == ANSWER
    assert answer.headers["cap-msg-id"].isdecimal()
    assert answer.headers["cap-corr-id"] == CAP_HEADERS["cap-msg-id"]
    assert answer.headers["cap-corr-seq"] == "1"
    assert answer.headers["cap-msg-type"] == "OrderAccepted"
    assert answer.headers["region"] == "north"

"""Events over a real RabbitMQ, beside services that use it as .NET CAP does."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import aio_pika
import pytest
from tests.support.databases import ServerNotInstalled
from tests.support.message_brokers import MessageBroker, rabbitmq_server
from tests.support.transports import ids, receive

from sparrow.bus.codec import headers as h
from sparrow.bus.transports.rabbitmq.connections import DeclarationRefused
from sparrow.bus.transports.rabbitmq.transport import RabbitTransport, Unroutable
from sparrow.bus.transports.spi import BrokerDelivery, Envelope, TransportConsumer
from sparrow.model.errors import IllegalMessage, IllegalName, NotPermitted, TooLarge, Unavailable

PATIENCE_S = 20.0
NOW = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
BODY_BYTES_MAX = 1_000_000
CAP_QUEUE = {"x-message-ttl": 864_000_000}


pytestmark = pytest.mark.xdist_group("rabbitmq")  # one server for all tests


@pytest.fixture(scope="module")
def server() -> Iterator[MessageBroker]:
    try:
        with rabbitmq_server(max_message_size=BODY_BYTES_MAX) as running:
            yield running
    except ServerNotInstalled as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture
def exchange(request: pytest.FixtureRequest) -> str:
    """One exchange per test, so that tests do not see each other's events."""
    return f"router.{_plain_name(request)}"


@pytest.fixture
async def transport(server: MessageBroker, exchange: str) -> AsyncIterator[RabbitTransport]:
    transport = RabbitTransport(server.url, exchange=exchange)
    await transport.open()
    yield transport
    await transport.close()


@pytest.fixture
async def plain(server: MessageBroker) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    """A channel that knows nothing of the bus."""
    connection = await aio_pika.connect(server.url)
    yield await connection.channel()
    await connection.close()


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return f"{_plain_name(request)}.v1"


def _plain_name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "-", request.node.name)


def event(name: str, id: object, body: bytes = b"{}", **headers: str | None) -> Envelope:
    return Envelope(name=name, headers={h.ID: str(id), h.NAME: name, **headers}, body=body, added=NOW)


async def nothing_more(listening: TransportConsumer, transport: RabbitTransport, name: str) -> None:
    """Fail if another event arrives before a last one that is sent now."""
    assert await transport.send([event(name, "the end")]) == [None]
    assert ids(await receive(listening, 1)) == ["the end"]


# -- format -----------------------------------------------------------------------------------------------------------


async def test_event_arrives_with_its_body_and_all_headers(transport: RabbitTransport, group: str) -> None:
    listening = await transport.listen(group, ["order.created"], prefetch=10)
    headers = {h.CALLBACK: None, "x-text": "größe 雀", "x-empty": ""}
    sent = event("order.created", 42, '{"Näme":"雀"}'.encode(), **headers)
    assert await transport.send([sent]) == [None]
    (got,) = await receive(listening, 1)
    assert (got.name, got.headers, got.body) == ("order.created", sent.headers, sent.body)
    await listening.acknowledge([got])
    await listening.close()


async def test_event_on_the_wire_has_the_format_of_cap(
    transport: RabbitTransport, plain: aio_pika.abc.AbstractChannel, exchange: str, group: str
) -> None:
    queue = await plain.declare_queue(group, durable=True, arguments=CAP_QUEUE)
    await queue.bind(await plain.declare_exchange(exchange, "topic", durable=True), "order.created")
    headers: dict[str, str | None] = {h.ID: "1234567890123", h.NAME: "order.created", h.CALLBACK: None, h.TYPE: "Größe"}
    assert await transport.send(
        [Envelope(name="order.created", headers=headers, body=b'{"Id":7}', added=NOW, key="k")]
    ) == [None]
    async with asyncio.timeout(PATIENCE_S):
        message = await queue.get()
    assert message is not None
    assert message.body == b'{"Id":7}'
    assert message.headers == headers
    assert (message.exchange, message.routing_key) == (exchange, "order.created")
    assert message.message_id == "1234567890123"
    assert message.delivery_mode is aio_pika.DeliveryMode.PERSISTENT
    await message.ack()


@pytest.mark.parametrize("written_as", [str, lambda text: bytearray(text.encode())], ids=["text", "bytes"])
async def test_event_of_a_cap_service_is_received(
    transport: RabbitTransport, plain: aio_pika.abc.AbstractChannel, exchange: str, group: str, written_as
) -> None:
    listening = await transport.listen(group, ["order.created"], prefetch=10)
    headers = {h.ID: "9007199254740993", h.NAME: "order.created", h.TYPE: "Größe", h.SENT_AT: "05/06/2024 07:08:09"}
    await (await plain.get_exchange(exchange)).publish(
        aio_pika.Message(
            b'{"Id":7}',
            headers={name: written_as(value) for name, value in headers.items()} | {h.CALLBACK: None},
            message_id="9007199254740993",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        ),
        "order.created",
    )
    (got,) = await receive(listening, 1)
    assert (got.name, got.headers, got.body) == ("order.created", {**headers, h.CALLBACK: None}, b'{"Id":7}')
    await listening.close()


async def test_foreign_message_gets_the_required_headers(
    transport: RabbitTransport, plain: aio_pika.abc.AbstractChannel, exchange: str, group: str
) -> None:
    listening = await transport.listen(group, ["legacy.#"], prefetch=10)
    router = await plain.get_exchange(exchange)
    foreign = aio_pika.Message(b"raw", message_id="legacy-7", headers={"size": 5, "tags": ["a"]})
    await router.publish(foreign, "legacy.a")
    (named,) = await receive(listening, 1)
    assert named.headers == {h.ID: "legacy-7", h.NAME: "legacy.a", "size": "5", "tags": '["a"]'}
    assert named.body == b"raw"
    await listening.close()


async def test_header_builder_names_foreign_messages(
    server: MessageBroker, plain: aio_pika.abc.AbstractChannel, exchange: str, group: str
) -> None:
    transport = RabbitTransport(
        server.url, exchange=exchange, header_builder=lambda delivery: {h.ID: f"built-{delivery.body.decode()}"}
    )
    listening = await transport.listen(group, ["legacy"], prefetch=10)
    await (await plain.get_exchange(exchange)).publish(aio_pika.Message(b"5"), "legacy")
    (got,) = await receive(listening, 1)
    assert got.headers == {h.ID: "built-5", h.NAME: "legacy"}
    await listening.close()


async def test_queue_and_exchange_are_declared_with_the_arguments_of_cap(
    server: MessageBroker, plain: aio_pika.abc.AbstractChannel, group: str
) -> None:
    """RabbitMQ refuses a second declaration with other arguments."""
    ours = RabbitTransport(server.url)
    await (await ours.listen(group, ["a"], prefetch=1)).close()
    await plain.declare_exchange("cap.default.router", "topic", durable=True)
    await plain.declare_queue(group, durable=True, arguments=CAP_QUEUE)
    await plain.declare_queue(f"{group}.theirs", durable=True, arguments=CAP_QUEUE)
    await (await ours.listen(f"{group}.theirs", ["a"], prefetch=1)).close()


async def test_another_version_has_its_own_exchange(
    server: MessageBroker, plain: aio_pika.abc.AbstractChannel, exchange: str
) -> None:
    transport = RabbitTransport(server.url, exchange=exchange, version="v2")
    await transport.open()
    await transport.close()
    await plain.declare_exchange(f"{exchange}.v2", passive=True)


# -- groups -----------------------------------------------------------------------------------------------------------


async def test_members_share_the_events_of_their_group_and_each_group_gets_all(
    transport: RabbitTransport, group: str
) -> None:
    one, other = [await transport.listen(group, ["a"], prefetch=1) for _ in range(2)]
    elsewhere = await transport.listen(f"{group}.2", ["a"], prefetch=100)
    assert await transport.send([event("a", n) for n in range(20)]) == [None] * 20
    shared: list[list[str | None]] = [[], []]

    async def work(listening: TransportConsumer, seen: list[str | None]) -> None:
        while True:
            got = await listening.receive(1)
            seen += ids(got)
            await listening.acknowledge(got)

    workers = [asyncio.create_task(work(*pair)) for pair in zip((one, other), shared, strict=True)]
    assert ids(await receive(elsewhere, 20)) == [str(n) for n in range(20)]
    async with asyncio.timeout(PATIENCE_S):
        while len(shared[0]) + len(shared[1]) < 20:
            await asyncio.sleep(0.001)
    for worker in workers:
        worker.cancel()
    assert sorted(map(int, shared[0] + shared[1])) == list(range(20))
    assert all(shared)
    for listening in (one, other, elsewhere):
        await listening.close()


async def test_wildcards_are_those_of_amqp(transport: RabbitTransport, group: str) -> None:
    listening = await transport.listen(group, ["order.*.done", "audit.#"], prefetch=10)
    wanted = ["order.a_b-c.done", "audit", "audit.x", "audit.x.y"]
    unwanted = ["order.done", "order.a.b.done", "auditor"]
    results = await transport.send([event(name, name) for name in wanted + unwanted])
    assert list(results[: len(wanted)]) == [None] * len(wanted)
    assert [type(result) for result in results[len(wanted) :]] == [Unroutable] * len(unwanted)
    assert ids(await receive(listening, len(wanted))) == wanted
    await nothing_more(listening, transport, "audit.end")
    await listening.close()


async def test_events_of_one_send_arrive_in_order(transport: RabbitTransport, group: str) -> None:
    listening = await transport.listen(group, ["a"], prefetch=100)
    count = 500
    sending = asyncio.create_task(transport.send([event("a", n) for n in range(count)]))
    got: list[BrokerDelivery] = []
    while len(got) < count:
        some = await receive(listening, min(50, count - len(got)))
        await listening.acknowledge(some)
        got += some
    assert await sending == [None] * count
    assert ids(got) == [str(n) for n in range(count)]
    await listening.close()


async def test_unacknowledged_events_do_not_exceed_the_prefetch(transport: RabbitTransport, group: str) -> None:
    listening = await transport.listen(group, ["a"], prefetch=3)
    assert await transport.send([event("a", n) for n in range(5)]) == [None] * 5
    first = await receive(listening, 3)
    other = await transport.listen(group, ["a"], prefetch=10)
    assert ids(await receive(other, 2)) == ["3", "4"]  # they were not delivered to the first member
    assert ids(first) == ["0", "1", "2"]
    await listening.close()
    await other.close()


async def test_unacknowledged_events_are_redelivered_after_close(transport: RabbitTransport, group: str) -> None:
    listening = await transport.listen(group, ["a"], prefetch=10)
    await transport.send([event("a", n) for n in range(3)])
    await listening.acknowledge((await receive(listening, 3))[1:2])
    await listening.close()
    again = await transport.listen(group, ["a"], prefetch=10)
    assert ids(await receive(again, 2)) == ["0", "2"]
    await nothing_more(again, transport, "a")
    await again.close()


async def test_released_events_are_redelivered(transport: RabbitTransport, group: str) -> None:
    listening = await transport.listen(group, ["a"], prefetch=10)
    await transport.send([event("a", n) for n in range(3)])
    got = await receive(listening, 3)
    await listening.acknowledge(got[:1])
    await listening.release(got[1:])
    again = await receive(listening, 2)
    assert ids(again) == ["1", "2"]
    await listening.acknowledge(again)
    await nothing_more(listening, transport, "a")
    await listening.close()


# -- refusals ---------------------------------------------------------------------------------------------------------


async def test_event_that_no_queue_takes_is_a_failed_attempt(
    server: MessageBroker, transport: RabbitTransport, exchange: str, group: str
) -> None:
    listening = await transport.listen(group, ["known"], prefetch=10)
    first, second, third = await transport.send([event("known", 1), event("unknown", 2), event("known", 3)])
    assert (first, third) == (None, None)
    assert isinstance(second, Unroutable)
    assert "'unknown'" in str(second)
    assert "mandatory=False" in str(second)
    careless = RabbitTransport(server.url, exchange=exchange, mandatory=False)
    assert await careless.send([event("unknown", 4)]) == [None]
    await careless.close()
    await listening.close()


async def test_headers_larger_than_a_frame_are_refused_before_they_break_the_connection(
    transport: RabbitTransport, group: str
) -> None:
    listening = await transport.listen(group, ["a"], prefetch=10)
    long_name = event("a", "long name", **{"n" * 200: "x"})
    large = event("a", "large", huge="x" * 200_000)
    results = await transport.send([event("a", 1), long_name, large, event("a", 2)])
    assert [type(result) for result in results] == [type(None), IllegalMessage, TooLarge, type(None)]
    assert ids(await receive(listening, 2)) == ["1", "2"]
    await nothing_more(listening, transport, "a")
    await listening.close()


async def test_message_refused_by_the_server_does_not_fail_the_others_of_its_send(
    transport: RabbitTransport, group: str
) -> None:
    listening = await transport.listen(group, ["a"], prefetch=10)
    large = event("a", "large", b"x" * (BODY_BYTES_MAX + 1))
    first, second, third = await transport.send([event("a", 1), large, event("a", 2)])
    assert (first, third) == (None, None)
    assert isinstance(second, IllegalMessage)
    assert "larger" in str(second)
    got: list[BrokerDelivery] = []
    while "2" not in ids(got):
        got += await receive(listening, 1)
    assert set(ids(got)) == {"1", "2"}  # the first may come twice: its confirm was lost with the channel
    await nothing_more(listening, transport, "a")
    await listening.close()


@pytest.mark.parametrize("name", ["", "ä" * 128])
def test_name_that_is_not_a_routing_key_is_refused(name: str) -> None:
    with pytest.raises(IllegalName):
        RabbitTransport("amqp://127.0.0.1").check_name(name)
    RabbitTransport("amqp://127.0.0.1").check_name("ä" * 127)


async def test_queue_of_another_kind_is_refused_with_the_reason_of_the_server(
    transport: RabbitTransport, plain: aio_pika.abc.AbstractChannel, group: str
) -> None:
    await plain.declare_queue(group, durable=True)
    with pytest.raises(DeclarationRefused, match="x-message-ttl"):
        await transport.listen(group, ["a"], prefetch=1)


async def test_group_name_outside_ascii_is_refused(transport: RabbitTransport) -> None:
    with pytest.raises(DeclarationRefused, match="größe"):
        await transport.listen("größe", ["a"], prefetch=1)


async def test_wrong_password_is_not_permitted(server: MessageBroker) -> None:
    with pytest.raises(NotPermitted):
        await RabbitTransport(server.url.replace("guest:guest", "guest:wrong")).open()


async def test_deleted_queue_ends_the_consumer(
    transport: RabbitTransport, plain: aio_pika.abc.AbstractChannel, group: str
) -> None:
    listening = await transport.listen(group, ["a"], prefetch=1)
    waiting = asyncio.create_task(listening.receive(1))
    await plain.queue_delete(group)
    with pytest.raises(Unavailable, match="deleted"):
        async with asyncio.timeout(PATIENCE_S):
            await waiting
    await listening.close()


# -- server outage (last, because the server needs seconds to come back) ----------------------------------------------


@pytest.mark.thorough
async def test_new_consumer_continues_where_the_last_one_ended_after_a_server_kill(
    server: MessageBroker, transport: RabbitTransport, group: str
) -> None:
    listening = await transport.listen(group, ["a"], prefetch=10)
    assert await transport.send([event("a", 1), event("a", 2)]) == [None, None]
    got = await receive(listening, 2)
    await listening.acknowledge(got[:1])
    assert await transport.send([event("a", 3)]) == [None]
    await receive(listening, 1)
    waiting = asyncio.create_task(listening.receive(1))
    await asyncio.to_thread(server.kill)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await listening.acknowledge(got[1:])
        await listening.close()
        with pytest.raises(Unavailable):
            # The send fails on the dead connection if its loss was not noticed yet; otherwise it is refused.
            (result,) = await transport.send([event("a", 4)])
            raise result or AssertionError("the send must fail on a lost connection")
        with pytest.raises(Unavailable):
            await transport.listen(group, ["a"], prefetch=10)
        with pytest.raises(Unavailable):
            await transport.open()
    await asyncio.to_thread(server.start)
    assert await transport.send([event("a", 5)]) == [None]
    again = await transport.listen(group, ["a"], prefetch=10)
    # The acknowledgement of 1 may be lost with the server.
    deliveries: list[BrokerDelivery] = []
    while "5" not in ids(deliveries):
        deliveries += await receive(again, 1)
    assert [id for id in ids(deliveries) if id != "1"] == ["2", "3", "5"]
    await again.close()

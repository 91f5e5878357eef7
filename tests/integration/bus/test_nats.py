"""Events through a real NATS: CAP's names and form, shared groups, and nothing lost when members or servers die."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import api
from tests.support.message_brokers import MessageBroker
from tests.support.redis_nats import nats_server
from tests.support.waiting import eventually

from sparrow.bus import headers as h
from sparrow.bus.transports.nats.consumer import NatsStreamConsumer
from sparrow.bus.transports.nats.subjects import covers, merge_subjects
from sparrow.bus.transports.nats.transport import NatsTransport
from sparrow.bus.transports.spi import BrokerDelivery, Envelope
from sparrow.model.errors import ConnectionLost, IllegalMessage, IllegalName, TooLarge, Unavailable

_numbers = itertools.count(1)
WAIT_S = 10.0


pytestmark = pytest.mark.xdist_group("nats")  # one server for all of them


@pytest.fixture(scope="module")
def server() -> Iterator[MessageBroker]:
    with nats_server() as running:
        yield running


@pytest.fixture
async def client(server: MessageBroker) -> AsyncIterator[Client]:
    plain = await nats.connect(server.url)
    for stream in await plain.jetstream().streams_info():
        await plain.jetstream().delete_stream(stream.config.name)
    yield plain
    await plain.close()


@pytest.fixture
async def transport(server: MessageBroker, client: Client) -> AsyncIterator[NatsTransport]:
    async with opened(server) as made:
        yield made


@asynccontextmanager
async def opened(server: MessageBroker, **options: Any) -> AsyncIterator[NatsTransport]:
    made = NatsTransport(server.url, **({"rescan_interval_s": 0.1} | options))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def listening(transport: NatsTransport, *names: str, group: str = "g.v1") -> AsyncIterator[NatsStreamConsumer]:
    made = await transport.listen(group, names, prefetch=100)
    try:
        yield made
    finally:
        await made.close()


def event(name: str, body: bytes = b"{}", **headers: str | None) -> Envelope:
    number = str(next(_numbers))
    return Envelope(name=name, headers={h.ID: number, h.NAME: name, **headers}, body=body, added=datetime.now(UTC))


async def send(transport: NatsTransport, *envelopes: Envelope) -> None:
    assert await transport.send(envelopes) == [None] * len(envelopes)


async def receive(member: NatsStreamConsumer, count: int = 1) -> list[BrokerDelivery]:
    found: list[BrokerDelivery] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await member.receive(count - len(found))
    return found


def ids(deliveries: Sequence[BrokerDelivery | Envelope]) -> list[str | None]:
    return [each.headers[h.ID] for each in deliveries]


async def test_every_header_and_byte_makes_the_round_trip(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as member:
        sent = event(
            "order.created", b"\x00\xff", **{h.CALLBACK: None, h.TYPE: "Órder", h.SENT_AT: "01/02/2026 03:04:05"}
        )
        null = event("order.created", b"")
        await send(transport, sent, null)
        first, second = await receive(member, 2)
        assert (first.name, first.headers, first.body) == (sent.name, sent.headers, sent.body)
        assert second.body == b""


async def test_message_stream_and_consumer_are_what_cap_makes(transport: NatsTransport, client: Client) -> None:
    js = client.jetstream()
    async with listening(transport, "order.item.created"):
        sent = event("order.item.created", b'{"Id":1}', **{h.CALLBACK: None})
        await send(transport, sent)
        stored = await js.get_msg("order", 1)
        assert stored.subject == "order.item.created"
        assert stored.data == b'{"Id":1}'
        assert stored.headers == {"Nats-Msg-Id": sent.id, h.ID: sent.id, h.NAME: sent.name, h.CALLBACK: ""}
        stream = (await js.stream_info("order")).config
        assert (stream.subjects, stream.storage) == (["order.item.created"], api.StorageType.FILE)
        consumer = (await js.consumer_info("order", "g_v1-order_item_created")).config
        assert (consumer.deliver_group, consumer.filter_subject) == ("g_v1", "order.item.created")
        assert (consumer.deliver_policy, consumer.ack_policy) == (api.DeliverPolicy.NEW, api.AckPolicy.EXPLICIT)
        assert consumer.ack_wait == 30


async def test_a_group_that_a_cap_service_has_made_is_shared_with_it(transport: NatsTransport, client: Client) -> None:
    js = client.jetstream()
    await js.add_stream(name="order", subjects=["order.created"], storage=api.StorageType.MEMORY)
    config = api.ConsumerConfig(
        durable_name="g_v1-order_created",
        deliver_policy=api.DeliverPolicy.NEW,
        deliver_subject=client.new_inbox(),
        deliver_group="g_v1",
        filter_subject="order.created",
        ack_wait=30,
    )
    await js.add_consumer("order", config)
    theirs: list[str | None] = []

    async def take(msg: Any) -> None:
        theirs.append(msg.headers[h.ID])
        await msg.ack()

    await client.subscribe(config.deliver_subject or "", "g_v1", cb=take)
    await client.flush()
    async with listening(transport, "order.created") as member:
        sent = [event("order.created") for _ in range(40)]
        await send(transport, *sent)
        ours: list[str | None] = []
        async with asyncio.timeout(WAIT_S):
            while len(ours) + len(theirs) < len(sent):
                try:
                    found = await asyncio.wait_for(member.receive(100), 0.1)
                except TimeoutError:
                    continue
                ours += ids(found)
                await member.acknowledge(found)
        assert ours
        assert theirs
        assert sorted(map(str, [*ours, *theirs])) == sorted(map(str, ids(sent)))


async def test_what_cap_writes_is_received(transport: NatsTransport, client: Client) -> None:
    async with listening(transport, "order.paid") as member:
        # As .NET's client lays headers out: no blank after the colon, nothing for null.
        headers = b"NATS/1.0\r\ncap-callback-name:\r\ncap-msg-id:7\r\ncap-msg-name:order.paid\r\nNats-Msg-Id:7\r\n\r\n"
        host, port = server_address(client)
        reader, writer = await asyncio.open_connection(host, port)
        await reader.readline()
        writer.write(b'CONNECT {"headers":true,"verbose":false}\r\n')
        writer.write(b"HPUB order.paid %d %d\r\n%s{}\r\n" % (len(headers), len(headers) + 2, headers))
        await writer.drain()
        found = await receive(member)
        writer.close()
        assert found[0].headers == {h.CALLBACK: None, h.ID: "7", h.NAME: "order.paid"}
        assert found[0].body == b"{}"


def server_address(client: Client) -> tuple[str, int]:
    url = client.connected_url
    assert url is not None
    return url.hostname or "", url.port or 0


async def test_a_foreign_message_is_called_after_its_place(transport: NatsTransport, client: Client) -> None:
    async with listening(transport, "meter.kilowatt") as member:
        await client.jetstream().publish("meter.kilowatt", b"1")
        await client.jetstream().publish("meter.kilowatt", b"2", headers={"color": "red"})
        await client.jetstream().publish("meter.kilowatt", b"3", headers={"Nats-Msg-Id": "mine"})
        first, second, third = await receive(member, 3)
        assert third.headers == {h.ID: "mine", h.NAME: "meter.kilowatt"}
        assert first.headers == {h.ID: "meter-1", h.NAME: "meter.kilowatt"}
        assert second.headers == {h.ID: "meter-2", h.NAME: "meter.kilowatt", "color": "red"}


async def test_members_of_a_group_share_and_groups_each_get_all(transport: NatsTransport) -> None:
    sent = [event("order.created") for _ in range(40)]
    async with listening(transport, "order.created") as one, listening(transport, "order.created") as two:
        async with listening(transport, "order.created", group="other.v1") as other:
            await send(transport, *sent)
            assert ids(await receive(other, 40)) == ids(sent)
            shared: dict[NatsStreamConsumer, list[str | None]] = {one: [], two: []}

            async def take(member: NatsStreamConsumer) -> None:
                while sum(map(len, shared.values())) < len(sent):
                    try:
                        shared[member] += ids(await asyncio.wait_for(member.receive(100), 0.1))
                    except TimeoutError:
                        continue

            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(take(one), take(two))
            assert all(shared.values())
            assert sorted(map(str, [*shared[one], *shared[two]])) == sorted(map(str, ids(sent)))


async def test_the_order_of_one_sending_is_kept(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as member:
        sent = [event("order.created") for _ in range(500)]
        await send(transport, *sent)
        assert ids(await receive(member, 500)) == ids(sent)


async def test_a_group_starts_with_what_comes_after_it(transport: NatsTransport) -> None:
    async with listening(transport, "order.created", group="earlier"):
        await send(transport, event("order.created"))
    later = event("order.created")
    async with listening(transport, "order.created") as member:
        await send(transport, later)
        assert ids(await member.receive(10)) == ids([later])


async def test_wildcards_follow_amqp(transport: NatsTransport) -> None:
    names = ("order", "order.a", "order.a.b", "order.a.b.done", "order.done", "other.done", "other.x")
    wanted = {
        "order.*": {"order.a", "order.done"},
        "order.#": set(names[:5]),
        "order.#.done": {"order.done", "order.a.b.done"},
        "*.done": {"order.done", "other.done"},
        "#": set(names),
    }
    async with listening(transport, "order.#", "other.*", group="makes the streams"):
        for pattern, expected in wanted.items():
            async with listening(transport, pattern) as member:
                await send(transport, *map(event, names))
                found = await receive(member, len(expected))
                assert {each.name for each in found} == expected, pattern
                await member.acknowledge(found)


async def test_a_wildcard_takes_streams_of_later_from_their_beginning(transport: NatsTransport) -> None:
    async with listening(transport, "#") as member:
        async with listening(transport, "late.comer", group="makes the stream"):
            first = event("late.comer")
            await send(transport, first)
            found = await receive(member)
            assert ids(found) == ids([first])
            await member.acknowledge(found)
    async with listening(transport, "later.still", group="makes the stream"):
        second = event("later.still")
        await send(transport, second)
    async with listening(transport, "#") as member:
        assert ids(await receive(member)) == ids([second])


async def test_an_envelope_that_is_sent_again_is_stored_once(transport: NatsTransport, client: Client) -> None:
    async with listening(transport, "order.created") as member:
        sent, later = event("order.created"), event("order.created")
        await send(transport, sent, sent)
        await send(transport, sent, later)
        assert ids(await receive(member, 2)) == ids([sent, later])
        assert (await client.jetstream().stream_info("order")).state.messages == 2


async def test_what_a_member_leaves_unacknowledged_goes_to_the_next(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as first:
        await send(transport, *(event("order.created") for _ in range(10)))
        found = await receive(first, 2)  # and eight wait in its memory
        await first.acknowledge(found[:1])
    async with listening(transport, "order.created") as second:
        again = await receive(second, 9)  # long before the 30 s that the server would wait
        assert str(found[0].headers[h.ID]) not in ids(again)
        await second.acknowledge(again)


async def test_what_was_given_back_comes_again_at_once(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as member:
        sent = event("order.created")
        await send(transport, sent)
        await member.release(await receive(member))
        again = await receive(member)
        assert ids(again) == ids([sent])
        await member.acknowledge(again)


async def test_what_a_silent_member_holds_goes_to_another_in_time(transport: NatsTransport, client: Client) -> None:
    js = client.jetstream()
    await js.add_stream(name="order", subjects=["order.created"])
    config = api.ConsumerConfig(durable_name="g_v1-order_created", deliver_policy=api.DeliverPolicy.NEW, ack_wait=0.3)
    config.deliver_subject, config.deliver_group, config.filter_subject = "to.g", "g_v1", "order.created"
    await js.add_consumer("order", config)
    async with listening(transport, "order.created") as member:
        sent = event("order.created")
        await send(transport, sent)
        assert ids(await receive(member)) == ids([sent])
        assert ids(await receive(member)) == ids([sent])


async def test_services_that_start_together_lose_none_of_a_streams_subjects(
    server: MessageBroker, transport: NatsTransport, client: Client
) -> None:
    names = [f"order.n{number}" for number in range(10)]
    received: set[str] = set()

    async def serve(member: NatsStreamConsumer) -> None:
        while True:
            found = await member.receive(10)
            received.update(each.name for each in found)
            await member.acknowledge(found)

    async with opened(server, rescan_interval_s=1) as one, opened(server, rescan_interval_s=1) as other:
        members = await asyncio.gather(
            *(each.listen("g.v1", [name], prefetch=1) for name in names for each in (one, other))
        )
        serving = [asyncio.ensure_future(serve(member)) for member in members]
        wanted = [event(name) for name in names]
        async with asyncio.timeout(WAIT_S):
            await send(transport, *wanted)
            await eventually(lambda: received == set(names))
        for task in serving:
            assert task.cancel(), task
        await asyncio.wait(serving)
        await asyncio.gather(*(member.close() for member in members))


async def test_subjects_that_another_service_has_replaced_come_back(transport: NatsTransport, client: Client) -> None:
    js = client.jetstream()
    async with listening(transport, "order.created") as member:
        await js.update_stream(name="order", subjects=["order.paid"])  # as a CAP service does when it starts
        sent = event("order.created")
        waiting = asyncio.ensure_future(receive(member))
        async with asyncio.timeout(WAIT_S):
            while (await transport.send([sent]))[0] is not None:
                await asyncio.sleep(0.01)
        assert ids(await waiting) == ids([sent])
        assert set((await js.stream_info("order")).config.subjects or ()) == {"order.created", "order.paid"}


async def test_a_stream_of_another_name_may_have_the_subject(transport: NatsTransport, client: Client) -> None:
    await client.jetstream().add_stream(name="everything", subjects=["order.>"])
    async with listening(transport, "order.created") as member:
        sent = event("order.created")
        await send(transport, sent)
        assert ids(await receive(member)) == ids([sent])


async def test_names_that_cap_gives_the_same_consumer_are_not_mixed_up(transport: NatsTransport) -> None:
    names = ["order.item.made", "order.item_made"]
    for _ in range(2):  # and each finds its own again
        async with listening(transport, names[0]) as one, listening(transport, names[1]) as other:
            await send(transport, *map(event, names))
            found = [*await receive(one), *await receive(other)]
            assert [each.name for each in found] == names
            await one.acknowledge(found[:1])
            await other.acknowledge(found[1:])


async def test_one_envelope_that_is_refused_does_not_hinder_the_others(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as member:
        good = [event("order.created"), event("order.created")]
        bad = [
            event("nobody.asked"),
            event("order.created", bytes(2_000_000)),
            event("order.created", x="two\r\nlines"),
        ]
        results = await transport.send([good[0], *bad, good[1]])
        assert [type(each) for each in results[1:4]][1:] == [TooLarge, IllegalMessage]
        assert isinstance(results[1], Unavailable)
        assert (results[0], results[4]) == (None, None)
        assert ids(await receive(member, 2)) == ids(good)


@pytest.mark.parametrize("name", ["", "a..b", ".a", "a b", "a.*", "a.>", "#", "a\n", "a/b.c"])
def test_a_name_that_is_no_subject_is_refused(name: str) -> None:
    with pytest.raises(IllegalName):
        NatsTransport("nats://127.0.0.1:1").check_name(name)


def test_a_stream_takes_all_it_took_before_and_no_subject_twice() -> None:
    assert merge_subjects(["a.b"], ["a.c", "a.b"]) == ["a.b", "a.c"]
    assert merge_subjects(["a.b", "a.b.c"], ["a.*"]) == ["a.b.c", "a.*"]
    assert merge_subjects(["a.>"], ["a.b.c", "a.*"]) == ["a.>"]
    assert merge_subjects(["a.*.x"], ["a.y.*"]) == ["a.>"]
    assert not covers("a.>", "a")


async def test_nobody_there_is_said_without_the_password() -> None:
    transport = NatsTransport("nats://user:secret@127.0.0.1:1")
    with pytest.raises(ConnectionLost) as raised:
        await transport.open()
    assert "secret" not in str(raised.value)
    with pytest.raises(ConnectionLost):
        await transport.send([event("order.created")])
    with pytest.raises(ConnectionLost):
        await transport.listen("g.v1", ["order.created"], prefetch=1)


async def test_a_killed_server_is_said_and_found_again(server: MessageBroker, transport: NatsTransport) -> None:
    member = await transport.listen("g.v1", ["order.created"], prefetch=10)
    sent = event("order.created")
    await send(transport, sent)
    held = await receive(member)
    waiting = asyncio.ensure_future(member.receive(1))
    await asyncio.sleep(0)
    server.kill()
    try:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(waiting, WAIT_S)
        with pytest.raises(Unavailable):
            await member.acknowledge(held)
        await member.close()
        with pytest.raises(ConnectionLost):
            await transport.send([event("order.created")])
        with pytest.raises(ConnectionLost):
            await transport.listen("g.v1", ["order.created"], prefetch=10)
    finally:
        server.start()
    async with listening(transport, "order.created") as again:
        later = event("order.created")
        await send(transport, later)
        assert ids(await receive(again)) == ids([later])  # what the dead server had delivered waits for its 30 s
    plain = await nats.connect(server.url)
    assert [(await plain.jetstream().get_msg("order", at)).headers[h.ID] for at in (1, 2)] == ids([sent, later])
    await plain.close()

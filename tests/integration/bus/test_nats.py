"""Events through a real NATS: CAP's names and format, shared groups, and no loss when members or servers die."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import api
from tests.support.message_brokers import MessageBroker
from tests.support.redis_nats import nats_server
from tests.support.transports import WAIT_S, event, ids, receive, send
from tests.support.wait import eventually

from sparrow.bus.codec import headers as h
from sparrow.bus.transports.nats.consumer import NatsStreamConsumer
from sparrow.bus.transports.nats.subjects import covers, merge_subjects
from sparrow.bus.transports.nats.transport import NatsTransport
from sparrow.model.errors import ConnectionLost, IllegalMessage, IllegalName, TooLarge, Unavailable

pytestmark = pytest.mark.xdist_group("nats")  # one server for all tests


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


async def test_headers_and_body_survive_the_round_trip(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as member:
        sent = event(
            "order.created", b"\x00\xff", **{h.CALLBACK: None, h.TYPE: "Órder", h.SENT_AT: "01/02/2026 03:04:05"}
        )
        null = event("order.created", b"")
        await send(transport, sent, null)
        first, second = await receive(member, 2)
        assert (first.name, first.headers, first.body) == (sent.name, sent.headers, sent.body)
        assert second.body == b""


async def test_message_stream_and_consumer_equal_those_of_cap(transport: NatsTransport, client: Client) -> None:
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


async def test_group_made_by_a_cap_service_is_shared_with_it(transport: NatsTransport, client: Client) -> None:
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


async def test_message_of_cap_is_received(transport: NatsTransport, client: Client) -> None:
    async with listening(transport, "order.paid") as member:
        # The header layout of the .NET client: no blank after the colon, an empty value for null.
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


async def test_foreign_message_gets_its_id_and_name_from_stream_and_subject(
    transport: NatsTransport, client: Client
) -> None:
    async with listening(transport, "meter.kilowatt") as member:
        await client.jetstream().publish("meter.kilowatt", b"1")
        await client.jetstream().publish("meter.kilowatt", b"2", headers={"color": "red"})
        await client.jetstream().publish("meter.kilowatt", b"3", headers={"Nats-Msg-Id": "mine"})
        first, second, third = await receive(member, 3)
        assert third.headers == {h.ID: "mine", h.NAME: "meter.kilowatt"}
        assert first.headers == {h.ID: "meter-1", h.NAME: "meter.kilowatt"}
        assert second.headers == {h.ID: "meter-2", h.NAME: "meter.kilowatt", "color": "red"}


async def test_members_share_the_events_of_their_group_and_each_group_gets_all(transport: NatsTransport) -> None:
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


async def test_events_of_one_send_keep_their_order(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as member:
        sent = [event("order.created") for _ in range(500)]
        await send(transport, *sent)
        assert ids(await receive(member, 500)) == ids(sent)


async def test_new_group_starts_after_the_existing_events(transport: NatsTransport) -> None:
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


async def test_wildcard_reads_a_later_stream_from_its_beginning(transport: NatsTransport) -> None:
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


async def test_envelope_sent_again_is_stored_once(transport: NatsTransport, client: Client) -> None:
    async with listening(transport, "order.created") as member:
        sent, later = event("order.created"), event("order.created")
        await send(transport, sent, sent)
        await send(transport, sent, later)
        assert ids(await receive(member, 2)) == ids([sent, later])
        assert (await client.jetstream().stream_info("order")).state.messages == 2


async def test_unacknowledged_events_of_a_closed_member_go_to_the_next_member(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as first:
        await send(transport, *(event("order.created") for _ in range(10)))
        found = await receive(first, 2)  # eight more are prefetched
        await first.acknowledge(found[:1])
    async with listening(transport, "order.created") as second:
        again = await receive(second, 9)  # long before the ack wait of 30 s is over
        assert str(found[0].headers[h.ID]) not in ids(again)
        await second.acknowledge(again)


async def test_released_event_is_redelivered_at_once(transport: NatsTransport) -> None:
    async with listening(transport, "order.created") as member:
        sent = event("order.created")
        await send(transport, sent)
        await member.release(await receive(member))
        again = await receive(member)
        assert ids(again) == ids([sent])
        await member.acknowledge(again)


async def test_event_of_a_silent_member_is_redelivered_after_the_ack_wait(
    transport: NatsTransport, client: Client
) -> None:
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


async def test_services_that_start_together_lose_no_subject_of_a_stream(
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


async def test_subjects_that_another_service_removed_are_restored(transport: NatsTransport, client: Client) -> None:
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


async def test_stream_with_another_name_may_own_the_subject(transport: NatsTransport, client: Client) -> None:
    await client.jetstream().add_stream(name="everything", subjects=["order.>"])
    async with listening(transport, "order.created") as member:
        sent = event("order.created")
        await send(transport, sent)
        assert ids(await receive(member)) == ids([sent])


async def test_names_with_the_same_cap_consumer_name_are_not_confused(transport: NatsTransport) -> None:
    names = ["order.item.made", "order.item_made"]
    for _ in range(2):  # the second time, each finds its existing consumer
        async with listening(transport, names[0]) as one, listening(transport, names[1]) as other:
            await send(transport, *map(event, names))
            found = [*await receive(one), *await receive(other)]
            assert [each.name for each in found] == names
            await one.acknowledge(found[:1])
            await other.acknowledge(found[1:])


async def test_refused_envelope_does_not_affect_the_others_of_its_send(transport: NatsTransport) -> None:
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
def test_name_that_is_not_a_subject_is_refused(name: str) -> None:
    with pytest.raises(IllegalName):
        NatsTransport("nats://127.0.0.1:1").check_name(name)


def test_merged_subjects_cover_all_old_ones_without_overlap() -> None:
    assert merge_subjects(["a.b"], ["a.c", "a.b"]) == ["a.b", "a.c"]
    assert merge_subjects(["a.b", "a.b.c"], ["a.*"]) == ["a.b.c", "a.*"]
    assert merge_subjects(["a.>"], ["a.b.c", "a.*"]) == ["a.>"]
    assert merge_subjects(["a.*.x"], ["a.y.*"]) == ["a.>"]
    assert not covers("a.>", "a")


async def test_connection_error_does_not_show_the_password() -> None:
    transport = NatsTransport("nats://user:secret@127.0.0.1:1")
    with pytest.raises(ConnectionLost) as raised:
        await transport.open()
    assert "secret" not in str(raised.value)
    with pytest.raises(ConnectionLost):
        await transport.send([event("order.created")])
    with pytest.raises(ConnectionLost):
        await transport.listen("g.v1", ["order.created"], prefetch=1)


async def test_killed_server_raises_errors_and_is_used_again_after_its_restart(
    server: MessageBroker, transport: NatsTransport
) -> None:
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
        assert ids(await receive(again)) == ids([later])  # the unacknowledged event waits for its ack wait of 30 s
    plain = await nats.connect(server.url)
    assert [(await plain.jetstream().get_msg("order", at)).headers[h.ID] for at in (1, 2)] == ids([sent, later])
    await plain.close()

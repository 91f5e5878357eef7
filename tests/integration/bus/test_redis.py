"""Events through a real Redis: CAP's format on the wire, shared groups, and no loss when members or servers die."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
from tests.support.message_brokers import MessageBroker
from tests.support.redis_nats import redis_server
from tests.support.transports import WAIT_S, event, ids, receive, send

from sparrow.bus.codec import headers as h
from sparrow.bus.transports.redis.consumer import RedisStreamConsumer
from sparrow.bus.transports.redis.transport import RedisTransport
from sparrow.bus.transports.redis.trimming import TrimPolicy, trim_to_slowest
from sparrow.model.errors import ConnectionLost, IllegalName, Unavailable

pytestmark = pytest.mark.xdist_group("redis")  # one server for all tests


@pytest.fixture(scope="module")
def server() -> Iterator[MessageBroker]:
    with redis_server() as running:
        yield running


@pytest.fixture
async def client(server: MessageBroker) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(server.url, protocol=2) as plain:
        await plain.flushall()
        yield plain


@pytest.fixture
async def transport(server: MessageBroker, client: redis.asyncio.Redis) -> AsyncIterator[RedisTransport]:
    async with opened(server) as made:
        yield made


@asynccontextmanager
async def opened(server: MessageBroker, **options: Any) -> AsyncIterator[RedisTransport]:
    made = RedisTransport(server.url, **({"claim_interval_s": 0.05, "scan_interval_s": 0.05} | options))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def listening(
    transport: RedisTransport, *names: str, group: str = "g.v1", prefetch: int = 100
) -> AsyncIterator[RedisStreamConsumer]:
    made = await transport.listen(group, names, prefetch=prefetch)
    try:
        yield made
    finally:
        await made.close()


async def test_headers_and_body_survive_the_round_trip(transport: RedisTransport) -> None:
    async with listening(transport, "order.created") as member:
        sent = event("order.created", '{"a":"é+/"}'.encode(), **{h.CALLBACK: None, h.TYPE: "Órder", "x": ""})
        null = event("order.created", b"")
        await send(transport, sent, null)
        first, second = await receive(member, 2)
        assert (first.name, first.headers, first.body) == (sent.name, sent.headers, sent.body)
        assert second.body == b""


async def test_entry_has_exactly_the_format_of_cap(transport: RedisTransport, client: redis.asyncio.Redis) -> None:
    await send(transport, event("order.created", b'{"Id":1}', **{h.CALLBACK: None}), event("order.created", b""))
    (_, first), (_, second) = await client.xrange("order.created")
    assert list(first) == [b"headers", b"body"]
    assert json.loads(first[b"headers"]).items() >= {h.NAME: "order.created", h.CALLBACK: None}.items()
    assert first[b"body"] == b'"eyJJZCI6MX0="'
    assert second[b"body"] == b'""'


async def test_entry_of_cap_is_received(transport: RedisTransport, client: redis.asyncio.Redis) -> None:
    async with listening(transport, "order.paid") as member:
        # The JSON writer of .NET escapes characters that are special in HTML, in headers and in base64.
        headers = '{"cap-callback-name":null,"cap-msg-id":"7","cap-msg-name":"order.paid","x":"A\\u003C1\\u003E"}'
        await client.xadd("order.paid", {"headers": headers, "body": '"\\u002B/8="'})
        await client.xadd("order.paid", {"headers": headers, "body": ""})
        first, second = await receive(member, 2)
        assert first.headers == {h.CALLBACK: None, h.ID: "7", h.NAME: "order.paid", "x": "A<1>"}
        assert first.body == b"\xfb\xff"
        assert second.body == b""


async def test_foreign_entry_gets_its_id_from_stream_and_entry_id(
    transport: RedisTransport, client: redis.asyncio.Redis
) -> None:
    async with listening(transport, "meter") as member:
        written = await client.xadd("meter", {"kilowatt": "3"})
        await client.xadd("meter", {"headers": "no JSON", "body": "plain"})
        first, second = await receive(member, 2)
        assert first.headers == {h.ID: f"meter-{written.decode()}", h.NAME: "meter"}
        assert json.loads(first.body) == {"kilowatt": "3"}
        assert second.body == b"plain"


async def test_header_builder_names_foreign_entries(server: MessageBroker, client: redis.asyncio.Redis) -> None:
    async with opened(server, header_builder=lambda delivery: {h.ID: "built", "size": str(len(delivery.body))}) as own:
        async with listening(own, "meter") as member:
            await client.xadd("meter", {"body": "12345"})
            assert (await receive(member))[0].headers == {h.ID: "built", "size": "5", h.NAME: "meter"}


async def test_members_share_the_events_of_their_group_and_each_group_gets_all(transport: RedisTransport) -> None:
    sent = [event("order.created") for _ in range(20)]
    async with listening(transport, "order.created") as one, listening(transport, "order.created") as two:
        async with listening(transport, "order.created", group="other.v1") as other:
            await send(transport, *sent)
            shared = [*await receive(one, 10), *await receive(two, 10)]
            assert sorted(map(str, ids(shared))) == sorted(map(str, ids(sent)))
            assert ids(await receive(other, 20)) == ids(sent)


async def test_new_group_starts_after_the_existing_events(transport: RedisTransport) -> None:
    await send(transport, event("order.created"))
    later = event("order.created")
    async with listening(transport, "order.created") as member:
        await send(transport, later)
        assert ids(await member.receive(10)) == ids([later])


async def test_wildcard_reads_a_later_stream_from_its_beginning(transport: RedisTransport) -> None:
    await send(transport, event("order.old"), event("order.old.deep"))
    async with listening(transport, "order.*") as member:
        sent = [event("order.old"), event("order.new"), event("order.new.deep"), event("orders")]
        await send(transport, *sent)
        found = await receive(member, 2)
        assert {each.name for each in found} == {"order.old", "order.new"}
        assert set(ids(found)) == set(ids(sent[:2]))
        await member.acknowledge(found)
    # A stream that is created while no member listens is read too.
    missed = event("order.missed")
    await send(transport, missed)
    async with listening(transport, "order.*") as member:
        assert ids(await receive(member)) == ids([missed])


async def test_hash_wildcard_matches_zero_words(transport: RedisTransport) -> None:
    async with listening(transport, "order.#", "a[b]?.#.z") as member:
        sent = [event(name) for name in ("order", "order.a.b", "a[b]?.z", "a[b]?.x.y.z", "ab.z", "a[b]?.z.x")]
        await send(transport, *sent)
        assert {each.name for each in await receive(member, 4)} == {"order", "order.a.b", "a[b]?.z", "a[b]?.x.y.z"}


async def test_unacknowledged_events_of_a_closed_member_go_to_the_next_member(
    transport: RedisTransport, client: redis.asyncio.Redis
) -> None:
    async with listening(transport, "order.created") as first:
        await send(transport, *(event("order.created") for _ in range(3)))
        kept, left, unseen = (await first.receive(1))[0], *await receive(first, 2)
        await first.acknowledge([kept])
    async with listening(transport, "order.created") as second:
        again = await receive(second, 2)
        assert ids(again) == ids([left, unseen])
        await second.acknowledge(again)
    assert (await client.xpending("order.created", "g.v1"))["pending"] == 0
    # Closed members leave no consumer name behind; the remaining one is CAP's.
    assert [each["name"] for each in await client.xinfo_consumers("order.created", "g.v1")] == [b"g.v1"]


async def test_event_of_a_dead_member_is_claimed_when_it_is_idle(
    server: MessageBroker, transport: RedisTransport
) -> None:
    async with opened(server, idle_claim_s=0.2) as impatient:
        async with listening(transport, "order.created") as silent, listening(impatient, "order.created") as other:
            sent = event("order.created")
            await send(transport, sent)
            assert ids(await receive(silent)) == ids([sent])
            assert ids(await receive(other)) == ids([sent])


async def test_event_in_progress_is_not_redelivered_to_the_same_member(
    server: MessageBroker, client: redis.asyncio.Redis
) -> None:
    async with opened(server, idle_claim_s=0.01) as impatient, listening(impatient, "order.created") as member:
        slow, marker = event("order.created"), event("order.created")
        await send(impatient, slow)
        held = await receive(member)
        waiting = asyncio.ensure_future(receive(member))
        async with asyncio.timeout(WAIT_S):
            while (await client.xpending_range("order.created", "g.v1", "-", "+", 1))[0]["times_delivered"] < 3:
                await asyncio.sleep(0.01)
        await send(impatient, marker)
        assert ids(await waiting) == ids([marker])
        await member.acknowledge(held)


async def test_released_event_is_redelivered_at_once(transport: RedisTransport) -> None:
    async with listening(transport, "order.created") as member:
        sent = event("order.created")
        await send(transport, sent)
        await member.release(await receive(member))
        again = await receive(member)
        assert ids(again) == ids([sent])
        await member.acknowledge(again)


async def test_event_that_arrives_while_a_receive_is_cancelled_is_not_lost(transport: RedisTransport) -> None:
    async with listening(transport, "order.created") as member:
        for _ in range(20):
            waiting = asyncio.ensure_future(member.receive(1))
            await asyncio.sleep(0)
            sent = event("order.created")
            await asyncio.gather(send(transport, sent), asyncio.to_thread(waiting.cancel))
            await asyncio.wait([waiting])
            found = await receive(member) if waiting.cancelled() else list(waiting.result())
            assert ids(found) == ids([sent])
            await member.acknowledge(found)


async def test_trimming_keeps_entries_that_a_slow_group_has_not_read(
    server: MessageBroker, transport: RedisTransport, client: redis.asyncio.Redis
) -> None:
    async with opened(server, trim=TrimPolicy(every=500)) as trimming:
        async with (
            listening(trimming, "metric", prefetch=500) as quick,
            listening(transport, "metric", group="slow") as slow,
        ):
            await send(trimming, *(event("metric") for _ in range(500)))
            seen = await receive(slow, 100)
            await slow.acknowledge(seen[:50])  # 50 are unacknowledged
            await quick.acknowledge(await receive(quick, 500))
            assert 450 <= await client.xlen("metric") <= 500
            await trim_to_slowest(client, "metric", is_exact=True)
            assert await client.xlen("metric") == 450
            assert ids(await receive(slow, 400))  # still stored, although the fast group has finished them
            await slow.acknowledge(seen[50:])
            await trim_to_slowest(client, "metric", is_exact=True)
            assert await client.xlen("metric") == 400


async def test_acknowledging_trims_entries_that_every_group_has_finished(
    server: MessageBroker, client: redis.asyncio.Redis
) -> None:
    async with opened(server, trim=TrimPolicy(every=500)) as own:
        async with listening(own, "metric") as one, listening(own, "metric", group="other") as other:
            await send(own, *(event("metric") for _ in range(500)))
            await one.acknowledge(await receive(one, 500))
            assert await client.xlen("metric") == 500
            await other.acknowledge(await receive(other, 500))
            assert await client.xlen("metric") <= 100  # Redis trims whole blocks only: the last one stays


async def test_deleted_stream_raises_an_error_and_can_be_joined_again(
    transport: RedisTransport, client: redis.asyncio.Redis
) -> None:
    async with listening(transport, "order.created") as member:
        await client.delete("order.created")
        with pytest.raises(Unavailable):
            await receive(member)
    async with listening(transport, "order.created") as member:
        sent = event("order.created")
        await send(transport, sent)
        assert ids(await receive(member)) == ids([sent])


async def test_trimming_waits_for_a_wildcard_group_that_has_not_read_the_stream(
    server: MessageBroker, client: redis.asyncio.Redis
) -> None:
    async with opened(server) as own:
        async with listening(own, "metric.#", group="wild"):
            pass
        async with listening(own, "metric.cpu") as member:
            await send(own, event("metric.cpu"))
            await member.acknowledge(await receive(member))
            assert await trim_to_slowest(client, "metric.cpu", is_exact=True) == 0
            async with listening(own, "metric.#", group="wild") as wild:
                await wild.acknowledge(await receive(wild))
            assert await trim_to_slowest(client, "metric.cpu", is_exact=True) == 1


async def test_stream_can_be_trimmed_to_a_length(server: MessageBroker, client: redis.asyncio.Redis) -> None:
    async with opened(server, trim=TrimPolicy(length_max=100)) as own:
        await send(own, *(event("metric") for _ in range(1_000)))
        assert 100 <= await client.xlen("metric") < 300


async def test_refused_envelope_does_not_affect_the_others_of_its_send(
    transport: RedisTransport, client: redis.asyncio.Redis
) -> None:
    await client.set("taken", "by another program")
    before, refused, after = await transport.send([event("fine"), event("taken"), event("fine")])
    assert (before, after) == (None, None)
    assert isinstance(refused, IllegalName)
    assert await client.xlen("fine") == 2


def test_only_an_empty_name_is_illegal(server: MessageBroker) -> None:
    transport = RedisTransport(server.url)
    transport.check_name("any thing > * #")
    with pytest.raises(IllegalName):
        transport.check_name("")


async def test_connection_error_does_not_show_the_password() -> None:
    transport = RedisTransport("redis://:secret@127.0.0.1:1")
    with pytest.raises(ConnectionLost) as raised:
        await transport.open()
    assert "secret" not in str(raised.value)
    with pytest.raises(ConnectionLost):
        await transport.send([event("order.created")])
    with pytest.raises(ConnectionLost):
        await transport.listen("g.v1", ["order.created"], prefetch=1)


async def test_killed_server_raises_errors_and_is_used_again_after_its_restart(
    server: MessageBroker, transport: RedisTransport
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
        assert isinstance((await transport.send([event("order.created")]))[0], ConnectionLost)
        with pytest.raises(ConnectionLost):  # this time the client knew before the call
            await transport.send([event("order.created")])
        with pytest.raises(ConnectionLost):
            await transport.listen("g.v1", ["order.created"], prefetch=10)
    finally:
        server.start()
    later = event("order.created")
    await send(transport, later)
    async with opened(server, idle_claim_s=0.1) as impatient, listening(impatient, "order.created") as again:
        assert set(ids(await receive(again, 2))) == set(ids([sent, later]))

"""Events over a real Apache Kafka, together with services that use it as .NET CAP does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from tests.support.message_brokers import MessageBroker, kafka_server
from tests.support.transports import ids, receive

from sparrow.bus.codec import headers as h
from sparrow.bus.transports.kafka.consumer import OffsetTracker
from sparrow.bus.transports.kafka.transport import KafkaTransport
from sparrow.bus.transports.spi import Envelope, TransportConsumer
from sparrow.model.errors import IllegalMessage, IllegalName, Unavailable, UnknownTopic

PATIENCE_S = 30.0
NOW = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
PARTITIONS = 3
FAST = {"request_timeout_s": 5, "liveness_interval_s": 0.5, "metadata_max_age_s": 1, "session_timeout_s": 6}


@pytest.fixture(scope="module")
def server() -> Iterator[MessageBroker]:
    with kafka_server(num_partitions=PARTITIONS) as running:
        yield running


@pytest.fixture
async def transport(server: MessageBroker) -> AsyncIterator[KafkaTransport]:
    transport = KafkaTransport(server.url, **FAST)
    await transport.open()
    yield transport
    await transport.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "-", request.node.name)


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}.v1"


def event(name: str, id: object, body: bytes = b"{}", *, key: str | None = None, **headers: str | None) -> Envelope:
    return Envelope(name=name, headers={h.ID: str(id), h.NAME: name, **headers}, body=body, added=NOW, key=key)


async def nothing_more(listening: TransportConsumer, transport: KafkaTransport, topic: str) -> None:
    """Assert that the partition of key k has no earlier delivery left: a new event is the next one."""
    assert await transport.send([event(topic, "the end", key="k")]) == [None]
    assert ids(await receive(listening, 1)) == ["the end"]


# -- offsets, without a server -----------------------------------------------------------------------------------------


def test_the_committed_offset_never_passes_an_unacknowledged_record() -> None:
    track = OffsetTracker()
    assert all(track.take(offset) for offset in (10, 11, 13, 14))  # 12 was compacted away
    track.acknowledge(11)
    track.acknowledge(13)
    assert track.advance() is None
    track.acknowledge(10)
    assert track.advance() == 14
    assert track.advance() is None
    track.acknowledge(14)
    assert track.advance() == 15


def test_after_a_seek_back_only_released_records_are_taken_again() -> None:
    track = OffsetTracker()
    assert all(track.take(offset) for offset in range(5))
    track.acknowledge(0)
    track.acknowledge(2)
    track.release(3)
    track.release(1)
    assert track.first_released() == 1
    assert track.advance() == 1
    assert [offset for offset in range(6) if track.take(offset)] == [1, 3, 5]
    assert track.first_released() is None
    for offset in range(6):
        track.acknowledge(offset)
    assert track.advance() == 6


@pytest.mark.parametrize("name", ["", "größe", "a b", "order/created", "..", "a" * 250])
def test_an_invalid_topic_name_is_refused(name: str) -> None:
    transport = KafkaTransport("kafka://127.0.0.1:9092")
    with pytest.raises(IllegalName):
        transport.check_name(name)
    transport.check_name("Order_created-2.v1")


# -- wire format -------------------------------------------------------------------------------------------------------


async def test_an_event_arrives_with_its_body_and_every_header(
    transport: KafkaTransport, topic: str, group: str
) -> None:
    headers = {h.CALLBACK: None, "x-text": "größe 雀", "x-empty": ""}
    sent = event(topic, 42, '{"Näme":"雀"}'.encode(), **headers)
    assert await transport.send([sent]) == [None]  # before any consumer listens: the topic keeps it
    listening = await transport.listen(group, [topic], prefetch=10)
    (got,) = await receive(listening, 1)
    assert (got.name, got.headers, got.body) == (topic, sent.headers, sent.body)
    await listening.acknowledge([got])
    await listening.close()


@pytest.mark.parametrize(
    ("key", "header", "expected"),
    [("order-7", None, b"order-7"), (None, "by-header", b"by-header"), (None, None, b"1234567890123")],
)
async def test_an_event_on_the_wire_has_the_form_of_a_cap_service(
    server: MessageBroker, transport: KafkaTransport, topic: str, key: str | None, header: str | None, expected: bytes
) -> None:
    more = {h.CALLBACK: None, h.TYPE: "Größe"} | ({h.KAFKA_KEY: header} if header else {})
    sent = event(topic, 1234567890123, b'{"Id":7}', key=key, **more)
    assert await transport.send([sent]) == [None]
    async with AIOKafkaConsumer(topic, bootstrap_servers=server.address, auto_offset_reset="earliest") as plain:
        async with asyncio.timeout(PATIENCE_S):
            record = await plain.getone()
    assert record.value == b'{"Id":7}'
    assert dict(record.headers) == {name: value and value.encode() for name, value in sent.headers.items()}
    assert record.key == expected


async def test_a_cap_event_is_received_and_a_foreign_record_gets_its_place_as_id(
    server: MessageBroker, transport: KafkaTransport, topic: str, group: str
) -> None:
    listening = await transport.listen(group, [topic], prefetch=10)
    headers = {h.ID: "9007199254740993", h.NAME: topic, h.TYPE: "Größe", h.CALLBACK: None}
    async with AIOKafkaProducer(bootstrap_servers=server.address) as plain:
        wire = [(name, value and value.encode()) for name, value in headers.items()]
        await plain.send_and_wait(topic, b'{"Id":7}', key=b"9007199254740993", headers=wire)
        (got,) = await receive(listening, 1)
        assert (got.name, got.headers, got.body) == (topic, headers, b'{"Id":7}')
        where = await plain.send_and_wait(topic, None, key=b"raw", headers=[("size", b"\xff")])
    (foreign,) = await receive(listening, 1)
    place = f"{topic}-{where.partition}-{where.offset}"
    assert foreign.headers == {h.ID: place, h.NAME: topic, "size": "\N{REPLACEMENT CHARACTER}"}
    assert foreign.body == b""
    await listening.close()


async def test_topics_are_created_with_the_clusters_defaults(
    server: MessageBroker, transport: KafkaTransport, topic: str
) -> None:
    assert await transport.send([event(topic, 1)]) == [None]
    admin = AIOKafkaAdminClient(bootstrap_servers=server.address)
    await admin.start()
    (made,) = await admin.describe_topics([topic])
    await admin.close()
    assert len(made["partitions"]) == PARTITIONS


# -- groups ------------------------------------------------------------------------------------------------------------


async def test_members_of_a_group_share_events_and_each_group_gets_all(
    transport: KafkaTransport, topic: str, group: str
) -> None:
    members = [await transport.listen(group, [topic], prefetch=10) for _ in range(2)]
    elsewhere = await transport.listen(f"{group}.2", [topic], prefetch=10)
    handled: list[dict[str | None, int]] = [{}, {}]

    async def work(listening: TransportConsumer, seen: dict[str | None, int]) -> None:
        while True:
            got = await listening.receive(5)
            seen |= dict.fromkeys(ids(got), 1)
            await listening.acknowledge(got)

    workers = [asyncio.create_task(work(*pair)) for pair in zip(members, handled, strict=True)]
    sent = 0
    async with asyncio.timeout(PATIENCE_S):
        while not all(handled) or len(handled[0].keys() | handled[1].keys()) < sent:
            if not all(handled):  # the first member has all partitions until the second one joins
                count = 20
                assert await transport.send([event(topic, n) for n in range(sent, sent + count)]) == [None] * count
                sent += count
            await asyncio.sleep(0.05)
    for worker in workers:
        worker.cancel()
    everything = {str(n) for n in range(sent)}
    assert handled[0].keys() | handled[1].keys() == everything
    assert set(ids(await receive(elsewhere, sent))) == everything
    for listening in (*members, elsewhere):
        await listening.close()


async def test_patterns_and_exact_names_work_together_also_for_topics_created_later(
    transport: KafkaTransport, topic: str, group: str
) -> None:
    listening = await transport.listen(group, [f"{topic}.order.*", f"{topic}-exact", f"{topic}.audit.#"], prefetch=10)
    wanted = [f"{topic}.order.a_b", f"{topic}-exact", f"{topic}.audit", f"{topic}.audit.x.y"]
    unwanted = [f"{topic}.order", f"{topic}.order.a.b", f"{topic}.auditor", f"{topic}-exactly"]
    assert set(await transport.send([event(name, name) for name in wanted + unwanted])) == {None}
    seen: set[str] = set()
    while not seen.issuperset(wanted):  # some may come twice: each newly found topic causes a rebalance
        got = await receive(listening, 1)
        seen |= {delivery.name for delivery in got}
        await listening.acknowledge(got)
    assert seen == set(wanted)
    await listening.close()


async def test_events_of_a_key_keep_their_order(transport: KafkaTransport, topic: str, group: str) -> None:
    listening = await transport.listen(group, [topic], prefetch=100)
    sent = [event(topic, n, key=f"key-{n % 7}") for n in range(500)]
    assert set(await transport.send(sent)) == {None}
    got = await receive(listening, len(sent))
    for key in range(7):
        assert [int(id) for id in ids(got) if int(id) % 7 == key] == list(range(key, 500, 7))
    await listening.close()


async def test_unacknowledged_events_are_delivered_again_after_close(
    transport: KafkaTransport, topic: str, group: str
) -> None:
    listening = await transport.listen(group, [topic], prefetch=10)
    await transport.send([event(topic, n, key="k") for n in range(4)])
    got = await receive(listening, 4)
    await listening.acknowledge([got[0], got[2]])
    await listening.close()
    again = await transport.listen(group, [topic], prefetch=10)
    assert ids(await receive(again, 3)) == ["1", "2", "3"]  # 2 as well: a committed offset cannot skip earlier records
    await nothing_more(again, transport, topic)
    await again.close()


async def test_only_released_events_are_delivered_again(transport: KafkaTransport, topic: str, group: str) -> None:
    listening = await transport.listen(group, [topic], prefetch=10)
    await transport.send([event(topic, n, key="k") for n in range(5)])
    got = await receive(listening, 5)
    await listening.acknowledge([got[0], got[2]])
    await listening.release([got[3]])
    await listening.release([got[1]])
    again = await receive(listening, 2)
    assert ids(again) == ["1", "3"]
    await listening.acknowledge([*again, got[4]])
    await nothing_more(listening, transport, topic)
    await listening.close()
    after = await transport.listen(group, [topic], prefetch=10)
    assert ids(await receive(after, 1)) == ["the end"]
    await after.close()


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_a_record_that_is_too_large_does_not_fail_other_records(
    transport: KafkaTransport, topic: str, group: str
) -> None:
    large = event(topic, "large", b"x" * (2 << 20), key="k")
    first, second, third = await transport.send([event(topic, 1, key="k"), large, event(topic, 2, key="k")])
    assert (first, third) == (None, None)
    assert isinstance(second, IllegalMessage)


async def test_without_auto_creation_a_missing_topic_is_a_failed_attempt(
    server: MessageBroker, transport: KafkaTransport, topic: str, group: str
) -> None:
    careful = KafkaTransport(server.url, **FAST, allow_auto_create=False)
    listening = await careful.listen(group, [topic], prefetch=10)  # the topic may be created later
    (result,) = await careful.send([event(topic, 1)])
    assert isinstance(result, UnknownTopic)
    assert await transport.send([event(topic, 2)]) == [None]
    assert await careful.send([event(topic, 3)]) == [None]
    assert set(ids(await receive(listening, 2))) == {"2", "3"}
    await listening.close()
    await careful.close()


async def test_two_names_that_collide_in_kafkas_metrics_are_refused(transport: KafkaTransport, topic: str) -> None:
    assert await transport.send([event(f"{topic}.x", 1)]) == [None]
    first, second = await transport.send([event(f"{topic}_x", 2), event(f"{topic}.x", 3)])
    assert isinstance(first, IllegalName)
    assert second is None


# -- server outage (last: a restart takes seconds) ---------------------------------------------------------------------


async def test_after_a_server_kill_a_new_consumer_continues_from_the_committed_offset(
    server: MessageBroker, topic: str, group: str
) -> None:
    transport = KafkaTransport(server.url, **(FAST | {"request_timeout_s": 2}))
    listening = await transport.listen(group, [topic], prefetch=10)
    assert await transport.send([event(topic, n, key="k") for n in range(3)]) == [None] * 3
    got = await receive(listening, 3)
    await listening.acknowledge(got[:1])
    waiting = asyncio.create_task(listening.receive(1))
    await asyncio.to_thread(server.kill)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await listening.acknowledge(got[1:2])
        await listening.close()
        (result,) = await transport.send([event(topic, 3, key="k")])  # the producer still waits for the server
        assert isinstance(result, Unavailable)
        with pytest.raises(Unavailable):
            await transport.send([event(topic, 4, key="k")])
        with pytest.raises(Unavailable):
            await transport.listen(group, [topic], prefetch=10)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not others  # no background task keeps trying
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the port is open before the partitions have leaders
            try:
                results = await transport.send([event(topic, 5, key="k")])
            except Unavailable:
                continue
            if results == [None]:
                break
        again = await transport.listen(group, [topic], prefetch=10)
    assert ids(await receive(again, 3)) == ["1", "2", "5"]
    await again.close()
    await transport.close()

"""The bus on Sparrow's own broker: the format on the wire, reading it back, groups, and redelivery."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.server_processes import ENVIRONMENT, broker_process
from tests.support.wait import eventually

from sparrow.bus.codec import headers as h
from sparrow.bus.transports.sparrow.consumer import SparrowGroupConsumer
from sparrow.bus.transports.sparrow.transport import BATCH_COUNT_MAX, SparrowTransport
from sparrow.bus.transports.spi import BrokerDelivery, Envelope
from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.model.errors import Closed, IllegalMessage, IllegalName, SparrowError, TooLarge, Unavailable, UnknownTopic
from sparrow.model.message import Message, StoredMessage
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings
from sparrow.testing import RunningPlatform, run_platform

ADDED = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
GROUP = "cap.queue.orders.v1"
SOON_S = 10.0
MANY = 3 * BATCH_COUNT_MAX + 7


def event(
    number: int = 1,
    name: str = "order.created",
    *,
    key: str | None = None,
    body: bytes | None = None,
    **headers: str | None,
) -> Envelope:
    said = {h.ID: str(10**17 + number), h.NAME: name, h.CALLBACK: None, h.CORRELATION_SEQUENCE: "0"}
    return Envelope(
        name=name,
        headers=said | headers,
        body=b"%d" % number if body is None else body,
        added=ADDED,
        key=key,
    )


def numbers(deliveries: Sequence[BrokerDelivery]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]


@asynccontextmanager
async def opened(name_servers: str, **options: object) -> AsyncIterator[SparrowTransport]:
    transport = SparrowTransport(name_servers, **options)  # type: ignore[arg-type]
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


@pytest.fixture
async def transport(platform: RunningPlatform) -> AsyncIterator[SparrowTransport]:
    async with opened(platform.name_servers, scan_interval_s=0.1) as transport:
        yield transport


async def send(transport: SparrowTransport, *envelopes: Envelope) -> None:
    assert await transport.send(envelopes) == [None] * len(envelopes)


async def listen(
    transport: SparrowTransport, *names: str, group: str = GROUP, prefetch: int = 1000
) -> SparrowGroupConsumer:
    return await transport.listen(group, names or ["order.created"], prefetch=prefetch)


async def received(listening: SparrowGroupConsumer, count: int, *, acknowledge: bool = True) -> list[BrokerDelivery]:
    found: list[BrokerDelivery] = []
    async with asyncio.timeout(SOON_S):
        while len(found) < count:
            found += await listening.receive(count - len(found))
    if acknowledge:
        await listening.acknowledge(found)
    return found


async def stored(name_servers: str, topic: str, count: int = 1) -> list[StoredMessage]:
    """Return the stored messages, read by a consumer that knows nothing of the bus."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(SOON_S), Consumer(name_servers, group="plain") as consumer:
        await consumer.subscribe(topic)
        while len(found) < count:
            found += await consumer.poll(count)
    return found


# -- format on the wire -----------------------------------------------------------------------------------------------


async def test_event_is_a_json_document_in_a_topic_without_dots(platform, transport):
    await send(transport, event(7, key="customer 5", body='{"名":1}'.encode()))
    (message,) = await stored(platform.name_servers, "order|created")
    assert json.loads(message.body) == {
        "Id": str(10**17 + 7),
        "Name": "order.created",
        "Content": '{"名":1}',
        "Added": "2026-01-01T12:00:00.000005Z",
        "ExpiresAt": None,
        "Retries": 0,
        "StatusName": "Processing",
        "Headers": event(7).headers,
        "Version": "v1",
    }
    assert message.keys == [str(10**17 + 7)]
    assert message.properties["__SHARDINGKEY"] == "customer 5"
    assert not [name for name in message.properties if name.startswith("cap-")]


async def test_cap_form_has_the_payload_as_body_and_headers_as_properties(platform):
    async with opened(platform.name_servers, form="cap") as transport:
        await send(transport, event(7, body=b'{"a":1}', blank=" ", empty="", colour="蓝"))
    (message,) = await stored(platform.name_servers, "order|created")
    said = {name: value for name, value in message.properties.items() if name.islower()}
    assert message.body == b'{"a":1}'
    assert message.keys == [str(10**17 + 7)]
    assert said == {h.ID: str(10**17 + 7), h.NAME: "order.created", h.CORRELATION_SEQUENCE: "0", "colour": "蓝"}


@pytest.mark.parametrize(
    "headers",
    [
        {"long": "x" * 40_000},
        {f"h{number}": "界" * 30 for number in range(350)},  # few enough characters, too many bytes
        {"DELAY": "3"},  # a property that the broker interprets
        {"TAGS": "t"},
        {"parted": "a\x02b"},
    ],
    ids=["long", "many", "delay", "tags", "separator"],
)
async def test_headers_that_cannot_be_properties_move_into_the_document(platform, headers):
    async with opened(platform.name_servers, form="cap") as transport:
        await send(transport, event(7, **headers))
        (delivery,) = await received(await listen(transport), 1)
    assert delivery.headers == event(7, **headers).headers
    assert delivery.body == b"7"
    (message,) = await stored(platform.name_servers, "order|created")
    assert json.loads(message.body)["Headers"] == event(7, **headers).headers


# -- reading back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"null", '{"a":"é"}'.encode(), b'"' + b"long" * 50_000 + b'"'],
    ids=["empty", "null", "document", "long"],
)
async def test_document_form_survives_the_round_trip(transport, body):
    sent = event(1, "order.line-2.added_now", key="k", body=body, note=None)
    await send(transport, sent)
    (delivery,) = await received(await listen(transport, "order.line-2.added_now"), 1)
    assert (delivery.name, delivery.headers, delivery.body) == (sent.name, sent.headers, body)


@pytest.mark.parametrize("body", [b"", b'{"Id":"1"}', '{"a":"é"}'.encode()])
async def test_cap_form_survives_the_round_trip_without_headers_of_value_none(platform, body):
    async with opened(platform.name_servers, form="cap") as transport:
        await send(transport, event(1, key="k", body=body, colour="blue"))
        (delivery,) = await received(await listen(transport), 1)
    said = {name: value for name, value in event(1, colour="blue").headers.items() if value is not None}
    assert (delivery.name, delivery.headers, delivery.body) == ("order.created", said, body)


async def test_one_consumer_reads_both_forms(platform, transport):
    async with opened(platform.name_servers, form="cap") as other:
        await send(other, event(1))
    await send(transport, event(2))
    assert sorted(numbers(await received(await listen(transport), 2))) == [1, 2]


async def test_foreign_message_gets_its_id_from_the_broker_and_its_name_from_the_topic(platform, transport):
    async with Producer(platform.name_servers) as producer:
        sent = await producer.send(Message("order|created", b'{"not":"ours"}', tags="t", properties={"colour": "blue"}))
    (delivery,) = await received(await listen(transport), 1)
    assert delivery.headers == {h.ID: sent.message_id, h.NAME: "order.created", "colour": "blue"}
    assert delivery.body == b'{"not":"ours"}'


async def test_header_builder_names_foreign_messages(platform):
    def build(delivery: BrokerDelivery) -> dict[str, str | None]:
        return {h.ID: "of " + delivery.body.decode(), h.NAME: "order.imported"}

    async with Producer(platform.name_servers) as producer:
        await producer.send(Message("order|created", b"theirs"))
    async with opened(platform.name_servers, header_builder=build) as transport:
        (delivery,) = await received(await listen(transport), 1)
    assert delivery.headers == {h.ID: "of theirs", h.NAME: "order.imported"}


# -- send -------------------------------------------------------------------------------------------------------------


def test_names_that_cannot_be_topics_are_refused():
    transport = SparrowTransport()
    transport.check_name("order.line-2.added_now")
    transport.check_name("o" * 127)
    for name in ("", "order created", "订单", "order|created", "o" * 128, "a/b"):
        with pytest.raises(IllegalName):
            transport.check_name(name)


async def test_group_name_too_long_for_the_broker_is_refused(transport):
    with pytest.raises(IllegalName):
        await listen(transport, group="g" * 121)


async def test_each_envelope_has_its_own_outcome(transport):
    outcomes = await transport.send(
        [event(1), event(2, body=b'"\xff"'), event(3), event(4, body=b"x" * (5 << 20)), event(5, "no good"), event(6)]
    )
    assert [type(outcome) for outcome in outcomes] == [
        *(type(None), IllegalMessage, type(None)),
        *(TooLarge, IllegalName, type(None)),
    ]
    assert sorted(numbers(await received(await listen(transport), 3))) == [1, 3, 6]


async def test_refused_event_blocks_only_its_own_key(platform, transport):
    async with Admin(platform.name_servers) as admin:
        await admin.create_topic("order|created", 1)
    large = event(2, key="a", body=b"x" * (5 << 20))
    wrong = event(3, key="b", body=b'"\xff"')
    events = [event(1, key="a"), large, wrong, event(4, key="a"), event(5, key="b"), event(6, key="c")]
    outcomes = await transport.send(events)
    assert [type(outcome) for outcome in outcomes] == [
        *(type(None), TooLarge, IllegalMessage),
        *(TooLarge, IllegalMessage, type(None)),
    ]
    assert numbers(await received(await listen(transport), 2)) == [1, 6]


async def test_each_event_fails_when_its_topic_may_not_be_created(tmp_path: Path):
    with run_platform(tmp_path, broker={"auto_create_topics": False}) as platform:
        async with opened(platform.name_servers) as transport:
            outcomes = await transport.send([event(1), event(2), event(3, key="k"), event(4, key="k")])
    assert [type(outcome) for outcome in outcomes] == [UnknownTopic] * 4


async def test_events_of_a_key_keep_their_order_within_and_across_sends(transport):
    keys = [f"customer {number}" for number in range(11)]
    events = [event(number, key=keys[number % len(keys)]) for number in range(2 * MANY)]
    await send(transport, *events[:MANY])
    await send(transport, *events[MANY : MANY + 1])
    await send(transport, *events[MANY + 1 :])
    found = numbers(await received(await listen(transport), len(events)))
    for place in range(len(keys)):
        of_key = [number for number in found if number % len(keys) == place]
        assert of_key == sorted(of_key)
    assert sorted(found) == list(range(2 * MANY))


async def test_transport_that_is_not_open_cannot_send():
    with pytest.raises(Closed):
        await SparrowTransport().send([event()])


async def test_open_without_a_broker_fails_and_may_be_repeated():
    async with NameServer(NameServerSettings(port=0)) as naming:
        transport = SparrowTransport(str(naming.address))
        with pytest.raises(Unavailable):
            await transport.open()
        with pytest.raises(Unavailable):
            await listen(transport)
    with pytest.raises(Unavailable):
        await transport.open()
    await transport.close()


# -- groups and members -----------------------------------------------------------------------------------------------


async def test_every_group_gets_every_event_and_members_share_them(platform, transport):
    async with opened(platform.name_servers) as other, Admin(platform.name_servers) as admin:
        await admin.create_topic("order|created", 4)
        members = [await listen(transport, prefetch=10), await listen(other, prefetch=10)]
        alone = await listen(transport, group="audit")
        shared: list[int] = []
        counts = [0, 0]

        async def share(which: int) -> None:
            while True:
                deliveries = await members[which].receive(10)
                await members[which].acknowledge(deliveries)
                shared.extend(numbers(deliveries))
                counts[which] += len(deliveries)

        tasks = [asyncio.create_task(share(which)) for which in range(2)]
        sent = 0
        async with asyncio.timeout(SOON_S):
            while not all(counts):  # until both members have queues
                await send(transport, *(event(sent + place) for place in range(40)))
                sent += 40
                await asyncio.sleep(0.02)
            while len(set(shared)) < sent:
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(numbers(await received(alone, sent))) == list(range(sent))
        assert set(shared) == set(range(sent))


async def test_new_group_starts_with_the_first_event(transport):
    await send(transport, event(1))
    assert numbers(await received(await listen(transport), 1)) == [1]
    await send(transport, event(2))
    assert sorted(numbers(await received(await listen(transport, group="late"), 2))) == [1, 2]


async def test_topic_created_after_listen_is_read(transport):
    listening = await listen(transport)
    receiving = asyncio.create_task(received(listening, 1))
    await send(transport, event(1))
    assert numbers(await receiving) == [1]


async def test_wildcard_finds_existing_and_later_topics(transport):
    await send(transport, event(1, "order.created"), event(2, "bill.paid"))
    listening = await listen(transport, "order.*")
    assert numbers(await received(listening, 1)) == [1]
    await send(transport, event(3, "order.line.added"), event(4, "order.cancelled"))
    (delivery,) = await received(listening, 1)
    assert (delivery.name, delivery.body) == ("order.cancelled", b"4")


async def test_wildcard_without_a_match_waits(transport):
    listening = await listen(transport, "#")
    receiving = asyncio.create_task(received(listening, 1))
    await send(transport, event(1, "order.created"))
    assert numbers(await receiving) == [1]  # and no event of a system topic


# -- redelivery -------------------------------------------------------------------------------------------------------


async def test_only_unacknowledged_events_from_the_first_one_on_are_redelivered(transport):
    await send(transport, *(event(number, key="k") for number in range(5)))
    first = await listen(transport)
    deliveries = await received(first, 5, acknowledge=False)
    await first.acknowledge(deliveries[:2])
    await first.acknowledge(deliveries[3:4])
    await first.close()
    second = await listen(transport)
    # 3 is redelivered too: the progress of a queue is one offset, and it stays before the first unacknowledged event.
    assert numbers(await received(second, 3)) == [2, 3, 4]
    await second.close()
    third = await listen(transport)
    await send(transport, event(5, key="k"))
    assert numbers(await received(third, 1)) == [5]


async def test_released_events_are_redelivered_first_and_in_order(transport):
    await send(transport, *(event(number, key="k") for number in range(6)))
    listening = await listen(transport)
    deliveries = await received(listening, 3, acknowledge=False)
    await listening.release(deliveries)
    assert numbers(await received(listening, 6)) == [0, 1, 2, 3, 4, 5]


async def test_waiting_receive_gets_a_released_event(transport):
    await send(transport, event(1))
    listening = await listen(transport)
    deliveries = await received(listening, 1, acknowledge=False)
    receiving = asyncio.create_task(received(listening, 1))
    await asyncio.sleep(0)
    await listening.release(deliveries)
    assert numbers(await receiving) == [1]


async def test_cancelled_receive_loses_nothing(transport):
    listening = await listen(transport)
    for number in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001 * number):
                await listening.receive(1)
    await send(transport, event(1), event(2))
    assert sorted(numbers(await received(listening, 2))) == [1, 2]


async def test_waiting_receive_raises_when_its_transport_closes(transport):
    listening = await listen(transport)
    receiving = asyncio.create_task(listening.receive(1))
    await asyncio.sleep(0)
    await transport.close()
    with pytest.raises(Closed):
        await receiving


async def test_unacknowledged_events_of_a_killed_member_are_redelivered(platform, transport):
    await send(transport, *(event(number, key="k") for number in range(3)))
    member = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MEMBER, platform.name_servers, GROUP),
        stdout=asyncio.subprocess.PIPE,
        env=ENVIRONMENT,
    )
    try:
        assert member.stdout is not None
        async with asyncio.timeout(SOON_S):
            assert await member.stdout.readline() == b"3\n"
    finally:
        member.kill()
        await member.wait()
    assert numbers(await received(await listen(transport), 3)) == [0, 1, 2]


_MEMBER = """
import asyncio, sys
from sparrow.bus.transports.sparrow.transport import SparrowTransport

async def main():
    listening = await SparrowTransport(sys.argv[1]).listen(sys.argv[2], ["order.created"], prefetch=10)
    count = 0
    while count < 3:
        count += len(await listening.receive(10))
    print(count, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.thorough
async def test_bus_continues_after_a_broker_was_killed_and_restarted(tmp_path: Path):
    async with (
        NameServer(NameServerSettings(port=0)) as naming,
        broker_process("sparrow", tmp_path / "broker", str(naming.address)) as broker,
        opened(str(naming.address), timeout_ms=500) as transport,
    ):
        listening = await listen(transport)
        await send(transport, event(1))
        assert numbers(await received(listening, 1)) == [1]
        await broker.kill()
        failures = await transport.send([event(2), event(3, key="k")])
        assert all(isinstance(failure, SparrowError) for failure in failures)
        await broker.start()
        async with asyncio.timeout(SOON_S):
            while any(await transport.send([event(2), event(3, key="k")])):
                pass
            found: set[int] = set()
            while not found >= {2, 3}:  # 1 may be redelivered: its acknowledgement was lost with the broker
                found.update(numbers(await listening.receive(10)))


async def test_hanging_broker_does_not_block_the_close_of_a_consumer(tmp_path: Path):
    async with (
        NameServer(NameServerSettings(port=0)) as naming,
        broker_process("sparrow", tmp_path / "broker", str(naming.address)) as broker,
    ):
        before = asyncio.all_tasks()
        async with opened(str(naming.address), timeout_ms=300) as transport:
            listening = await listen(transport)
            await send(transport, event(1))
            await received(listening, 1)
            broker.signal(signal.SIGSTOP)
            async with asyncio.timeout(SOON_S):
                await listening.close()
        await eventually(lambda: asyncio.all_tasks() <= before)

"""Bulk reads: the bounds of many queues in one response, and pulls that return record sizes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.support.platform_driver import BROKER, PlatformDriver, queue_ref, running_platform_driver
from tests.support.platforms import running_broker
from tests.support.sql_brokers import running_sql_platform
from tests.support.wait import eventually

from sparrow.broker import dispatch
from sparrow.client.aio.admin.queue_bounds import SizedQueueBounds, fetch_queue_bounds
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullResult, PullStatus, pull
from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import ProtocolError, UnknownTopic
from sparrow.wire import bodies, columns, record
from sparrow.wire.codes import RequestCode, ResponseCode

EVERYTHING = Subscription("t", "*")
MIDDLE = 1
"""The queue of a topic with lanes that receives messages without a priority."""


@asynccontextmanager
async def running_driver(store: str, folder: Path) -> AsyncIterator[PlatformDriver]:
    if store == "log":
        async with running_platform_driver(folder) as driver:
            yield driver
    else:
        async with running_sql_platform(folder, f"sqlite:///{folder}/sparrow.db") as driver:
            yield driver


@pytest.fixture(params=["log", "sqlite"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def driver(store: str, tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_driver(store, tmp_path) as running:
        yield running


@pytest.fixture
async def session(driver: PlatformDriver) -> AsyncIterator[ClientSession]:
    async with ClientSession(driver.name_servers) as session:
        yield session


# -- queue bounds -----------------------------------------------------------------------------------------------------


def ends(found: dict[bodies.QueueRef, SizedQueueBounds]) -> dict[tuple[str, int], tuple[int, int]]:
    return {(queue.topic, queue.queue_id): (head.first, head.end) for queue, head in found.items()}


async def test_queue_bounds_cover_the_queues_of_all_topics(driver, session, store):
    await driver.create_topic("t", queues=1)
    await driver.create_topic("u", queues=1)
    await driver.send("t", ["a", "b", "c"])
    queues, written = ([0], 0) if store == "log" else ([0, 1, 2], MIDDLE)
    found = await fetch_queue_bounds(session, ["t", "u"])
    expected = {(topic, queue_id): (0, 0) for topic in "tu" for queue_id in queues}
    assert ends(found) == expected | {("t", written): (0, 3)}
    assert list(found) == sorted(found)
    await driver.send("u", ["d"])
    assert ends(await fetch_queue_bounds(session, ["u"]))["u", written] == (0, 1), "messages sent just now must count"
    assert await fetch_queue_bounds(session, []) == {}


async def test_the_mean_size_follows_the_newest_records(driver, session, store):
    await driver.create_topic("t", queues=1)
    queue = queue_ref("t", 0 if store == "log" else MIDDLE)
    await driver.send("t", ["x" * 100] * 200)
    small = (await fetch_queue_bounds(session, ["t"]))[queue].mean_bytes
    answer = await pull(session, queue, 0, group="g", subscription=EVERYTHING, count_max=1, includes_subscription=True)
    assert small == len(answer.records), "all records must have the same size"
    await driver.send("t", ["x" * 1100] * 64)
    assert (await fetch_queue_bounds(session, ["t"]))[queue].mean_bytes == small + 1000


async def test_the_mean_size_survives_a_restart(store, tmp_path):
    async with running_driver(store, tmp_path) as driver, ClientSession(driver.name_servers) as session:
        await driver.create_topic("t")
        await driver.send("t", ["x" * 100] * 100)
        before = await fetch_queue_bounds(session, ["t"])
    async with running_driver(store, tmp_path) as driver, ClientSession(driver.name_servers) as session:
        assert await fetch_queue_bounds(session, ["t"]) == before
        assert max(head.mean_bytes for head in before.values()) > 100


async def test_queue_bounds_of_an_unknown_topic_are_refused(driver, session):
    await driver.create_topic("t")
    with pytest.raises(UnknownTopic) as refusal:
        await fetch_queue_bounds(session, ["t", "nowhere"])
    assert refusal.value.topic == "nowhere"
    asked = bodies.write(["t", "nowhere"])
    answer = await driver.channel.request(RequestCode.QUERY_QUEUE_BOUNDS, None, asked)
    assert (answer.code, "'nowhere'" in (answer.remark or "")) == (ResponseCode.TOPIC_NOT_EXIST, True)


@pytest.mark.parametrize("said", [b"", b"{}", b"[1,{}]", b'{"t":1}', b"\xff"])
async def test_a_malformed_list_of_topics_is_refused(driver, said):
    answer = await driver.channel.request(RequestCode.QUERY_QUEUE_BOUNDS, None, said)
    assert answer.code != ResponseCode.SUCCESS
    assert answer.remark


async def test_queue_bounds_are_fetched_per_topic_from_brokers_without_the_request(driver, session, monkeypatch):
    await driver.create_topic("t", queues=1)
    await driver.create_topic("u", queues=1)
    await driver.send("t", ["a", "b", "c"])
    knowing = await fetch_queue_bounds(session, ["t", "u"])
    monkeypatch.delitem(dispatch.HANDLERS, RequestCode.QUERY_QUEUE_BOUNDS)
    found = await fetch_queue_bounds(session, ["t", "u"])
    assert ends(found) == ends(knowing)
    assert {head.mean_bytes for head in found.values()} == {0}
    with pytest.raises(UnknownTopic):
        await fetch_queue_bounds(session, ["nowhere"])


async def test_queue_bounds_cover_all_brokers(tmp_path):
    async with running_platform_driver(tmp_path / "a") as driver:
        servers = driver.name_servers
        async with running_broker(tmp_path / "b", name="b", name_servers=servers), ClientSession(servers) as session:
            await driver.create_topic("t", queues=2)
            await driver.send("t", ["1", "2"], 1)
            found = await fetch_queue_bounds(session, ["t"])
            assert [(queue.broker_name, queue.queue_id, head.end) for queue, head in found.items()] == [
                ("b", 0, 0),
                ("b", 1, 0),
                (BROKER, 0, 0),
                (BROKER, 1, 2),
            ]


# -- record sizes -----------------------------------------------------------------------------------------------------


async def taken(session: ClientSession, queue: bodies.QueueRef, offset: int = 0, **how: object) -> PullResult:
    return await pull(
        session,
        queue,
        offset,
        group="g",
        count_max=100,
        includes_subscription=True,
        **{"subscription": EVERYTHING, **how},  # type: ignore[arg-type]
    )


def sized(answer: PullResult) -> list[bytes]:
    """Return the bodies, located by the sizes alone."""
    assert answer.sizes is not None
    sizes = np.frombuffer(answer.sizes, ">i4")
    batch = columns.decode(answer.records, sizes=sizes, columns=["body"])
    assert int(sizes.sum()) == len(answer.records)
    bodies_found: list[bytes] = batch.column(0).to_pylist()
    return bodies_found


async def test_a_pull_returns_record_sizes_on_request(driver, session, store):
    await driver.create_topic("t")
    queue = queue_ref("t", 0 if store == "log" else MIDDLE)
    await driver.send("t", [str(number) * (number % 7) for number in range(50)])
    plain, answer = await taken(session, queue), await taken(session, queue, with_sizes=True)
    assert plain.sizes is None
    assert bytes(plain.records) == bytes(answer.records)
    assert (plain.next_offset, plain.end) == (answer.next_offset, answer.end) == (50, 50)
    assert sized(answer) == [message.body for message in record.decode_all(bytes(plain.records))]


async def test_record_sizes_are_those_of_the_matching_records(driver, session, store):
    await driver.create_topic("t")
    queue = queue_ref("t", 0 if store == "log" else MIDDLE)
    for number in range(10):
        await driver.send("t", [str(number)], tags="even" if number % 2 == 0 else "odd")
    for expression, kind in (("even", "TAG"), ("TAGS = 'even'", "SQL92")):
        wanted = Subscription("t", expression, kind)
        answer = await taken(session, queue, subscription=wanted, with_sizes=True)
        assert sized(answer) == [b"0", b"2", b"4", b"6", b"8"]


async def test_a_parked_pull_returns_record_sizes(driver, session, store):
    await driver.create_topic("t")
    queue = queue_ref("t", 0 if store == "log" else MIDDLE)
    waiting = asyncio.create_task(taken(session, queue, with_sizes=True, long_poll_ms=20_000))
    await eventually(lambda: driver.platform.broker.broker.long_polls.count == 1)
    await driver.send("t", ["a"])
    assert sized(await waiting) == [b"a"]


async def test_an_empty_pull_has_no_record_sizes(driver, session, store):
    await driver.create_topic("t")
    nothing = await taken(session, queue_ref("t", 0 if store == "log" else MIDDLE), with_sizes=True)
    assert (nothing.status, nothing.sizes, len(nothing.records)) == (PullStatus.NO_NEW_MESSAGE, None, 0)


async def test_an_impossible_count_of_record_sizes_is_a_protocol_error():
    from sparrow.client.aio.consume.pull import _parted

    assert _parted(b"record\0\0\0\6", 1) == (b"record", b"\0\0\0\6")
    for count in (-1, 3):
        with pytest.raises(ProtocolError):
            _parted(b"record\0\0\0\6", count)

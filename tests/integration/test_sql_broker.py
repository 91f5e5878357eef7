"""A broker on a SQL store, over real sockets: every client operation, on each database."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.broker_client import BrokerClient, Clock, running_broker_client
from tests.support.databases import Server
from tests.support.platform_driver import PlatformDriver
from tests.support.platforms import (
    encode_properties,
    open_channel,
    pull,
    read_send_response,
    send,
    send_header,
    try_pull,
    try_send,
)
from tests.support.recording_handlers import RecordingHandler, body_texts
from tests.support.sql_brokers import running_sql_platform, sql_store_of
from tests.support.tested_databases import database_server, databases_under_test
from tests.support.wait import eventually

from sparrow import clock
from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.client.consume.retry import DeadLetter, RetryLater
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.message import Message, StoredMessage
from sparrow.model.priority import Priority, read_queue_id
from sparrow.model.protocol import CHECK_LIMIT_TOPIC
from sparrow.model.queue import Queue
from sparrow.model.transaction import TransactionState
from sparrow.net import Channel
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import EndTransaction, OffsetResponse, QueueRequest, SendMessageBack

pytestmark = pytest.mark.one_database

ROOT = Path(__file__).parents[2]
NOT_ON_SQL = ("pop", "log_store", "remoting_frames", "arrow_columns")
# One example of the event bus is enough: the others differ in their framework, not in their requests to a broker.
NOT_ON_SQL += ("bus_first_steps", "bus_fastapi", "bus_flask", "bus_django")
NOT_ON_SQL += ("mistakes",)  # starts two platforms, which must not share a database
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.stem not in NOT_ON_SQL
    and not path.stem.startswith("spark_")  # each starts Spark; tests/spark covers both stores
]
MIDDLE = 1
"""The queue of a topic with one write queue that receives messages without a priority."""
COMMIT, ROLL_BACK = 8, 12
PRODUCER = "7F00000112345678ABCDEF01"
QUICK_MS = 10
"""The commit interval of consumers: the tests wait for commits."""


@pytest.fixture
async def driver(tmp_path: Path, database_url: str) -> AsyncIterator[PlatformDriver]:
    async with running_sql_platform(tmp_path, database_url) as running:
        yield running


async def fetch_rows(driver: PlatformDriver, sql: str) -> list[tuple[object, ...]]:
    """Return the rows of a query on the database."""
    return [tuple(row) for row in await sql_store_of(driver.platform.broker).database.fetch(sql)]


async def read_bodies(channel: Channel, topic: str = "t", queue_id: int = MIDDLE) -> list[bytes]:
    """Return the bodies of all messages in a queue."""
    answer = await channel.request(RequestCode.GET_MAX_OFFSET, QueueRequest(topic, queue_id), timeout_ms=10_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    end, bodies = headers.read(OffsetResponse, answer.ext).offset, []
    while len(bodies) < end:
        found = await pull(channel, topic, queue_id, len(bodies))
        assert found.messages, f"queue {queue_id} ends at {len(bodies)}, not at {end}"
        bodies += found.bodies
    return bodies


@asynccontextmanager
async def running_consumer(
    driver: PlatformDriver, handler: RecordingHandler, topic: str = "t", **options: object
) -> AsyncIterator[Consumer]:
    how = {name: options.pop(name) for name in ("orderly", "workers") if name in options}
    words = [str(options.pop(name)) for name in ("expression",) if name in options]
    kind = {"expression_type": options.pop("expression_type")} if "expression_type" in options else {}
    options = {"commit_interval_ms": QUICK_MS, **options}
    async with Consumer(driver.name_servers, group="readers", **options) as consumer:  # type: ignore[arg-type]
        await consumer.subscribe(topic, *words, **kind)  # type: ignore[arg-type]
        await consumer.start(handler, **how)  # type: ignore[arg-type]
        yield consumer


# -- examples ---------------------------------------------------------------------------------------------------------


# Each example runs on one database; the tests below run on all databases.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("example", "database"),
    list(zip(EXAMPLES, itertools.cycle(databases_under_test("mariadb", "postgresql", "sqlite")))),
    indirect=["database"],
    ids=lambda given: given.stem if isinstance(given, Path) else given,
)
def test_an_example_runs_on_a_database(example: Path, tmp_path: Path, database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"SPARROW_TEST_STORE": database_url},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    assert "Task exception was never retrieved" not in done.stderr, done.stderr


# -- sends and reads --------------------------------------------------------------------------------------------------


async def test_messages_sent_singly_in_batches_and_with_linger_all_arrive_once(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers) as producer:
        one = await producer.send(Message("t", "one"))
        some = await producer.send_batch([Message("t", f"batch-{n}") for n in range(10)])
    async with Producer(driver.name_servers, linger_ms=2) as gathering:
        many = await asyncio.gather(*(gathering.send(Message("t", f"many-{n}")) for n in range(300)))
    offsets = [result.queue_offset for result in (one, *some, *many)]
    assert {result.queue_id for result in (one, *some, *many)} == {MIDDLE}
    assert sorted(offsets) == list(range(311)), "every message must have its own offset, without gaps"
    assert [result.queue_offset for result in some] == list(range(1, 11))
    handler = RecordingHandler()
    async with running_consumer(driver, handler):
        await eventually(lambda: len(handler.messages) >= 311)
        await driver.wait_for_commit(311, "readers", "t", MIDDLE)
    assert sorted(handler.texts) == sorted(
        ["one", *(f"batch-{n}" for n in range(10)), *(f"many-{n}" for n in range(300))]
    )
    by_place = {message.queue_offset: message for message in handler.messages}
    assert by_place[one.queue_offset].unique_key == one.message_id


async def test_a_message_is_read_back_unchanged(driver: PlatformDriver) -> None:
    body = bytes(range(256)) * 3
    words = {"colour": "grün", "empty-ish": " ", "with": "colon: and\nline"}
    async with Producer(driver.name_servers, compress_above_bytes=None) as producer:
        await producer.send(Message("t", body, tags="a", keys=["k1", "k2"], properties=words))
        await producer.send(Message("t", b""))
        await producer.send(Message("t", b"x" * 3_000_000))
    found = (await pull(driver.channel, "t", MIDDLE, count=1)).messages[0]
    assert (found.body, found.tags, found.keys) == (body, "a", ["k1", "k2"])
    assert {name: found.properties[name] for name in words} == words
    assert (found.born_host.ip, found.born_host.port > 0) == (bytes([127, 0, 0, 1]), True)
    assert abs(found.store_ms - clock.now_ms()) < 60_000
    assert (await pull(driver.channel, "t", MIDDLE, 1, count=1)).bodies == [b""]
    assert (await pull(driver.channel, "t", MIDDLE, 2, count=1)).bodies == [b"x" * 3_000_000]


async def test_a_priority_determines_the_queue_and_the_table(driver: PlatformDriver) -> None:
    await driver.create_topic("jobs", 2)
    for part in range(2):
        for priority in Priority:
            body = f"{priority.label} of {part}".encode()
            result = await send(driver.channel, "jobs", body, part, encode_properties(PRIORITY=priority.label))
            assert (result.queue_id, result.queue_offset) == (read_queue_id(part, priority), 0)
            (message,) = (await pull(driver.channel, "jobs", result.queue_id)).messages
            assert (message.queue_id, message.body) == (result.queue_id, body)
            table = f"msg_{priority.label}_jobs" + (f"${part}" if part else "")
            assert [(row[0], bytes(row[1])) for row in await fetch_rows(driver, f'SELECT id, body FROM "{table}"')] == [
                (1, body)
            ]  # type: ignore[call-overload]
    answer = await try_send(driver.channel, "jobs", b"x", 0, encode_properties(PRIORITY="urgent"))
    assert (answer.code, "urgent" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    async with Consumer(driver.name_servers, group="workers") as consumer:
        await consumer.subscribe("jobs")
        taken = await consumer.poll(6, timeout_ms=5_000)
        while len(taken) < 6:
            taken += await consumer.poll(6, timeout_ms=5_000)
    assert sorted(body_texts(taken)) == sorted(
        f"{priority.label} of {part}" for part in range(2) for priority in Priority
    )


async def test_a_parked_pull_is_answered_when_a_message_arrives(driver: PlatformDriver) -> None:
    for number in range(20):
        waiting = asyncio.create_task(try_pull(driver.channel, "t", MIDDLE, number, long_poll_ms=10_000))
        await eventually(lambda: driver.platform.broker.broker.long_polls.count == 1)
        await send(driver.channel, "t", str(number).encode())
        answer = await waiting
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_parked_pull_times_out_as_not_found(driver: PlatformDriver) -> None:
    begun = time.monotonic()
    answer = await try_pull(driver.channel, "t", MIDDLE, 0, long_poll_ms=300)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert time.monotonic() - begun >= 0.3


async def test_a_message_is_found_by_key_by_unique_id_and_by_offset_id(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers) as producer, Admin(driver.name_servers) as admin:
        first = await producer.send(Message("t", "first", keys=["order-1", "person-7"]))
        await producer.send(Message("t", "second", keys="order-2", priority="high"))
        await producer.send(Message("t", "third", keys=["order-3", "person-7"], priority="low"))
        assert body_texts(await admin.find_by_key("t", "order-1")) == ["first"]
        assert body_texts(await admin.find_by_key("t", "person-7")) == ["first", "third"]
        assert body_texts(await admin.find_by_key("t", "order-2")) == ["second"]
        assert await admin.find_by_key("t", "Order-1") == [], "keys must be compared byte by byte"
        assert (await admin.find_by_id(first.message_id, topic="t")).body == b"first"
        assert (await admin.find_by_id(first.offset_id)).body == b"first"
        bounds = await admin.topic_bounds("t")
        assert sorted(bound.end for bound in bounds.values()) == [1, 1, 1]


async def test_tags_and_sql92_conditions_filter_messages(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers) as producer:
        for number in range(40):
            tag = "even" if number % 2 == 0 else "odd"
            await producer.send(Message("t", str(number), tags=tag, properties={"euros": str(number)}))
    handler = RecordingHandler()
    async with running_consumer(driver, handler, expression="even"):
        await driver.wait_for_commit(40, "readers", "t", MIDDLE)
    assert sorted(handler.texts, key=int) == [str(number) for number in range(0, 40, 2)]
    async with Consumer(driver.name_servers, group="by-price", commit_interval_ms=QUICK_MS) as consumer:
        handler = RecordingHandler()
        await consumer.subscribe("t", "euros BETWEEN 10 AND 12 OR TAGS = 'odd' AND euros > 36", expression_type="SQL92")
        await consumer.start(handler)
        await driver.wait_for_commit(40, "by-price", "t", MIDDLE)
    assert sorted(handler.texts, key=int) == ["10", "11", "12", "37", "39"]


async def test_ordered_consumers_read_each_queue_in_order_and_each_message_once(driver: PlatformDriver) -> None:
    await driver.create_topic("ordered", 2)
    for part in range(2):
        await driver.send("ordered", [f"{part}-{n}" for n in range(30)], part)
    handler = RecordingHandler()
    async with (
        running_consumer(driver, handler, "ordered", orderly=True),
        Consumer(driver.name_servers, group="readers") as second,
    ):
        await second.subscribe("ordered")
        other = RecordingHandler()
        await second.start(other, orderly=True)
        await eventually(lambda: len(handler.messages) + len(other.messages) >= 60, within_s=20)
    for part in range(2):
        mine = [text for text in handler.texts if text.startswith(f"{part}-")]
        theirs = [text for text in other.texts if text.startswith(f"{part}-")]
        expected = [f"{part}-{n}" for n in range(30)]
        assert sorted(mine + theirs) == sorted(expected)
        assert mine == [text for text in expected if text in mine]
        assert theirs == [text for text in expected if text in theirs]


# -- retries and delays -----------------------------------------------------------------------------------------------


async def test_a_failed_message_is_retried_or_dead_lettered(driver: PlatformDriver) -> None:
    tried: list[tuple[bytes, int]] = []

    async def handle(message: StoredMessage) -> None:
        tried.append((message.body, message.reconsume_times))
        if message.body == b"later" and not message.reconsume_times:
            raise RetryLater(1)
        if message.body == b"never":
            raise DeadLetter("no such customer")

    async with running_consumer(driver, handle), Admin(driver.name_servers) as admin:  # type: ignore[arg-type]
        begun = time.monotonic()
        async with Producer(driver.name_servers) as producer:
            await producer.send(Message("t", "later", keys="k"))
            await producer.send(Message("t", "never"))
        await eventually(lambda: (b"later", 1) in tried)
        assert 1 <= time.monotonic() - begun < 10, "levels of RocketMQ would start at 10 s"
        async with asyncio.timeout(30):
            while not (letters := await admin.dead_letters("readers")):
                await asyncio.sleep(0.05)
        assert body_texts(letters) == ["never"]
        assert (letters[0].properties["DLQ_REASON"], letters[0].properties["DLQ_ATTEMPT"]) == ("no such customer", "1")
        assert sorted(tried) == [(b"later", 0), (b"later", 1), (b"never", 0)]


async def test_retries_have_growing_delays_and_end_in_the_dead_letter_queue(tmp_path: Path, database_url: str) -> None:
    """With a manual clock: 10 s, then 30 s; after the last retry the message becomes a dead letter."""
    now = Clock(clock.now_ms())
    async with running_broker_client(tmp_path, now, store=database_url) as client:
        retry = Queue("%RETRY%g", 0)
        await client.subscribe("g", t="*")
        # The message has a producer id; retries must not be dropped as repeated sends.
        result = await client.send(Queue("t", 0), b"unlucky", __PID=PRODUCER, __SEQ="1")
        place = int(result.message_id[-16:], 16)
        for times, delay_ms in enumerate((10_000, 30_000)):
            await client.request_ok(
                RequestCode.CONSUMER_SEND_MSG_BACK, SendMessageBack(place, "g", 0, reconsume_times_max=2)
            )
            now.now_ms += delay_ms - 1_000
            await asyncio.sleep(0.2)
            assert await read_bodies(client.channel, retry.topic, 0) == [b"unlucky"] * times, (
                "the message was delivered early"
            )
            now.now_ms += 1_000
            found = await wait_for_message(client, retry, times)
            assert (found.reconsume_times, found.body, found.queue_offset) == (times + 1, b"unlucky", times)
            place = found.physical_offset
        await client.request_ok(
            RequestCode.CONSUMER_SEND_MSG_BACK, SendMessageBack(place, "g", 0, reconsume_times_max=2)
        )
        assert (await wait_for_message(client, Queue("%DLQ%g", 0), 0)).body == b"unlucky"


async def wait_for_message(client: BrokerClient, queue: Queue, offset: int) -> StoredMessage:
    """Wait for the message at this offset and return it."""
    async with asyncio.timeout(30):
        while not (found := (await pull(client.channel, queue.topic, queue.id, offset, long_poll_ms=1_000)).messages):
            pass
    return found[0]


async def test_delayed_messages_are_delivered_when_due_and_can_be_recalled(driver: PlatformDriver) -> None:
    handler = RecordingHandler()
    async with running_consumer(driver, handler), Producer(driver.name_servers) as producer:
        begun_ms = clock.now_ms()
        await producer.send(Message("t", "level 1"), delay_level=1)
        await producer.send(Message("t", "in 400 ms"), deliver_after_ms=400)
        await producer.send(Message("t", "urgent in 500 ms", priority="high"), deliver_after_ms=500)
        late = await producer.send(Message("t", "taken back"), deliver_at=begun_ms + 1_500)
        assert late.recall_handle is not None
        assert await producer.recall(late) == late.message_id
        with pytest.raises(SparrowError, match=r"too late|delivered"):
            await producer.recall(late)
        last = await producer.send(Message("t", "last"), deliver_at=begun_ms + 2_000)
        await eventually(lambda: "last" in handler.texts)
    assert sorted(handler.texts) == ["in 400 ms", "last", "level 1", "urgent in 500 ms"]
    due_ms = {"in 400 ms": 400, "urgent in 500 ms": 500, "level 1": 1_000, "last": 2_000}
    for message in handler.messages:
        late_ms = message.store_ms - begun_ms - due_ms[message.body.decode()]
        assert 0 <= late_ms < 5_000, f"{message.body!r} was delivered {late_ms} ms late"
        assert message.queue_id == (0 if b"urgent" in message.body else MIDDLE)
    assert last.recall_handle is not None
    assert await fetch_rows(driver, "SELECT id FROM hermes_delay") == []


async def test_a_delay_beyond_the_horizon_is_refused(driver: PlatformDriver) -> None:
    async with Producer(driver.name_servers) as producer:
        with pytest.raises(SparrowError, match="horizon"):
            await producer.send(Message("t", "x"), deliver_after_ms=400 * 24 * 3_600_000)


async def test_a_resend_delivers_messages_to_its_group_once_more(driver: PlatformDriver) -> None:
    await driver.send("t", [f"order-{n}" for n in range(6)])
    handler = RecordingHandler()
    async with running_consumer(driver, handler), Admin(driver.name_servers) as admin:
        await driver.wait_for_commit(6, "readers", "t", MIDDLE)
        resent = await admin.resend("t", group="readers", begin=2, end=4, queue_id=MIDDLE)
        assert resent.count == 3
        await eventually(lambda: len(handler.messages) == 9)
    again = handler.messages[6:]
    assert sorted(body_texts(again)) == ["order-2", "order-3", "order-4"]
    assert {message.properties["RESENT"] for message in again} == {"true"}


# -- transactions -----------------------------------------------------------------------------------------------------


async def test_a_half_message_is_visible_after_a_commit_and_never_after_a_rollback(driver: PlatformDriver) -> None:
    handler = RecordingHandler()
    async with running_consumer(driver, handler), Producer(driver.name_servers, group="shop") as producer:
        async with producer.transaction(Message("t", "paid", keys="order-1")) as begun:
            assert len(await fetch_rows(driver, "SELECT id FROM hermes_half")) == 1
            assert handler.messages == []
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("t", "not paid")):
                raise ZeroDivisionError
        await eventually(lambda: handler.texts == ["paid"])
        assert handler.messages[0].unique_key == begun.message_id
        rows = await fetch_rows(driver, "SELECT state, body, ended_at FROM hermes_half")
        assert [(state, bytes(body)) for state, body, _ in rows] == [("rolled_back", b"not paid")]
        assert abs(clock.now_ms() - int(str(rows[0][2]))) < 60_000
        await producer.send(Message("t", "after it"))
        await eventually(lambda: handler.texts == ["paid", "after it"])


IMPATIENT = {"transaction_timeout_ms": 0, "transaction_scan_ms": 10, "transaction_check_interval_ms": 100}


async def test_an_undecided_transaction_is_checked_back(tmp_path: Path, database_url: str) -> None:
    asked: list[bytes] = []

    async def check(message: StoredMessage) -> TransactionState:
        asked.append(message.body)
        if message.body == b"undone":
            return TransactionState.ROLLBACK
        return TransactionState.UNKNOWN if asked.count(message.body) == 1 else TransactionState.COMMIT

    async with running_sql_platform(tmp_path, database_url, **IMPATIENT) as driver:
        handler = RecordingHandler()
        async with (
            running_consumer(driver, handler),
            Producer(driver.name_servers, group="shop", transaction_checker=check) as producer,
        ):
            for message in (Message("t", "done", priority="low"), Message("t", "undone")):
                await producer.send_in_transaction(message, lambda _: TransactionState.UNKNOWN)
            await eventually(lambda: handler.texts == ["done"])
            assert handler.messages[0].queue_id == 2
            await eventually(lambda: b"undone" in asked and b"done" in asked)
            async with asyncio.timeout(30):
                while await fetch_rows(driver, "SELECT id FROM hermes_half WHERE state = 'half'"):
                    await asyncio.sleep(0.02)


async def test_another_producer_of_the_group_gets_the_check_back_if_the_first_is_gone(
    tmp_path: Path, database_url: str
) -> None:
    async with running_sql_platform(tmp_path, database_url, **IMPATIENT | {"transaction_timeout_ms": 500}) as driver:
        async with Producer(driver.name_servers, group="shop") as gone:
            await gone.begin_transaction(Message("t", "orphan"))

        async def check(_: StoredMessage) -> TransactionState:
            return TransactionState.COMMIT

        async with Producer(driver.name_servers, group="shop", transaction_checker=check) as heir:
            await heir.send(Message("t", "hello"))
            async with asyncio.timeout(30):
                while await read_bodies(driver.channel) != [b"hello", b"orphan"]:
                    await asyncio.sleep(0.02)


async def test_a_transaction_without_an_answer_is_given_up_and_never_visible(tmp_path: Path, database_url: str) -> None:
    async with running_sql_platform(tmp_path, database_url, **IMPATIENT, transaction_checks_max=2) as driver:
        async with Producer(driver.name_servers, group="shop") as producer:
            await producer.begin_transaction(Message("t", "forgotten"))
        async with asyncio.timeout(30):
            while [row[0] for row in await fetch_rows(driver, "SELECT state FROM hermes_half")] != ["given_up"]:
                await asyncio.sleep(0.02)
        assert await read_bodies(driver.channel) == []
        assert await read_bodies(driver.channel, CHECK_LIMIT_TOPIC, 0) == [b"forgotten"]
        async with Admin(driver.name_servers) as admin:
            (given_up,) = await admin.given_up_transactions()
        assert (given_up.topic, given_up.body) == ("t", b"forgotten")
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "2"


async def test_a_damaged_half_message_does_not_keep_the_others_from_being_given_up(
    tmp_path: Path, database_url: str
) -> None:
    async with running_sql_platform(tmp_path, database_url, **IMPATIENT, transaction_checks_max=0) as driver:
        await sql_store_of(driver.platform.broker).database.execute(
            "INSERT INTO hermes_half"
            " (producer_group, topic, queue_id, body, source_ip, properties, at, check_at, state)"
            " VALUES ('shop', 't', 1, :body, 0, :damaged, 1, 1, 'half')",
            body=b"damaged",
            damaged=b"\xff\xff\xff",
        )
        async with Producer(driver.name_servers, group="shop") as producer:
            await producer.begin_transaction(Message("t", "forgotten"))
        async with asyncio.timeout(30):
            while ("given_up",) not in await fetch_rows(driver, "SELECT state FROM hermes_half"):
                await asyncio.sleep(0.02)
        assert await read_bodies(driver.channel, CHECK_LIMIT_TOPIC, 0) == [b"forgotten"]


async def test_another_group_or_offset_cannot_end_a_transaction(driver: PlatformDriver) -> None:
    words = encode_properties(TRAN_MSG="true", PGROUP="p", UNIQ_KEY="A1")
    half = read_send_response(await try_send(driver.channel, "t", b"paid", 0, words, sys_flag=4, group="p"))
    place = int(half.message_id[-16:], 16)
    for group, offset in (("thief", place), ("p", place + 1)):
        word = EndTransaction(group, half.queue_offset, offset, COMMIT, "id")
        answer = await driver.channel.request(RequestCode.END_TRANSACTION, word, timeout_ms=5_000)
        assert answer.code != ResponseCode.SUCCESS
    assert await read_bodies(driver.channel) == []
    word = EndTransaction("p", half.queue_offset, place, COMMIT, "id")
    assert (
        await driver.channel.request(RequestCode.END_TRANSACTION, word, timeout_ms=5_000)
    ).code == ResponseCode.SUCCESS
    assert await read_bodies(driver.channel) == [b"paid"]


# -- dedup ------------------------------------------------------------------------------------------------------------


def ticket(number: int) -> str:
    return encode_properties(__PID=PRODUCER, __SEQ=str(number), UNIQ_KEY=f"{PRODUCER}{number:08X}")


async def test_a_repeated_send_is_stored_once_across_queues_and_restarts(tmp_path: Path, database_url: str) -> None:
    async with running_sql_platform(tmp_path, database_url) as driver:
        await driver.create_topic("wide", 2)
        first = await send(driver.channel, "wide", b"once", 0, ticket(1))
        again = await send(driver.channel, "wide", b"once", 1, ticket(1))
        assert (again.queue_id, again.queue_offset) == (first.queue_id, first.queue_offset)
        together = await asyncio.gather(*(send(driver.channel, "wide", b"2", n % 2, ticket(2)) for n in range(20)))
        assert len({(answer.queue_id, answer.queue_offset) for answer in together}) == 1
    async with running_sql_platform(tmp_path, database_url) as driver:
        again = await send(driver.channel, "wide", b"once", 0, ticket(1))
        assert (again.queue_id, again.queue_offset) == (first.queue_id, first.queue_offset)
        await send(driver.channel, "wide", b"3", 0, ticket(3))
        found = await read_bodies(driver.channel, "wide", 1) + await read_bodies(driver.channel, "wide", 4)
        assert sorted(found) == [b"2", b"3", b"once"]


@pytest.mark.parametrize("kind", ["delayed", "half"])
async def test_a_repeated_delayed_or_half_message_is_delivered_once(driver: PlatformDriver, kind: str) -> None:
    words = ticket(1) + (
        encode_properties(TIMER_DELAY_MS="200") if kind == "delayed" else encode_properties(TRAN_MSG="true", PGROUP="p")
    )
    flag = 0 if kind == "delayed" else 4
    answers = [
        read_send_response(await try_send(driver.channel, "t", b"once", 0, words, sys_flag=flag, group="p"))
        for _ in range(3)
    ]
    if kind == "half":
        for half in answers:
            word = EndTransaction("p", half.queue_offset, int(half.message_id[-16:], 16), COMMIT, "id")
            assert (await driver.channel.request(RequestCode.END_TRANSACTION, word, timeout_ms=5_000)).code == 0
    async with asyncio.timeout(30):
        while await fetch_rows(driver, "SELECT id FROM hermes_delay") or await fetch_rows(
            driver, "SELECT id FROM hermes_half"
        ):
            await asyncio.sleep(0.02)
    assert await read_bodies(driver.channel) == [b"once"]


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_a_restart_keeps_topics_groups_offsets_and_messages(tmp_path: Path, database_url: str) -> None:
    async with running_sql_platform(tmp_path, database_url) as driver, Admin(driver.name_servers) as admin:
        await driver.create_topic("wide", 3)
        await driver.send("t", ["a", "b", "c"])
        await driver.send("wide", ["x"], 2)
        handler = RecordingHandler()
        async with running_consumer(driver, handler):
            await driver.wait_for_commit(3, "readers", "t", MIDDLE)
        async with Producer(driver.name_servers, group="shop") as producer:
            await producer.send(Message("t", "delayed"), deliver_after_ms=2_000)
            half = await producer.begin_transaction(Message("t", "half"))
        topics, groups = sorted(await admin.topics()), sorted(await admin.groups())
        tables = await fetch_rows(driver, "SELECT topic, part, kind, priority, next_id FROM hermes_lane ORDER BY lane")
    async with running_sql_platform(tmp_path, database_url) as driver, Admin(driver.name_servers) as admin:
        assert sorted(await admin.topics()) == topics
        assert sorted(await admin.groups()) == groups
        kept = await fetch_rows(driver, "SELECT topic, part, kind, priority, next_id FROM hermes_lane ORDER BY lane")
        assert kept == tables
        assert await read_bodies(driver.channel, "wide", read_queue_id(2, Priority.MIDDLE)) == [b"x"]
        assert await driver.committed_offset("readers", "t", MIDDLE) == 3
        handler = RecordingHandler()
        async with running_consumer(driver, handler), Producer(driver.name_servers, group="shop") as producer:
            await producer.end_transaction(half, TransactionState.COMMIT)
            await eventually(lambda: sorted(handler.texts) == ["delayed", "half"])
        assert sorted(await read_bodies(driver.channel)) == [b"a", b"b", b"c", b"delayed", b"half"]


async def test_a_stop_answers_sends_in_progress_and_loses_no_confirmed_message(
    tmp_path: Path, database_url: str
) -> None:
    acknowledged: list[bytes] = []
    async with running_sql_platform(tmp_path, database_url) as driver, open_channel(driver.platform.address) as channel:

        async def produce(who: int) -> None:
            for number in range(1_000_000):
                body = f"{who}-{number}".encode()
                try:
                    answer = await try_send(channel, "t", body)
                except SparrowError:
                    return
                if answer.code != ResponseCode.SUCCESS:
                    return
                acknowledged.append(body)

        producing = [asyncio.create_task(produce(who)) for who in range(8)]
        await eventually(lambda: len(acknowledged) > 50)
        begun = time.monotonic()
        await driver.platform.broker.stop()
        assert time.monotonic() - begun < 15
        await asyncio.wait_for(asyncio.gather(*producing), 12)
        await driver.platform.broker.start()  # the platform stops it again
    async with running_sql_platform(tmp_path, database_url) as driver:
        found = await read_bodies(driver.channel)
    assert len(found) == len(set(found)), "a message is stored twice"
    assert set(acknowledged) <= set(found), "an acknowledged message is lost"


# -- refusals and names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Orders", "lower-case letters"),
        ("orderS", "lower-case letters"),
        ("_orders", "start with a letter or digit"),
        ("o" * 41, "it has 41 characters, 40 are allowed on a SQL store"),
    ],
)
async def test_a_topic_whose_name_is_no_table_name_is_refused_and_not_created(
    driver: PlatformDriver, name: str, sentence: str
) -> None:
    before = await fetch_rows(driver, "SELECT topic, state FROM hermes_topic ORDER BY topic")
    answer = await try_send(driver.channel, name, b"x")
    assert answer.code != ResponseCode.SUCCESS
    assert sentence in answer.remark
    async with Admin(driver.name_servers) as admin, Producer(driver.name_servers) as producer:
        with pytest.raises(SparrowError, match=sentence):
            await admin.create_topic(name, 1)
        with pytest.raises(SparrowError, match=sentence):
            await producer.send(Message(name, "x"))
        assert name not in await admin.topics()
    assert await fetch_rows(driver, "SELECT topic, state FROM hermes_topic ORDER BY topic") == before


async def test_unusual_legal_topic_names_work(driver: PlatformDriver) -> None:
    for name in ("a", "0", "o" * 40, "a-b_c", "select", "order|created"):
        await driver.create_topic(name, 2)
        result = await send(driver.channel, name, name.encode(), 1, encode_properties(KEYS=name))
        assert await read_bodies(driver.channel, name, result.queue_id) == [name.encode()]
        async with Admin(driver.name_servers) as admin:
            assert body_texts(await admin.find_by_key(name, name)) == [name]


async def test_group_names_are_case_sensitive(driver: PlatformDriver) -> None:
    """Group names are column values, not table names; each has its own committed offsets."""
    await driver.send("t", ["a", "b", "c"])
    for at, group in enumerate(("Readers", "readers", "READERS_2-x")):
        header = headers.CommitOffset(group, "t", MIDDLE, at)
        assert (await driver.channel.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=5_000)).code == 0
    await sql_store_of(driver.platform.broker).offsets.flush()
    for at, group in enumerate(("Readers", "readers", "READERS_2-x")):
        assert await driver.committed_offset(group, "t", MIDDLE) == at


async def test_a_too_large_message_is_refused(driver: PlatformDriver) -> None:
    answer = await try_send(driver.channel, "t", bytes(5 << 20))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
    assert "4194304" in answer.remark
    assert await read_bodies(driver.channel) == []
    async with Producer(driver.name_servers, message_bytes_max=8 << 20, compress_above_bytes=None) as producer:
        with pytest.raises(Refused):
            await producer.send(Message("t", bytes(5 << 20)))
        assert (await producer.send(Message("t", b"small"))).queue_offset == 0


async def test_a_topic_can_be_created_again_without_the_lane_flag(driver: PlatformDriver) -> None:
    """RocketMQ's tools do this; creating the same topic again changes nothing."""
    await driver.send("t", ["a"])
    async with Admin(driver.name_servers) as admin:
        await admin.create_topic("t", 1)
        await admin.create_topic("t", 2)
    assert await read_bodies(driver.channel) == [b"a"]
    await send(driver.channel, "t", b"b", 1)
    assert await read_bodies(driver.channel, "t", read_queue_id(1, Priority.MIDDLE)) == [b"b"]


# -- failures of the database -----------------------------------------------------------------------------------------


@pytest.fixture(params=databases_under_test("mariadb", "postgresql"))
def server(request: pytest.FixtureRequest):
    """Start a private database server, which the test kills."""
    with database_server(request.param) as running:
        yield running


async def kill_server(server: Server) -> None:
    await asyncio.to_thread(server.kill)


async def test_a_send_waits_for_a_database_that_returns_within_wait_ms(tmp_path: Path, server: Server) -> None:
    async with running_sql_platform(tmp_path, server.new_database(), wait_ms=20_000) as driver:
        await send(driver.channel, "t", b"before")
        await kill_server(server)
        sending = [
            asyncio.create_task(slow_send(driver.channel, b"during")),
            asyncio.create_task(slow_send(driver.channel, b"repeated", ticket(1))),
            asyncio.create_task(slow_send(driver.channel, b"later", encode_properties(TIMER_DELAY_MS="10"))),
        ]
        done, _ = await asyncio.wait(sending, timeout=0.5)
        assert not done
        await asyncio.to_thread(server.start)
        for answer in await asyncio.gather(*sending):
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        async with asyncio.timeout(30):
            while len(await read_bodies(driver.channel)) < 4:
                await asyncio.sleep(0.05)
        found = await read_bodies(driver.channel)
        assert sorted(found) == [b"before", b"during", b"later", b"repeated"]
        assert found[0] == b"before"


async def slow_send(channel: Channel, body: bytes, words: str = "") -> RemotingCommand:
    """Send with a long timeout."""
    return await channel.request(RequestCode.SEND_MESSAGE_V2, send_header("t", 0, words), body, timeout_ms=40_000)


async def test_sends_fail_while_the_database_is_down_and_work_again_after_it_returns(
    tmp_path: Path, server: Server
) -> None:
    async with running_sql_platform(tmp_path, server.new_database(), wait_ms=1_000) as driver:
        await send(driver.channel, "t", b"before")
        await kill_server(server)
        for words in ("", encode_properties(TIMER_DELAY_MS="10"), encode_properties(TRAN_MSG="true", PGROUP="p")):
            begun = time.monotonic()
            answer = await slow_send(driver.channel, b"lost", words)
            assert answer.code != ResponseCode.SUCCESS
            assert "the database" in answer.remark
            assert "cannot reach the database" in answer.remark
            assert time.monotonic() - begun < 8, "the time limit is wait_ms plus the time to connect"
        assert server.url.partition("@")[2] in answer.remark
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(30):
            while (await slow_send(driver.channel, b"after")).code != ResponseCode.SUCCESS:
                await asyncio.sleep(0.1)
        waiting = asyncio.create_task(try_pull(driver.channel, "t", MIDDLE, 2, long_poll_ms=5_000))
        await send(driver.channel, "t", b"woken")
        assert (await waiting).code == ResponseCode.SUCCESS
        assert await read_bodies(driver.channel) == [b"before", b"after", b"woken"]
        await eventually(lambda: driver.platform.broker.broker.broker_id == 0)


async def test_kills_of_the_database_neither_lose_nor_duplicate_confirmed_messages(
    tmp_path: Path, server: Server, scale: str
) -> None:
    acknowledged: dict[bytes, int] = {}
    async with running_sql_platform(tmp_path, server.new_database(), wait_ms=30_000) as driver:
        is_over = False

        async def produce(who: int) -> None:
            number = 0
            while not is_over:
                body = f"{who}-{number}".encode()
                words = (
                    encode_properties(__PID=f"{PRODUCER[:-1]}{who}", __SEQ=str(number), UNIQ_KEY=body.hex())
                    if who % 2
                    else ""
                )
                answer = await slow_send(driver.channel, body, words)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                acknowledged[body] = headers.read(headers.SendMessageResponse, answer.ext).queue_offset
                number += 1

        producing = [asyncio.create_task(produce(who)) for who in range(6)]
        handler = RecordingHandler()
        async with running_consumer(driver, handler):
            for _ in range(10 if scale == "full" else 2):
                count = len(acknowledged)
                await eventually(lambda count=count: len(acknowledged) > count + 100, within_s=30)
                await kill_server(server)
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.start)
            count = len(acknowledged)
            await eventually(lambda: len(acknowledged) > count + 100, within_s=30)
            is_over = True
            await asyncio.gather(*producing)
            await eventually(lambda: acknowledged.keys() <= {m.body for m in handler.messages}, within_s=20)
        found = await read_bodies(driver.channel)
    print(f"{len(acknowledged)} acknowledged, {len(found)} stored, {len(handler.messages)} delivered")
    assert len(found) == len(set(found)), "a message is stored twice"
    assert {body: found.index(body) for body in list(acknowledged)[:500]} == dict(list(acknowledged.items())[:500])
    assert set(found) == set(acknowledged), "every send was answered, so no other message may be stored"


async def test_a_broker_stops_while_its_database_is_down(tmp_path: Path, server: Server) -> None:
    async with running_sql_platform(tmp_path, server.new_database(), wait_ms=500) as driver:
        await driver.send("t", ["a"])
        header = headers.CommitOffset("g", "t", MIDDLE, 1)
        await driver.channel.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=5_000)
        await kill_server(server)
        sending = asyncio.create_task(slow_send(driver.channel, b"lost"))
        await asyncio.sleep(0)
        begun = time.monotonic()
        await driver.platform.broker.stop()
        assert time.monotonic() - begun < 15
        with pytest.raises((SparrowError, AssertionError)):
            answer = await sending
            assert answer.code == ResponseCode.SUCCESS
        await asyncio.to_thread(server.start)
        await driver.platform.broker.start()


async def test_a_broker_does_not_start_while_its_database_is_down(tmp_path: Path, server: Server) -> None:
    url = server.new_database()
    await kill_server(server)
    with pytest.raises(SparrowError, match="cannot reach the database"):
        async with running_sql_platform(tmp_path, url):
            pass

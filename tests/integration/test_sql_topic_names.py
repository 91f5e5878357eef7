"""Topics of a SQL store whose names are no table names: `sql.topic_names = "any"`, and the way back to `"lower"`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.test_sql_store_rows import EIGHT, TOPIC, tables, topic
from tests.integration.test_store_copy import run
from tests.support.drafts import decode_bodies, make_draft
from tests.support.platform_driver import PlatformDriver
from tests.support.recording_handlers import RecordingHandler, body_texts
from tests.support.sql_brokers import running_sql_platform, sql_store_of
from tests.support.wait import eventually

from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.client.consume.retry import DeadLetter, RetryLater
from sparrow.model.errors import IllegalName, Refused
from sparrow.model.message import Message, StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.topic import TOPIC_NAME_CHARS_MAX, Topic
from sparrow.settings import SqlSettings
from sparrow.store.log import LogStore
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.maintenance.check import check_store
from sparrow.store.sql.schema.table_names import table_suffix
from sparrow.store.sql.state import catalog

ANY = SqlSettings(topic_names="any", partition_rows=100)
LOWER = SqlSettings(partition_rows=100)
LONG = "TopicTest_of_the_department_for_customer_orders_and_returns"
LONGEST = "T" * TOPIC_NAME_CHARS_MAX
NAMES = ["TopicTest", "TOPICTEST", "topicTest", "_topic", "%odd|name", LONG, LONG.lower(), LONGEST]
MIDDLE = 1


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with await SqlStore.open(database_url, ANY) as opened:
        yield opened


async def test_topics_with_any_name_have_tables_by_digest_and_their_name_is_in_the_catalog(store: SqlStore) -> None:
    before = await tables(store)
    for name in NAMES:
        await store.catalog.put_topic(topic(name, parts=2))
    await store.catalog.put_topic(topic("topictest"))
    for name in (*NAMES, "topictest"):
        # More than one partition of each table.
        await store.append(Queue(name, MIDDLE), [make_draft(f"{name} {n}") for n in range(301)])
    for name in (*NAMES, "topictest"):
        found = await store.read(Queue(name, MIDDLE), 300)
        assert decode_bodies(found) == [f"{name} 300".encode()]  # type: ignore[arg-type]
    rows = dict(await store.database.fetch("SELECT name, topic FROM hermes_topic"))
    assert rows.keys() == {*NAMES, "topictest"}
    assert rows.pop("topictest") == "topictest"
    new = await tables(store) - before
    for suffix in rows.values():
        assert re.fullmatch(r"\$[0-9a-f]{16}", suffix)
        assert {f"msg_high_{suffix}", f"msg_low_{suffix}$1", f"offset_{suffix}", f"key_{suffix}$1"} <= new
    assert not [name for name in new if name != name.lower()]
    assert await check_store(store.database) == []
    await store.catalog.delete_topic(LONG)
    assert not [name for name in await tables(store) if rows[LONG] in name]
    assert LONG not in await store.catalog.list_topics()


@pytest.mark.one_database
async def test_lower_case_topics_have_the_same_tables_whatever_the_setting(store: SqlStore) -> None:
    before = await tables(store)
    await store.catalog.put_topic(topic(TOPIC))
    new = await tables(store) - before
    assert {name for name in new if "$" not in name} == {*EIGHT, f"key_{TOPIC}"}


@pytest.mark.one_database
async def test_names_that_rocketmq_does_not_allow_stay_refused(store: SqlStore) -> None:
    for name in ("täst", "a$1", "Orders.eu", "T" * (TOPIC_NAME_CHARS_MAX + 1), ""):
        with pytest.raises(IllegalName):
            await store.catalog.put_topic(topic(name))
    assert await store.database.fetch("SELECT * FROM hermes_topic") == []


@pytest.mark.one_database
async def test_existing_topics_stay_usable_when_the_setting_is_lower_again(store: SqlStore, database_url: str) -> None:
    await store.catalog.put_topic(topic("TopicTest"))
    await store.append(Queue("TopicTest", MIDDLE), [make_draft("before")])
    async with await SqlStore.open(database_url, LOWER) as later:
        with pytest.raises(IllegalName, match=r"set sql\.topic_names = 'any'"):
            await later.catalog.put_topic(topic("Another"))
        with pytest.raises(IllegalName, match=r"59 characters, 40 are allowed .* set sql\.topic_names = 'any'"):
            await later.catalog.put_topic(topic(LONG.lower()))
        await later.append(Queue("TopicTest", MIDDLE), [make_draft("after")])
        found = await later.read(Queue("TopicTest", MIDDLE), 0)
        assert decode_bodies(found) == [b"before", b"after"]  # type: ignore[arg-type]
        await later.catalog.put_topic(topic("TopicTest", parts=3))
        assert (await later.append(Queue("TopicTest", 2 * 3 + MIDDLE), [make_draft("third part")])).offset == 0
        await later.trim()
        assert await check_store(later.database) == []
        await later.catalog.delete_topic("TopicTest")
        assert await later.catalog.list_topics() == {}


@pytest.mark.one_database
async def test_a_topic_with_the_digest_of_another_is_refused(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a name can be computed; the two topics would share their messages."""
    await store.catalog.put_topic(topic("TopicTest"))
    suffix = table_suffix("TopicTest")
    monkeypatch.setattr(catalog, "table_suffix", lambda name: suffix)
    with pytest.raises(Refused, match="would have the tables of topic 'TopicTest'"):
        await store.catalog.put_topic(topic("Impostor"))
    assert list(await store.catalog.list_topics()) == ["TopicTest"]


@pytest.mark.one_database
async def test_the_command_line_copies_topics_with_any_name(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LogStore(tmp_path / "data" / "store") as log:
        await log.catalog.put_topic(Topic(name="TopicTest", read_queues=1, write_queues=1))
        await log.append(Queue("TopicTest", 0), [make_draft("hello")])
    code, text = await asyncio.to_thread(run, "copy", str(tmp_path / "data"), database_url)
    assert code == 1
    assert "set sql.topic_names = 'any'" in text
    monkeypatch.setenv("SPARROW_SQL__TOPIC_NAMES", "any")
    code, text = await asyncio.to_thread(run, "copy", str(tmp_path / "data"), database_url)
    assert (code, "1 messages of 1 topics copied" in text) == (0, True), text
    monkeypatch.delenv("SPARROW_SQL__TOPIC_NAMES")
    code, text = await asyncio.to_thread(run, "copy", database_url, str(tmp_path / "back"))
    assert (code, "1 messages of 1 topics copied" in text) == (0, True), text


# -- a broker ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def driver(tmp_path: Path, database_url: str) -> AsyncIterator[PlatformDriver]:
    async with running_sql_platform(tmp_path, database_url, topic_names="any") as running:
        yield running


async def names_in(database: StoreDatabase) -> set[str]:
    return {name for (name,) in await database.fetch("SELECT name FROM hermes_topic")}


@pytest.mark.one_database
async def test_sends_create_the_topic_and_failed_messages_are_retried_and_dead_lettered(driver: PlatformDriver) -> None:
    group = "Readers_of_TopicTest"
    tried: list[tuple[str, bytes, int]] = []

    async def handle(message: StoredMessage) -> None:
        tried.append((message.topic, message.body, message.reconsume_times))
        if message.body == b"later" and not message.reconsume_times:
            raise RetryLater(1)
        if message.body == b"never":
            raise DeadLetter("no such customer")

    async with Producer(driver.name_servers) as producer, Admin(driver.name_servers) as admin:
        for name in ("TopicTest", LONG):
            for body in ("later", "never"):
                await producer.send(Message(name, body, keys=f"Key_{body}"))
        async with Consumer(driver.name_servers, group=group) as consumer:
            for name in ("TopicTest", LONG):
                await consumer.subscribe(name)
            await consumer.start(handle)
            for name in ("TopicTest", LONG):
                await eventually(lambda name=name: (name, b"later", 1) in tried, within_s=10)
            async with asyncio.timeout(30):
                while len(letters := await admin.dead_letters(group)) < 2:
                    await asyncio.sleep(0.05)
        assert sorted((letter.topic, letter.body) for letter in letters) == [("TopicTest", b"never"), (LONG, b"never")]
        assert body_texts(await admin.find_by_key("TopicTest", "Key_never")) == ["never"]
        topics = await admin.topics()
        assert {"TopicTest", LONG, f"%RETRY%{group}", f"%DLQ%{group}"} <= set(topics)
        database = sql_store_of(driver.platform.broker).database
        assert {"TopicTest", LONG, f"%RETRY%{group}", f"%DLQ%{group}"} <= await names_in(database)
        await admin.delete_topic("TopicTest")
        assert "TopicTest" not in await names_in(database)


@pytest.mark.one_database
async def test_delayed_messages_of_a_topic_with_any_name_are_delivered(driver: PlatformDriver) -> None:
    handler = RecordingHandler()
    async with (
        Producer(driver.name_servers) as producer,
        Consumer(driver.name_servers, group="Readers") as consumer,
    ):
        await driver.create_topic(LONGEST)
        await producer.send(Message(LONGEST, "late"), deliver_after_ms=1_000)
        begun = time.monotonic()
        await consumer.subscribe(LONGEST)
        await consumer.start(handler)
        await eventually(lambda: handler.texts == ["late"], within_s=10)
        assert time.monotonic() - begun > 0.5


@pytest.mark.one_database
async def test_a_broker_whose_setting_is_lower_again_serves_existing_topics(tmp_path: Path, database_url: str) -> None:
    async with running_sql_platform(tmp_path / "any", database_url, topic_names="any") as driver:
        async with Producer(driver.name_servers) as producer:
            await producer.send(Message("TopicTest", "before"))
    async with running_sql_platform(tmp_path / "lower", database_url) as driver:
        handler = RecordingHandler()
        async with (
            Producer(driver.name_servers) as producer,
            Consumer(driver.name_servers, group="Readers") as consumer,
        ):
            await producer.send(Message("TopicTest", "after"))
            with pytest.raises(Refused, match=r"set sql\.topic_names = 'any'"):
                await producer.send(Message("Another", "never"))
            await consumer.subscribe("TopicTest")
            await consumer.start(handler)
            await eventually(lambda: sorted(handler.texts) == ["after", "before"], within_s=10)

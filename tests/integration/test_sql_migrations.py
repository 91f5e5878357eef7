"""Migrations of the SQL store: each from the previous version, starting with the tables of version 1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.support.drafts import make_draft

from sparrow.model.errors import StorageError
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.sql.drivers.database import StoreDatabase, open_database
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.maintenance.check import check_store
from sparrow.store.sql.schema.ddl import SCHEMA_VERSION, shared_table_names
from sparrow.store.sql.schema.migrations import runner
from sparrow.store.sql.schema.migrations.runner import MIGRATIONS, prepare_schema

FIXTURES = Path(__file__).parents[1] / "fixtures" / "sql_schema"
COLUMNS = {
    "mysql": "SELECT column_name, column_type, is_nullable, column_default, collation_name, extra"
    " FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = :name",
    "postgresql": "SELECT column_name, data_type, is_nullable, column_default, collation_name, is_identity"
    " FROM information_schema.columns WHERE table_schema = 'public' AND table_name = :name",
    "sqlite": 'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(:name)',
}
INDEXES = {
    "mysql": "SELECT index_name, seq_in_index, column_name, non_unique FROM information_schema.statistics"
    " WHERE table_schema = DATABASE() AND table_name = :name",
    "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename = :name",
    "sqlite": 'SELECT i.name, i."unique", c.seqno, c.name FROM pragma_index_list(:name) i, pragma_index_info(i.name) c',
}


@pytest.fixture
async def empty(database_url: str) -> AsyncIterator[StoreDatabase]:
    database = await open_database(database_url)
    yield database
    await database.close()


async def describe(database: StoreDatabase) -> dict[str, object]:
    """Return the columns and indexes of the shared tables, as the database describes them."""
    found: dict[str, object] = {}
    for name in shared_table_names():
        columns = sorted(map(str, map(tuple, await database.fetch(COLUMNS[database.dialect], name=name))))
        indexes = sorted(map(str, map(tuple, await database.fetch(INDEXES[database.dialect], name=name))))
        found[name] = columns, indexes
        if database.dialect == "sqlite":
            ((sql,),) = await database.fetch("SELECT sql FROM sqlite_master WHERE name = :name", name=name)
            found[name] = columns, indexes, "AUTOINCREMENT" in sql, "STRICT" in sql, "WITHOUT ROWID" in sql
    return found


async def create_version_1(database: StoreDatabase) -> None:
    text = (FIXTURES / f"version_1.{database.dialect}.sql").read_text(encoding="utf-8")
    for statement in text.split(";\n"):
        if statement.strip():
            await database.execute(statement)


async def drop_all(database: StoreDatabase) -> None:
    for name in shared_table_names():
        await database.execute(f"DROP TABLE IF EXISTS {name}")


async def versions(database: StoreDatabase) -> list[int]:
    return [version for (version,) in await database.fetch("SELECT version FROM hermes_schema ORDER BY version")]


async def test_a_new_database_has_the_newest_version_and_reopening_changes_nothing(empty):
    await prepare_schema(empty, 1)
    fresh = await describe(empty)
    assert await versions(empty) == [SCHEMA_VERSION]
    await prepare_schema(empty, 2)
    assert await describe(empty) == fresh
    assert await versions(empty) == [SCHEMA_VERSION]


async def test_migrating_version_1_yields_the_tables_of_a_new_database(empty):
    await prepare_schema(empty, 1)
    fresh = await describe(empty)
    await drop_all(empty)
    await create_version_1(empty)
    assert await describe_existing(empty) != fresh
    await prepare_schema(empty, 2)
    assert await describe(empty) == fresh
    assert await versions(empty) == list(range(1, SCHEMA_VERSION + 1))


async def describe_existing(database: StoreDatabase) -> dict[str, object] | None:
    """Describe the tables; return None if a table is missing."""
    try:
        return await describe(database)
    except ValueError:  # SQLite: the table has no row in sqlite_master
        return None


@pytest.mark.parametrize("version", [migration.version for migration in MIGRATIONS])
async def test_each_migration_starts_from_the_previous_version_and_is_repeatable(empty, monkeypatch, version):
    await create_version_1(empty)
    earlier = tuple(migration for migration in MIGRATIONS if migration.version < version)
    monkeypatch.setattr(runner, "MIGRATIONS", earlier)
    await prepare_schema(empty, 1)
    assert await versions(empty) == list(range(1, version))
    (this,) = (migration for migration in MIGRATIONS if migration.version == version)
    async with empty.transaction() as session:  # as if the process had been killed before it inserted the version row
        await this.apply(session, empty.dialect)
    monkeypatch.setattr(runner, "MIGRATIONS", (*earlier, this))
    await prepare_schema(empty, 2)
    assert await versions(empty) == list(range(1, version + 1))


async def test_migration_keeps_delayed_and_half_messages_and_reuses_no_id(empty):
    await create_version_1(empty)
    for _ in range(3):
        await empty.execute(
            "INSERT INTO hermes_delay (due, topic, queue_id, body, source_ip, properties, at)"
            " VALUES (1, 'orders', 0, :body, 0, :properties, 1)",
            body=b"delayed",
            properties=b"",
        )
        await empty.execute(
            "INSERT INTO hermes_half"
            " (producer_group, topic, queue_id, body, source_ip, properties, at, check_at, state)"
            " VALUES ('g', 'orders', 0, :body, 0, :properties, 1, 1, 'half')",
            body=b"half",
            properties=b"",
        )
    await empty.execute("DELETE FROM hermes_delay WHERE id = 3")
    await empty.execute("DELETE FROM hermes_half WHERE id = 3")
    select = ("SELECT id, due, topic, body FROM hermes_delay ORDER BY id", "SELECT id, body, state FROM hermes_half")
    before = [await empty.fetch(each) for each in select]
    await prepare_schema(empty, 2)
    after = [await empty.fetch(each) for each in select]
    assert after == before
    await empty.execute(
        "INSERT INTO hermes_delay (due, topic, queue_id, body, source_ip, properties, at)"
        " VALUES (1, 'orders', 0, :body, 0, :properties, 1)",
        body=b"new",
        properties=b"",
    )
    ((new_id,),) = await empty.fetch("SELECT MAX(id) FROM hermes_delay")
    assert new_id > 3, "id 3 belonged to a deleted message"


async def test_migration_keeps_the_secrets_of_tokens_and_gives_up_old_transactions_once_more(empty, database_url):
    await create_version_1(empty)
    secret = bytes(range(32))
    await empty.execute(
        "INSERT INTO meta_token (token, type, secret_hash, created_at) VALUES ('shop', 'p', :secret, 1)", secret=secret
    )
    for state in ("half", "given_up"):
        await empty.execute(
            "INSERT INTO hermes_half"
            " (producer_group, topic, queue_id, body, source_ip, properties, at, check_at, state, checks)"
            " VALUES ('g', 'orders', 0, :body, 0, :properties, 1, 1, :state, 15)",
            body=b"half",
            properties=b"",
            state=state,
        )
    await prepare_schema(empty, 2)
    rows = await empty.fetch("SELECT state, checks, ended_at, token FROM hermes_half")
    assert [tuple(row) for row in rows] == [("half", 15, None, None)] * 2
    async with await SqlStore.open(database_url) as store:
        assert (await store.tokens.all())["shop"].secret == secret


async def test_migration_adds_the_names_of_topics(empty):
    await create_version_1(empty)
    topics = {"orders": "orders", "$6f1ed002ab559585": "%RETRY%Readers"}
    for suffix, name in topics.items():
        await empty.execute(
            "INSERT INTO hermes_topic (topic, parts, state, options, created_at)"
            " VALUES (:topic, 1, 'active', :options, 1)",
            topic=suffix,
            options=msgspec.json.encode(Topic(name=name)).decode(),
        )
    await prepare_schema(empty, 2)
    assert dict(await empty.fetch("SELECT topic, name FROM hermes_topic")) == topics


async def test_migration_keeps_the_permissions_of_tokens_and_limits_none_to_addresses(empty, database_url, monkeypatch):
    await create_version_1(empty)
    monkeypatch.setattr(runner, "MIGRATIONS", tuple(each for each in MIGRATIONS if each.version < 7))
    await prepare_schema(empty, 1)
    await empty.execute(
        "INSERT INTO meta_token (token, type, secret, created_at, permissions)"
        " VALUES ('shop', 'p', :secret, 1, :permissions)",
        secret=bytes(range(32)),
        permissions='{"kind":"pc","topics":["orders-*"],"groups":["shop"]}',
    )
    monkeypatch.setattr(runner, "MIGRATIONS", MIGRATIONS)
    async with await SqlStore.open(database_url) as store:
        token = (await store.tokens.all())["shop"]
        assert token.permissions == ("pc", ("orders-*",), ("shop",), ())
        await store.tokens.put(msgspec.structs.replace(token, addresses=("10.0.0.0/8",)))
        assert (await store.tokens.all())["shop"].permissions == ("pc", ("orders-*",), ("shop",), ("10.0.0.0/8",))
    assert await versions(empty) == list(range(1, SCHEMA_VERSION + 1))


async def test_migration_keeps_what_tokens_may_do_and_disables_none(empty, database_url, monkeypatch):
    await create_version_1(empty)
    monkeypatch.setattr(runner, "MIGRATIONS", tuple(each for each in MIGRATIONS if each.version < 8))
    await prepare_schema(empty, 1)
    await empty.execute(
        "INSERT INTO meta_token (token, type, secret, created_at, permissions, addresses)"
        " VALUES ('shop', 'p', :secret, 1, :permissions, :addresses)",
        secret=bytes(range(32)),
        permissions='{"kind":"pc","topics":["orders-*"],"groups":["shop"]}',
        addresses='["10.0.0.0/8"]',
    )
    monkeypatch.setattr(runner, "MIGRATIONS", MIGRATIONS)
    async with await SqlStore.open(database_url) as store:
        token = (await store.tokens.all())["shop"]
        assert token.permissions == ("pc", ("orders-*",), ("shop",), ("10.0.0.0/8",))
        assert (token.acl, token.disabled_ms) == (None, None)
        await store.tokens.put(msgspec.structs.replace(token, acl=(), disabled_ms=5))
        token = (await store.tokens.all())["shop"]
        assert (token.acl, token.disabled_ms) == ((), 5)
    assert await versions(empty) == list(range(1, SCHEMA_VERSION + 1))


async def test_a_store_of_version_1_is_migrated_when_opened(empty, database_url):
    await create_version_1(empty)
    assert [finding.what for finding in await check_store(empty)] == [
        f"has version 1: the next broker that starts migrates it to {SCHEMA_VERSION}; nothing else was checked"
    ]
    async with await SqlStore.open(database_url) as store:
        await store.catalog.put_topic(Topic(name="orders", write_queues=1))
        assert (await store.append(Queue("orders", 1), [make_draft("works")])).offset == 0
        assert await store.append_atomically("scope", 1, []) is True
    assert await check_store(empty) == []


async def test_concurrent_brokers_migrate_an_old_store_once(empty, database_url):
    await create_version_1(empty)
    stores = await asyncio.gather(*(SqlStore.open(database_url) for _ in range(4)))
    for store in stores:
        await store.close()
    assert await versions(empty) == list(range(1, SCHEMA_VERSION + 1))


async def test_a_newer_schema_is_refused_and_not_changed(empty, database_url):
    await prepare_schema(empty, 1)
    before = await describe(empty)
    await empty.execute(f"INSERT INTO hermes_schema (version, at) VALUES ({SCHEMA_VERSION + 1}, 1)")
    with pytest.raises(StorageError) as refused:
        await SqlStore.open(database_url)
    assert (
        f"has schema version {SCHEMA_VERSION + 1}, but this Sparrow supports versions up to {SCHEMA_VERSION}."
        in str(refused.value)
    )
    assert await describe(empty) == before
    assert await versions(empty) == [SCHEMA_VERSION, SCHEMA_VERSION + 1]

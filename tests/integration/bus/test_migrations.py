"""Migrations of the bus tables: from each version to the next, and the refusal of a newer one."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, inspect
from tests.support.bus_tables import read_row, read_rows, run_statement

from sparrow.bus.errors import SchemaTooNew, SchemaTooOld, TablesMissing
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.migrations import runner
from sparrow.bus.sql.migrations.runner import MIGRATIONS, Migration, latest_version

from .conftest import MakeBus


async def versions(make_bus: MakeBus) -> list[int]:
    return [each["Version"] for each in await read_rows(make_bus(), "schema_version")]


def test_versions_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


async def test_new_database_gets_the_latest_version_once(make_bus: MakeBus) -> None:
    await make_bus().prepare()
    await make_bus().prepare()
    assert await versions(make_bus) == [migration.version for migration in MIGRATIONS]


async def test_tables_of_version_0_1_keep_their_rows_and_get_a_version(make_bus: MakeBus) -> None:
    bus = make_bus()
    await bus.prepare()
    number = await bus.publish("order.created", {"n": 1})
    await run_statement(bus, "DROP TABLE {schema_version}")  # version 0.1 had no such table
    await make_bus(create_tables=False).prepare()  # usable without a migration
    await make_bus().prepare()
    assert await versions(make_bus) == [1]
    assert (await read_row(bus, "published", number))["Name"] == "order.created"


def add_note(db: Connection, sql: SqlDialect, space: str) -> None:
    sql.change(db, f'ALTER TABLE {sql.names.published} ADD COLUMN "Note" VARCHAR(20)')


async def test_pending_migration_is_applied_once_and_required_where_create_tables_is_off(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = make_bus()
    await bus.prepare()
    number = await bus.publish("order.created", {"n": 1})
    later = Migration(latest_version() + 1, "add a note", add_note)
    monkeypatch.setattr(runner, "MIGRATIONS", [*MIGRATIONS, later])
    with pytest.raises(SchemaTooOld, match=f"have schema version {later.version - 1}, and version {later.version} is"):
        await make_bus(create_tables=False).prepare()
    await make_bus().prepare()
    await make_bus().prepare()
    assert await versions(make_bus) == [*range(1, later.version), later.version]
    assert (await read_row(bus, "published", number))["Note"] is None
    await make_bus(create_tables=False).prepare()


@pytest.mark.parametrize("create_tables", [True, False])
async def test_newer_schema_is_refused(make_bus: MakeBus, create_tables: bool) -> None:
    bus = make_bus()
    await bus.prepare()
    now = bus.core.context.sql.now
    statement = f'INSERT INTO {{schema_version}} ("Version", "Description", "AppliedAt") VALUES (?, ?, {now})'
    await run_statement(bus, statement, 99, "from the future")
    with pytest.raises(SchemaTooNew, match="schema version 99, and this version of Sparrow knows versions up to"):
        await make_bus(create_tables=create_tables).prepare()


async def test_strict_tables_have_no_version_and_are_created_when_missing(make_bus: MakeBus) -> None:
    with pytest.raises(TablesMissing):
        await make_bus(strict_tables=True, create_tables=False).prepare()
    strict = make_bus(strict_tables=True)
    await strict.prepare()
    await make_bus(strict_tables=True, create_tables=False).prepare()

    def has_version(db: Connection) -> bool:
        sql = strict.core.context.sql_of(db)
        if sql.kind == "postgresql":
            return bool(inspect(db).has_table("schema_version", schema="cap"))
        return bool(inspect(db).has_table("cap.schema_version"))

    assert not await strict.database.run(has_version)

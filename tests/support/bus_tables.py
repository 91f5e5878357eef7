"""Reading and changing the tables of a bus directly in the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, inspect

from sparrow.bus.aio import EventBus

TIMES = ("Added", "ExpiresAt", "NextAt", "SeenAt", "LastLockTime")
EFFECTS_TABLE = "effects"
"""A table of the application, to which handlers write."""


async def read_rows(bus: EventBus, table: str) -> list[dict[str, Any]]:
    """Return all rows of `published`, `received`, `queue`, `inbox` or `lock`, by first column; times as datetimes."""
    return await bus.database.run(lambda db: _read_rows(db, bus, table))


def _read_rows(db: Connection, bus: EventBus, table: str) -> list[dict[str, Any]]:
    sql = bus.core.context.sql_of(db)
    result = sql.run(db, f"SELECT * FROM {getattr(sql.names, table)} ORDER BY 1")
    names = list(result.keys())
    found = [dict(zip(names, row, strict=True)) for row in result]
    for row in found:
        for name in TIMES:
            if row.get(name) is not None:
                row[name] = sql.from_time(row[name])
    return found


async def read_row(bus: EventBus, table: str, number: int | None = None) -> dict[str, Any]:
    """Return the only row, or the row with this Id."""
    found = [each for each in await read_rows(bus, table) if number is None or each["Id"] == number]
    assert len(found) == 1, f"{len(found)} rows in {table}"
    return found[0]


async def count_rows(bus: EventBus) -> tuple[int, int, int]:
    """Return the numbers of rows of Published, Received and Queue."""
    published, received, queue = [await read_rows(bus, table) for table in ("published", "received", "queue")]
    return len(published), len(received), len(queue)


async def run_statement(bus: EventBus, statement: str, *values: Any) -> int:
    """Run a statement; `{published}` and the like stand for the tables."""
    names = vars(bus.core.context.sql.names)
    return await bus.database.run(lambda db: bus.core.context.sql.change(db, statement.format(**names), *values))


async def set_time(bus: EventBus, table: str, column: str, moment: datetime | None, number: int) -> None:
    value = None if moment is None else bus.core.context.sql.to_time(moment)
    await run_statement(bus, f'UPDATE {{{table}}} SET "{column}" = ? WHERE "Id" = ?', value, number)


async def create_effects_table(bus: EventBus) -> None:
    await bus.database.run(
        lambda db: db.exec_driver_sql(f"CREATE TABLE {EFFECTS_TABLE} (what VARCHAR(100) NOT NULL)").close()
    )


async def read_effects(bus: EventBus) -> list[str]:
    """Return the rows that handlers have written and committed."""

    def read_them(db: Connection) -> list[str]:
        return sorted(found[0] for found in db.exec_driver_sql(f"SELECT what FROM {EFFECTS_TABLE}"))

    return await bus.database.run(read_them)


async def list_tables(bus: EventBus) -> set[str]:
    """Return all tables in the database, those of a schema as schema.table."""

    def read_them(db: Connection) -> set[str]:
        looking = inspect(db)
        if db.dialect.name != "postgresql":
            return set(looking.get_table_names())
        schemas = [name for name in looking.get_schema_names() if name != "information_schema"]
        return {f"{schema}.{name}" for schema in schemas for name in looking.get_table_names(schema=schema)}

    return await bus.database.run(read_them)


async def describe_tables(bus: EventBus) -> dict[str, Any]:
    """Return columns, keys and indexes of every table from the database's catalog, without schema names."""
    meta = bus.metadata()

    def read_it(db: Connection) -> dict[str, Any]:
        looking = inspect(db)
        found: dict[str, Any] = {}
        for table in meta.sorted_tables:
            at: dict[str, Any] = {"schema": table.schema}
            space = bus.settings.space(bus.database.kind)
            found[table.name.rpartition(".")[2]] = {
                "columns": [
                    (column["name"], str(column["type"]), column["nullable"], str(column["default"]))
                    for column in looking.get_columns(table.name, **at)
                ],
                "key": looking.get_pk_constraint(table.name, **at)["constrained_columns"],
                "indexes": sorted(
                    (str(index["name"]).replace(space, ""), index["column_names"], bool(index["unique"]))
                    for index in looking.get_indexes(table.name, **at)
                ),
                "unique": sorted(unique["column_names"] for unique in looking.get_unique_constraints(table.name, **at)),
            }
        return found

    return await bus.database.run(read_it)

"""The tables of the bus in a Django project: what its migrations create, record and drop."""

from __future__ import annotations

from typing import Any

from sparrow.bus.integrations.django import configuration
from sparrow.bus.sql.dialect import BusTableNames, SqlDialect
from sparrow.bus.sql.migrations.runner import MIGRATIONS
from sparrow.bus.sql.tables import ddl, metadata


def create_missing_tables(apps: Any, schema_editor: Any) -> None:
    """Execute the statements that `sparrow bus ddl` prints, on the connection of the migration."""
    if not _is_database_of_the_bus(schema_editor):
        return
    strict = configuration.bus().settings.strict_tables
    for statement in ddl(configuration.kind(), configuration.space(), strict=strict).split(";\n"):
        if statement.strip():
            schema_editor.execute(statement, params=None)


def record_version(schema_editor: Any, version: int) -> None:
    """Record that the tables have this schema version, if the database does not know it yet."""
    if not _is_database_of_the_bus(schema_editor) or configuration.bus().settings.strict_tables:
        return
    names = BusTableNames.of(configuration.kind(), configuration.space())
    sql = SqlDialect(configuration.kind(), "format", names)
    description = next(migration.description for migration in MIGRATIONS if migration.version == version)
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(sql.text(f'SELECT COUNT(*) FROM {names.schema_version} WHERE "Version" = ?'), [version])
        if cursor.fetchone()[0] == 0:
            insert = (
                f'INSERT INTO {names.schema_version} ("Version", "Description", "AppliedAt") VALUES (?, ?, {sql.now})'
            )
            cursor.execute(sql.text(insert), [version, description])


def drop_tables(apps: Any, schema_editor: Any) -> None:
    """Drop all tables of the bus."""
    if not _is_database_of_the_bus(schema_editor):
        return
    strict = configuration.bus().settings.strict_tables
    for table in metadata(configuration.kind(), configuration.space(), strict=strict).sorted_tables:
        quoted = ".".join(schema_editor.quote_name(part) for part in (table.schema, table.name) if part)
        schema_editor.execute(f"DROP TABLE IF EXISTS {quoted}", params=None)


def _is_database_of_the_bus(schema_editor: Any) -> bool:
    return bool(schema_editor.connection.alias == configuration.using())

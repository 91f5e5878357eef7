"""The tables, created by the statements that `sparrow bus ddl` prints, in the database of the bus."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from sparrow.bus.integrations.django import configuration
from sparrow.bus.sql.tables import ddl, metadata


def create(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.alias == configuration.using():
        strict = configuration.bus().settings.strict_tables
        for statement in ddl(configuration.kind(), configuration.space(), strict=strict).split(";\n"):
            if statement.strip():
                schema_editor.execute(statement, params=None)


def drop(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.alias == configuration.using():
        strict = configuration.bus().settings.strict_tables
        for table in metadata(configuration.kind(), configuration.space(), strict=strict).sorted_tables:
            quoted = ".".join(schema_editor.quote_name(part) for part in (table.schema, table.name) if part)
            schema_editor.execute(f"DROP TABLE IF EXISTS {quoted}", params=None)


def names(name: str) -> dict[str, str]:
    return {"verbose_name": name, "verbose_name_plural": name}


class Migration(migrations.Migration):  # type: ignore[misc]
    initial = True
    operations = [  # noqa: RUF012
        # Not atomic, because MySQL commits at every CREATE. Elsewhere the whole migration is one transaction.
        migrations.RunPython(create, drop, atomic=False),
        # Unmanaged models: Django creates nothing for them.
        migrations.CreateModel("Published", fields=[], options={"managed": False, **names("published")}),
        migrations.CreateModel("Received", fields=[], options={"managed": False, **names("received")}),
    ]

"""The table `schema_version`, which version 0.1 did not create, and in it the version of the tables."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from sparrow.bus.integrations.django.tables import create_missing_tables, record_version


def create(apps: Any, schema_editor: Any) -> None:
    create_missing_tables(apps, schema_editor)
    record_version(schema_editor, 1)


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies = [("sparrow_bus", "0001_initial")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        # Not atomic, because MySQL commits at every CREATE. The reverse keeps the table, which 0001 drops.
        migrations.RunPython(create, migrations.RunPython.noop, atomic=False),
    ]

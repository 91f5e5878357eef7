"""The tables, created by the statements that `sparrow bus ddl` prints, in the database of the bus."""

from __future__ import annotations

from django.db import migrations

from sparrow.bus.integrations.django.tables import create_missing_tables, drop_tables


def names(name: str) -> dict[str, str]:
    return {"verbose_name": name, "verbose_name_plural": name}


class Migration(migrations.Migration):  # type: ignore[misc]
    initial = True
    operations = [  # noqa: RUF012
        # Not atomic, because MySQL commits at every CREATE. Elsewhere the whole migration is one transaction.
        migrations.RunPython(create_missing_tables, drop_tables, atomic=False),
        # Unmanaged models: Django creates nothing for them.
        migrations.CreateModel("Published", fields=[], options={"managed": False, **names("published")}),
        migrations.CreateModel("Received", fields=[], options={"managed": False, **names("received")}),
    ]

"""Unmanaged Django models of the tables Published and Received, for the admin pages."""

from __future__ import annotations

from django.db import models

from sparrow.bus.integrations.django import configuration
from sparrow.bus.sql.tables import GROUP_CHARS, KEY_CHARS, MESSAGE_ID_CHARS, NAME_CHARS


class _Row(models.Model):  # type: ignore[misc]
    id = models.BigIntegerField(primary_key=True, db_column="Id")
    version = models.CharField(max_length=20, db_column="Version")
    name = models.CharField(max_length=NAME_CHARS, db_column="Name")
    content = models.TextField(null=True, db_column="Content")
    retries = models.IntegerField(db_column="Retries")
    added = models.DateTimeField(db_column="Added")
    expires_at = models.DateTimeField(null=True, db_column="ExpiresAt")
    status = models.CharField(max_length=50, db_column="StatusName")
    key = models.CharField(max_length=KEY_CHARS, null=True, db_column="OrderKey")
    rounds = models.IntegerField(db_column="Rounds")
    last_error = models.TextField(null=True, db_column="LastError")
    is_parked = models.BooleanField(db_column="Parked")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.name} {self.id}"


class Published(_Row):
    class Meta:
        managed = False
        verbose_name = verbose_name_plural = "published"


class Received(_Row):
    group = models.CharField(max_length=GROUP_CHARS, null=True, db_column="Group")
    message_id = models.CharField(max_length=MESSAGE_ID_CHARS, db_column="MsgId")

    class Meta:
        managed = False
        verbose_name = verbose_name_plural = "received"


def name_tables() -> None:
    """Set the table names, once all applications are loaded and the schema or prefix is known."""
    space, is_postgres = configuration.space(), configuration.kind() == "postgresql"
    for model, table in ((Published, "published"), (Received, "received")):
        # Django quotes a name at both ends: these quotes in its middle separate schema and table.
        model._meta.db_table = f'{space}"."{table}' if is_postgres else f"{space}.{table}"

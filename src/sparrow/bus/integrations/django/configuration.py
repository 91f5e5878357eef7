"""The bus that Django's settings name or describe."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.conf import settings
from django.db import connections
from sqlalchemy import URL

from sparrow.bus.api import EventBus
from sparrow.bus.common import AnyEventBus
from sparrow.bus.handlers.discovery import import_object
from sparrow.bus.publish.publisher import Publisher
from sparrow.bus.sql.dialect import DATABASE_KINDS, DatabaseKind, database_kind
from sparrow.model.errors import Refused, SettingsError


def using() -> str:
    return str(getattr(settings, "SPARROW_BUS_USING", "default"))


def kind() -> DatabaseKind:
    return database_kind(connections[using()].vendor)


@cache
def bus() -> EventBus:
    given = getattr(settings, "SPARROW_BUS", None)
    _first_database_name()
    if isinstance(given, str):
        found = import_object(given)
        if not isinstance(found, AnyEventBus):
            raise SettingsError("SPARROW_BUS", given, "Django's settings", '"module:bus", the name of an EventBus,')
        return found.blocking
    if not isinstance(given, dict):
        raise SettingsError("SPARROW_BUS", given, "Django's settings", 'a dict like {"broker": ...}, or "module:bus",')
    # The tables are the migration's: a start should not make what `migrate` is asked to make.
    return EventBus(**{"database": database_url(using()), "create_tables": False, **given})


@cache
def publisher() -> Publisher:
    return Publisher(bus(), using=using())


def space() -> str:
    """Where the tables are: a schema, or a prefix."""
    return bus().settings.space(kind())


def check_same_database() -> None:
    """Tests run on another database than the settings name: a worker on the settings' one would do real work."""
    name = _database_name()
    if name != _first_database_name():
        raise Refused(
            f"the bus is for the database {_first_database_name()!r}, and Django now uses {name!r}: "
            "in tests, use sparrow.bus.testing, or do without the worker"
        )


def database_url(alias: str) -> URL:
    """The same database, for workers: they have connections of their own. OPTIONS are Django's and not taken over;
    where they matter, say `"database"` in SPARROW_BUS."""
    connection = connections[alias]
    said: dict[str, Any] = connection.settings_dict
    if connection.vendor not in DATABASE_KINDS:
        raise SettingsError("SPARROW_BUS_USING", alias, "Django's settings", "a MySQL, PostgreSQL or SQLite database")
    name, host = str(said["NAME"]), str(said["HOST"] or "")
    if connection.vendor == "sqlite":
        return URL.create("sqlite", database=name)
    query: dict[str, str] = {}
    if host.startswith("/"):  # a socket
        query = {"unix_socket" if connection.vendor == "mysql" else "host": host}
    return URL.create(
        connection.vendor,
        username=said["USER"] or None,
        password=said["PASSWORD"] or None,
        host=None if query else host or None,
        port=int(said["PORT"]) if said["PORT"] else None,
        database=name,
        query=query,
    )


def _database_name() -> str:
    return str(connections[using()].settings_dict["NAME"])


@cache
def _first_database_name() -> str:
    return _database_name()

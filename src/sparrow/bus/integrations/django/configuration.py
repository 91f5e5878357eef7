"""The bus and publisher that Django's settings define."""

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
    # The migration creates the tables: a start must not.
    return EventBus(**{"database": database_url(using()), "create_tables": False, **given})


@cache
def publisher() -> Publisher:
    return Publisher(bus(), using=using())


def space() -> str:
    """Return the schema or prefix of the tables."""
    return bus().settings.space(kind())


def check_same_database() -> None:
    """Raise `Refused` if Django now uses a test database: a worker would work on the real one."""
    name = _database_name()
    if name != _first_database_name():
        raise Refused(
            f"the bus is for the database {_first_database_name()!r}, and Django now uses {name!r}: "
            "in tests use sparrow.bus.testing, or start no worker"
        )


def database_url(alias: str) -> URL:
    """Return the URL of Django's database for workers, which have their own connections.

    Django's OPTIONS are not included; if they matter, set `"database"` in SPARROW_BUS.
    """
    connection = connections[alias]
    settings_of_connection: dict[str, Any] = connection.settings_dict
    if connection.vendor not in DATABASE_KINDS:
        raise SettingsError("SPARROW_BUS_USING", alias, "Django's settings", "a MySQL, PostgreSQL or SQLite database")
    name, host = str(settings_of_connection["NAME"]), str(settings_of_connection["HOST"] or "")
    if connection.vendor == "sqlite":
        return URL.create("sqlite", database=name)
    query: dict[str, str] = {}
    if host.startswith("/"):  # a Unix socket
        query = {"unix_socket" if connection.vendor == "mysql" else "host": host}
    return URL.create(
        connection.vendor,
        username=settings_of_connection["USER"] or None,
        password=settings_of_connection["PASSWORD"] or None,
        host=None if query else host or None,
        port=int(settings_of_connection["PORT"]) if settings_of_connection["PORT"] else None,
        database=name,
        query=query,
    )


def _database_name() -> str:
    return str(connections[using()].settings_dict["NAME"])


@cache
def _first_database_name() -> str:
    return _database_name()

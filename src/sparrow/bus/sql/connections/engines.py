"""Creating the engines of the bus from a URL: the driver, TLS, the writable one of several hosts, session settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sparrow.bus.errors import ClientMissing
from sparrow.bus.sql.connections.hosts import choose_hosts
from sparrow.bus.sql.connections.sqlite import BUSY_TIMEOUT_S, prepare_sqlite
from sparrow.bus.sql.dialect import DatabaseKind
from sparrow.databases.tls import tls_arguments
from sparrow.databases.url import TARGET_OPTION, TLS_OPTIONS, DatabaseHost, split_hosts
from sparrow.databases.writable import RECHECK_S
from sparrow.model.errors import SettingsError

POOL_SIZE = 40
"""Connections are opened on demand and kept: a pool that closes surplus connections opens new ones all the time."""
_CONNECT_TIMEOUT_S = 5
"""How long one of several hosts is waited for."""
_TIMEOUT_NAMES = {"asyncmy": "connect_timeout", "pymysql": "connect_timeout", "psycopg": "connect_timeout"}
_TIMEOUT_NAMES |= {"psycopg2": "connect_timeout", "asyncpg": "timeout"}
URL_FORMS = "mysql://user:password@host/name, postgresql://user:password@host/name or sqlite:///path"

# For engines created here. At REPEATABLE READ claims would lock gaps and deadlock with the inserts of publishers. A
# committed transaction needs no ROLLBACK when its connection returns to the pool; SQLAlchemy rolls back others. No ping
# before each use: work on a lost connection is repeated.
_OURS: dict[str, Any] = {
    "pool_size": POOL_SIZE,
    "max_overflow": POOL_SIZE,
    "pool_use_lifo": True,
    "pool_reset_on_return": None,
    "isolation_level": "READ COMMITTED",
}

# By kind of database: the driver, and the extra of Sparrow that installs it.
_BLOCKING_DRIVERS: dict[DatabaseKind, tuple[str, str]] = {
    "mysql": ("pymysql", "mysql"),
    "postgresql": ("psycopg", "postgres"),
    "sqlite": ("pysqlite", "bus"),
}
_ASYNCIO_DRIVERS: dict[DatabaseKind, tuple[str, str]] = {
    "mysql": ("asyncmy", "mysql"),
    "postgresql": ("asyncpg", "postgres"),
    "sqlite": ("aiosqlite", "bus"),
}


def parse_url(url: str | URL) -> tuple[URL, tuple[DatabaseHost, ...]]:
    """Return the URL with one host, and all hosts if it names several."""
    try:
        if isinstance(url, URL):
            return url, ()
        one, hosts = split_hosts(str(url))
        parsed = make_url(one)
        return (parsed.difference_update_query([TARGET_OPTION]) if hosts else parsed), hosts
    except (ArgumentError, ValueError):  # their texts may quote the password
        text = str(url)
        is_path = "@" not in text and "://" not in text
        forms = f"sqlite:///{text} if it is a file, otherwise {URL_FORMS}" if is_path else URL_FORMS
        raise SettingsError("database", text, "the bus", forms, "it is not a URL of a database") from None


def _with_driver(url: URL, drivers: tuple[str, str], kind: DatabaseKind, *, is_async: bool) -> URL:
    """Return the URL with a driver of the right kind, whose import works."""
    driver, extra = drivers
    backend, package = "mysql" if kind == "mysql" else url.get_backend_name(), f"sparrowmq[{extra}]"
    if "+" in url.drivername and url.get_dialect().is_async == is_async:  # chosen by the user
        package = url.get_driver_name()
    else:
        url = url.set(drivername=f"{backend}+{driver}")
    try:
        url.get_dialect().import_dbapi()
    except ImportError as error:
        name = url.get_driver_name() if error.name is None else error.name
        raise ClientMissing("database", url.render_as_string(), name, package) from error
    return url


def create_blocking(url: URL, kind: DatabaseKind, hosts: Sequence[DatabaseHost] = ()) -> Engine:
    url = _with_driver(url, _BLOCKING_DRIVERS[kind], kind, is_async=False)
    if kind != "sqlite":
        url, options = _options(url, kind, hosts)
        engine = create_engine(url, **options)
        choose_hosts(engine, kind, hosts)
        return engine
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    prepare_sqlite(engine)
    return engine


def create_asyncio(url: URL, kind: DatabaseKind, hosts: Sequence[DatabaseHost] = ()) -> AsyncEngine:
    url = _with_driver(url, _ASYNCIO_DRIVERS[kind], kind, is_async=True)
    if kind != "sqlite":
        url, options = _options(url, kind, hosts)
        engine = create_async_engine(url, **options)
        choose_hosts(engine.sync_engine, kind, hosts)
        return engine
    arguments: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S}
    if url.get_driver_name() == "aiosqlite":
        from sparrow.bus.sql.connections.sqlite_asyncio import connect

        arguments["async_creator_fn"] = connect
    engine = create_async_engine(url, connect_args=arguments, pool_size=POOL_SIZE)
    prepare_sqlite(engine.sync_engine)
    return engine


def _options(url: URL, kind: DatabaseKind, hosts: Sequence[DatabaseHost]) -> tuple[URL, dict[str, Any]]:
    """Return the URL without options about TLS, and the options of the engine."""
    driver = url.get_driver_name()
    query: Mapping[str, str] = {name: str(url.query[name]) for name in TLS_OPTIONS[kind] if name in url.query}
    tls = tls_arguments(kind, driver, query)
    if tls is not None:
        url = url.difference_update_query(query)
    options = _OURS | {"connect_args": dict(tls or {})}
    if hosts:
        options["pool_recycle"] = RECHECK_S
        if driver in _TIMEOUT_NAMES:
            options["connect_args"][_TIMEOUT_NAMES[driver]] = _CONNECT_TIMEOUT_S
    return url, options

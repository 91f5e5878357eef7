"""The host of each connection of an engine: the only one, or the first of several that may be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, event

from sparrow.bus.sql.dialect import DatabaseKind
from sparrow.databases.mysql_accounts import require_cryptography
from sparrow.databases.url import DatabaseHost
from sparrow.databases.writable import (
    GALERA_SESSION,
    READ_ONLY_CODES,
    READ_ONLY_STATE,
    ROLE_QUERIES,
    HostOrder,
    is_galera,
    refusal,
)
from sparrow.model.errors import SparrowError


def choose_hosts(engine: Engine, kind: DatabaseKind, hosts: Sequence[DatabaseHost]) -> None:
    """Make an engine connect to a host that may be written, and close connections whose host may not be any more."""
    order = HostOrder(hosts) if hosts else None

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        if order is None:
            return _connect(dialect, arguments, options)
        return _connect_to_writable(order, kind, dialect, arguments, options)

    @event.listens_for(engine, "handle_error")
    def check(context: Any) -> None:
        cause = context.original_exception
        code = cause.args[0] if cause.args else None
        if code in READ_ONLY_CODES or getattr(cause, "sqlstate", None) == READ_ONLY_STATE:
            context.is_disconnect = True


def _connect(dialect: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
    try:
        return dialect.connect(*arguments, **options)
    except RuntimeError:
        if dialect.name == "mysql":
            require_cryptography()
        raise


def _connect_to_writable(
    order: HostOrder, kind: DatabaseKind, dialect: Any, arguments: list[Any], options: dict[str, Any]
) -> Any:
    for host in order.to_try():
        try:
            connection = _connect(dialect, arguments, options | {"host": host.name, "port": host.port})
        except SparrowError:
            raise
        except Exception as cause:  # of the driver, or of the system
            order.failed(host, cause)
            continue
        try:
            reason = _check_role(connection, kind)
        except BaseException as cause:
            connection.close()
            if not isinstance(cause, Exception):
                raise
            order.failed(host, cause)
            continue
        if reason is None:
            order.connected(host)
            return connection
        connection.close()
        order.refused(host, reason)
    raise order.no_host()


def _check_role(connection: Any, kind: DatabaseKind) -> str | None:
    """Return why the host may not be written; None if it may."""
    cursor, rows = connection.cursor(), []
    try:
        for query in ROLE_QUERIES[kind]:
            cursor.execute(query)
            rows += cursor.fetchall()
        if is_galera(rows):
            cursor.execute(GALERA_SESSION)
    finally:
        cursor.close()
    connection.rollback()
    return refusal(rows)

"""Storing events that came from the broker: each message id once per group, however often it is delivered.

The receiver acknowledges a message to the broker only after this transaction is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sparrow.bus.sql.completion import ERROR_CHARS_MAX
from sparrow.bus.sql.connections.database import TransactionConflict
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import is_duplicate_key, row_batches
from sparrow.bus.sql.statements import inbox as statements
from sparrow.bus.states import EventStatus

_ROWS_PER_STATEMENT = 50


class ReceivedRow(NamedTuple):
    """A message, encoded for the table Received."""

    id: int
    name: str
    group: str
    content: str
    message_id: str
    """The id that all services know; `MsgId`."""
    dedupe_key: str | None
    """The key that duplicates share; None: store duplicates."""
    order_key: str | None = None
    error: str | None = None
    """Why the message cannot be handled at all: it is stored as Failed."""


def store_received(
    db: Connection, sql: SqlDialect, rows: Sequence[ReceivedRow], version: str, failed_retention_s: float
) -> list[ReceivedRow]:
    """Store the messages that are new, and queue those that can be handled. Return the new ones."""
    stored: list[ReceivedRow] = []
    for batch in row_batches(rows, _ROWS_PER_STATEMENT):
        new = batch if sql.is_strict else _without_duplicates(db, sql, batch)
        if new:
            stored += _insert(db, sql, new, version, failed_retention_s)
    return stored


def _without_duplicates(db: Connection, sql: SqlDialect, rows: Sequence[ReceivedRow]) -> list[ReceivedRow]:
    """Insert the keys of the rows into the inbox, and return the rows whose key is new."""
    by_key: dict[tuple[str, str], ReceivedRow] = {}
    without_key = []
    for row in rows:
        if row.dedupe_key is None:
            without_key.append(row)
        else:
            by_key.setdefault((row.group, row.dedupe_key), row)
    if not by_key:
        return without_key
    # In the order of the keys: two receivers that store the same messages cannot deadlock.
    keyed = [row for _, row in sorted(by_key.items())]
    if sql.kind == "mysql":
        new = _insert_keys_mysql(db, sql, keyed)
    else:
        found = sql.rows(db, statements.insert_new_keys(sql, len(keyed)), *_key_values(keyed))
        inserted = {(group, key) for group, key in found}
        new = [row for row in keyed if (row.group, row.dedupe_key) in inserted]
    new_ids = {row.id for row in new + without_key}
    return [row for row in rows if row.id in new_ids]


def _insert_keys_mysql(db: Connection, sql: SqlDialect, keyed: list[ReceivedRow]) -> list[ReceivedRow]:
    """Select the known keys first: MySQL does not report which rows an INSERT IGNORE skipped."""
    where, keys = sql.among('"MsgId"', [row.dedupe_key for row in keyed])
    groups, names = sql.among('"Group"', list({row.group for row in keyed}))
    found = sql.rows(db, statements.select_keys(sql, groups, where), *names, *keys)
    known = {(group, key) for group, key in found}
    new = [row for row in keyed if (row.group, row.dedupe_key) not in known]
    if not new:
        return []
    try:
        sql.change(db, statements.insert_keys(sql, len(new)), *_key_values(new))
    except DBAPIError as error:
        if is_duplicate_key(error):  # another receiver inserted one of them since the SELECT: run again
            raise TransactionConflict from error
        raise
    return new


def _key_values(rows: Sequence[ReceivedRow]) -> list[Any]:
    return [value for row in rows for value in (row.group, row.dedupe_key)]


def _insert(
    db: Connection, sql: SqlDialect, rows: Sequence[ReceivedRow], version: str, failed_retention_s: float
) -> Sequence[ReceivedRow]:
    values: list[Any] = []
    for row in rows:
        failed = row.error is not None
        values += [row.id, version, row.name, row.group, row.content]
        if failed:
            values.append(sql.span(failed_retention_s))
        values += [(EventStatus.FAILED if failed else EventStatus.SCHEDULED).value, row.order_key]
        values += [None if row.error is None else row.error[:ERROR_CHARS_MAX], int(failed), row.message_id]
    are_failed = [row.error is not None for row in rows]
    if sql.is_strict:
        sql.change(db, statements.insert_received_unless_known(sql, are_failed), *values)
        condition, ids = sql.among('"Id"', [row.id for row in rows])
        inserted = {found[0] for found in sql.rows(db, statements.select_stored_ids(sql, condition), *ids)}
        rows = [row for row in rows if row.id in inserted]
    else:
        sql.change(db, statements.insert_received(sql, are_failed), *values)
    to_handle = [row for row in rows if row.error is None]
    if to_handle:
        queue = [value for row in to_handle for value in (row.id, row.group, row.order_key)]
        sql.change(db, statements.insert_queue(sql, len(to_handle)), *queue)
    return rows

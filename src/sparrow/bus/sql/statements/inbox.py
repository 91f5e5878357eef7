"""Statements that store received events, each message id once per group."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import RECEIVED_SIDE

_COLUMNS = (
    '"Id", "Version", "Name", "Group", "Content", "Added", "ExpiresAt", "StatusName",'
    ' "OrderKey", "LastError", "Parked", "MsgId"'
)


def insert_keys(sql: SqlDialect, count: int) -> str:
    """Insert `count` keys into the inbox; values: group and key of each."""
    rows = ", ".join([f"(?, ?, {sql.now})"] * count)
    return f'INSERT INTO {sql.names.inbox} ("Group", "MsgId", "SeenAt") VALUES {rows}'


def insert_new_keys(sql: SqlDialect, count: int) -> str:
    """PostgreSQL and SQLite: insert the keys that are new, and return them."""
    return f'{insert_keys(sql, count)} ON CONFLICT DO NOTHING RETURNING "Group", "MsgId"'


def select_keys(sql: SqlDialect, group_condition: str, key_condition: str) -> str:
    """Select the keys that the inbox has."""
    return f'SELECT "Group", "MsgId" FROM {sql.names.inbox} WHERE {group_condition} AND {key_condition}'


def insert_received(sql: SqlDialect, are_failed: Sequence[bool]) -> str:
    """Insert messages.

    Values of each: id, version, name, group, content, the time until expiry if it failed, status, key, error, parked,
    message id.
    """
    rows = [
        f"(?, ?, ?, ?, ?, {sql.now}, {sql.plus(sql.now) if failed else 'NULL'}, ?, ?, ?, ?, ?)" for failed in are_failed
    ]
    return f"INSERT INTO {sql.names.received} ({_COLUMNS}) VALUES {', '.join(rows)}"


def insert_received_unless_known(sql: SqlDialect, are_failed: Sequence[bool]) -> str:
    """Insert messages whose (group, message id) is new; with `strict_tables` Received has a unique key on it."""
    if sql.kind == "mysql":
        return insert_received(sql, are_failed) + ' ON DUPLICATE KEY UPDATE "Id" = "Id"'
    return insert_received(sql, are_failed) + " ON CONFLICT DO NOTHING"


def select_stored_ids(sql: SqlDialect, condition: str) -> str:
    """Select which of the ids are in Received."""
    return f'SELECT "Id" FROM {sql.names.received} WHERE {condition}'


def insert_queue(sql: SqlDialect, count: int) -> str:
    """Insert `count` queue rows that are due now; values of each: id, group, key."""
    return (
        f'INSERT INTO {sql.names.queue} ("MessageType", "MessageId", "Group", "NextAt", "OrderKey") VALUES '
        + ", ".join([f"({RECEIVED_SIDE}, ?, ?, {sql.now}, ?)"] * count)
    )

"""Statements that insert events: one row in Published and one in Queue."""

from __future__ import annotations

from sparrow.bus.sql.dialect import SqlDialect


def insert_published(sql: SqlDialect, count: int = 1) -> str:
    """Insert `count` rows; values: id, version, name, content, status, key."""
    return f"{_into_published(sql)} VALUES {_repeat(f'(?, ?, ?, ?, {sql.now}, ?, ?)', count)}"


def insert_published_unless_taken(sql: SqlDialect) -> str:
    """Insert one row, or none if the id is taken. MySQL reports a duplicate key instead."""
    return insert_published(sql) + ("" if sql.kind == "mysql" else " ON CONFLICT DO NOTHING")


def insert_queue(sql: SqlDialect, group: str, are_delayed: list[bool]) -> str:
    """Insert a queue row for each event; values: id, the delay if it has one, key."""
    rows = [f"(0, {_literal(group)}, ?, {sql.plus(sql.now) if delayed else sql.now}, ?)" for delayed in are_delayed]
    return f"{_into_queue(sql)} VALUES {', '.join(rows)}"


def insert_both(sql: SqlDialect, group: str, *, is_delayed: bool) -> str:
    """PostgreSQL: insert an event and its queue row in one round trip; nothing if the id is taken.

    Values: id, version, name, content, status, key, and the delay if it has one.
    """
    due = sql.plus(sql.now) if is_delayed else sql.now
    return (
        f"WITH new AS ({insert_published(sql)} ON CONFLICT DO NOTHING"
        f' RETURNING "Id", "OrderKey") {_into_queue(sql)}'
        f' SELECT 0, {_literal(group)}, "Id", {due}, "OrderKey" FROM new'
    )


def insert_both_from_json(sql: SqlDialect, group: str) -> str:
    """PostgreSQL: insert many events and their queue rows; values: the rows as one JSON array, version.

    One value, because drivers are slow with many.
    """
    return (
        "WITH new AS (SELECT * FROM json_to_recordset(CAST(? AS json)) AS row"
        " (id bigint, name text, content text, status text, key text, delay float8, ordinal int)), published AS ("
        f"{_into_published(sql)} SELECT id, CAST(? AS text), name, content, {sql.now}, status, key FROM new)"
        # Events of one key are handled in the order of Seq, which the database assigns in this order.
        f" {_into_queue(sql)} SELECT 0, {_literal(group)}, id,"
        f" {sql.now} + delay * interval '1 second', key FROM new ORDER BY ordinal"
    )


def _into_published(sql: SqlDialect) -> str:
    return f'INSERT INTO {sql.names.published} ("Id", "Version", "Name", "Content", "Added", "StatusName", "OrderKey")'


def _into_queue(sql: SqlDialect) -> str:
    return f'INSERT INTO {sql.names.queue} ("MessageType", "Group", "MessageId", "NextAt", "OrderKey")'


def _repeat(row: str, count: int) -> str:
    return ", ".join([row] * count)


def _literal(text: str) -> str:
    assert not set(text) & set("'\\"), "the settings have checked it"
    return f"'{text}'"

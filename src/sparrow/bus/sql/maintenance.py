"""Periodic work on the tables: retry rounds, deletion of expired rows, repair of orphaned rows."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection

from sparrow.bus.sql.claims import message_table
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PUBLISHED_SIDE, RECEIVED_SIDE
from sparrow.bus.sql.statements import maintenance as statements
from sparrow.bus.states import EventStatus

MESSAGE_SIDES = (PUBLISHED_SIDE, RECEIVED_SIDE)
_ORPHAN_AGE_S = 300.0


def start_retry_round(
    db: Connection, sql: SqlDialect, side: int, count_max: int, failed_retention_s: float
) -> list[int]:
    """Move Failed messages that are not parked to Enqueued, with all their attempts; return their ids."""
    statement = statements.select_failed(sql, message_table(sql, side))
    rows = sql.rows(db, statement, EventStatus.FAILED.value, sql.span(-failed_retention_s), count_max)
    numbers = [row[0] for row in rows]
    reopen(db, sql, side, numbers)
    return numbers


def reopen(db: Connection, sql: SqlDialect, side: int, numbers: list[int]) -> int:
    """Move closed messages to Enqueued, without failed attempts, due now. Open ones stay as they are."""
    if not numbers:
        return 0
    table, (where, values) = message_table(sql, side), sql.among('m."Id"', numbers)
    opened = sql.change(db, statements.insert_queue_rows(sql, table, side, where), *values, side)
    where, values = sql.among('"Id"', numbers)
    sql.change(db, statements.mark_enqueued_again(table, where), EventStatus.ENQUEUED.value, *values)
    return opened


class ExpiredRows(NamedTuple):
    """Whole rows of Published or Received."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def expired_ids(db: Connection, sql: SqlDialect, side: int, count_max: int) -> list[int]:
    """Lock expired messages, and return their ids."""
    return [row[0] for row in sql.rows(db, statements.select_expired(sql, message_table(sql, side)), count_max)]


def read_rows(db: Connection, sql: SqlDialect, side: int, numbers: list[int]) -> ExpiredRows:
    """Read whole rows, for the archive."""
    where, values = sql.among('"Id"', numbers)
    result = sql.run(db, statements.select_rows(message_table(sql, side), where), *values)
    return ExpiredRows(list(result.keys()), [tuple(row) for row in result])


def delete_expired(db: Connection, sql: SqlDialect, side: int, numbers: list[int]) -> int:
    """Delete messages that are expired, and return how many."""
    where, values = sql.among('"Id"', numbers)
    return sql.change(db, statements.delete_expired(sql, message_table(sql, side), where), *values)


def delete_expired_inbox_keys(db: Connection, sql: SqlDialect, count_max: int, retention_s: float) -> int:
    """Delete keys of the inbox that are older than any duplicate is expected to be, and return how many."""
    if sql.is_strict:
        return 0
    rows = sql.rows(db, statements.select_expired_keys(sql), sql.span(-retention_s), count_max)
    for group in sorted({row[0] for row in rows}):
        where, values = sql.among('"MsgId"', [row[1] for row in rows if row[0] == group])
        sql.change(db, statements.delete_keys(sql, where), group, *values)
    return len(rows)


def repair_orphans(db: Connection, sql: SqlDialect, side: int) -> tuple[int, int]:
    """Queue open messages that have no queue row, and delete queue rows that have no message; return both counts.

    Both are 0 unless something else has changed the tables.
    """
    table = message_table(sql, side)
    rows = sql.rows(db, statements.select_open_without_queue_row(sql, table, side), sql.span(-_ORPHAN_AGE_S))
    without_queue_row = [row[0] for row in rows]
    reopen(db, sql, side, without_queue_row)
    without_message = [row[0] for row in sql.rows(db, statements.select_queue_without_message(sql, table, side))]
    if without_message:
        where, values = sql.among('"Seq"', without_message)
        sql.change(db, statements.delete_queue_rows(sql, where), *values)
    return len(without_queue_row), len(without_message)

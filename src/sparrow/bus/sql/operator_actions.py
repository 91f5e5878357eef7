"""Changes that operators make to stored messages, in small transactions and never against a worker.

Each function takes ids, changes the messages whose state allows the action, and returns the ids of those. For an open
message its row in Queue is locked first, then the message, as workers do it; a closed message has no such row. So an
operator and a worker cannot deadlock, and of two operators the second finds the change made.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from sparrow.bus.sql.claims import message_table
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.maintenance import reopen
from sparrow.bus.sql.statements import operator_actions as statements
from sparrow.bus.states import SUCCEEDED_SPELLINGS, EventStatus

_CLOSED = (EventStatus.FAILED.value, EventStatus.CANCELLED.value, *SUCCEEDED_SPELLINGS)
_WAITING = (EventStatus.SCHEDULED.value, EventStatus.DELAYED.value)


def requeue(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int]) -> list[int]:
    """Move closed messages to Enqueued, with all attempts before them, due now."""
    found = _lock_in_state(db, sql, side, numbers, _CLOSED)
    reopen(db, sql, side, found)
    return found


def cancel(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], retention_s: float) -> list[int]:
    """Move messages that no worker holds from Scheduled or Delayed to Cancelled."""
    found = _lock_waiting(db, sql, side, numbers, _WAITING)
    if found:
        _delete_queue_rows(db, sql, side, found)
        where, values = sql.among('"Id"', found)
        statement = statements.mark_cancelled(sql, message_table(sql, side), where)
        sql.change(db, statement, EventStatus.CANCELLED.value, sql.span(retention_s), *values)
    return found


def publish_now(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int]) -> list[int]:
    """Make Delayed messages due now."""
    found = _lock_waiting(db, sql, side, numbers, (EventStatus.DELAYED.value,))
    if found:
        where, values = sql.among('"MessageId"', found)
        sql.change(db, statements.make_due_now(sql, where), side, *values)
        where, values = sql.among('"Id"', found)
        statement = statements.mark_status(message_table(sql, side), where)
        sql.change(db, statement, EventStatus.SCHEDULED.value, *values)
    return found


def delete(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], *, force: bool = False) -> list[int]:
    """Delete closed messages; with `force` also open ones that no worker holds.

    The inbox keeps their keys: if the broker delivers one again, it is a duplicate.
    """
    if force:
        where, values = sql.among('"MessageId"', numbers)
        rows = sql.rows(db, statements.lock_queue_rows(sql, where), side, *values)
        held = {number for number, is_free in rows if not is_free}
        free = [number for number, is_free in rows if is_free]
        if free:  # a worker whose lease is over finds no row to complete, and rolls back
            _delete_queue_rows(db, sql, side, free)
        numbers = [number for number in numbers if number not in held]
    found = _lock_in_state(db, sql, side, numbers, None if force else _CLOSED)
    if found:
        where, values = sql.among('"Id"', found)
        sql.change(db, statements.delete_messages(message_table(sql, side), where), *values)
    return found


def park(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], *, parks: bool = True) -> list[int]:
    """Exclude Failed messages from retry rounds, or include them again."""
    found = _lock_in_state(db, sql, side, numbers, (EventStatus.FAILED.value,))
    if found:
        where, values = sql.among('"Id"', found)
        sql.change(db, statements.mark_parked(message_table(sql, side), where), int(parks), *values)
    return found


def _lock_in_state(
    db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], statuses: tuple[str, ...] | None
) -> list[int]:
    """Lock the messages in one of the states, None meaning any, and return their ids."""
    if not numbers:
        return []
    where, values = sql.among('"Id"', numbers)
    statement = statements.lock_messages(sql, message_table(sql, side), where, statuses)
    return [row[0] for row in sql.rows(db, statement, *values)]


def _lock_waiting(
    db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], statuses: tuple[str, ...]
) -> list[int]:
    """Lock the messages in one of the states that no worker holds, with their queue rows; return their ids."""
    if not numbers:
        return []
    where, values = sql.among('"MessageId"', numbers)
    rows = sql.rows(db, statements.lock_unclaimed_queue_rows(sql, where), side, *values)
    return _lock_in_state(db, sql, side, [row[0] for row in rows], statuses)


def _delete_queue_rows(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int]) -> None:
    where, values = sql.among('"MessageId"', numbers)
    sql.change(db, statements.delete_queue_rows(sql, where), side, *values)

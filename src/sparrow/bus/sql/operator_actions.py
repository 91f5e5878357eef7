"""What operators do to stored messages: each one a small transaction, and never against a worker.

Every function takes numbers, changes those of them for which the step is legal, and says which these were. Where a
message is open, its row in Queue is locked first and the message after it, as workers do it; where it is closed there
is no such row, and the message is locked. So an operator and a worker never wait for each other in a circle, and of two
operators the second one finds the work done.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from sparrow.bus.sql.claims import message_table
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.maintenance import reopen
from sparrow.bus.states import SUCCEEDED_SPELLINGS, EventStatus

_CLOSED_WORDS = (EventStatus.FAILED.value, EventStatus.CANCELLED.value, *SUCCEEDED_SPELLINGS)
_WAITING_WORDS = (EventStatus.SCHEDULED.value, EventStatus.DELAYED.value)


def requeue(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int]) -> list[int]:
    """T7, and the same for what has succeeded or was cancelled: Enqueued, with all attempts before it, due now."""
    found = _in_state(db, sql, side, numbers, _CLOSED_WORDS)
    reopen(db, sql, side, found)
    return found


def cancel(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], kept_s: float) -> list[int]:
    """T11: what no worker has begun with never happens."""
    found = _waiting(db, sql, side, numbers, _WAITING_WORDS)
    if found:
        _leave_queue(db, sql, side, found)
        where, values = sql.among('"Id"', found)
        sql.change(
            db,
            f'UPDATE {message_table(sql, side)} SET "StatusName" = ?, "ExpiresAt" = {sql.plus(sql.now)} WHERE {where}',
            EventStatus.CANCELLED.value,
            sql.span(kept_s),
            *values,
        )
    return found


def publish_now(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int]) -> list[int]:
    """Delayed ones wait no longer."""
    found = _waiting(db, sql, side, numbers, (EventStatus.DELAYED.value,))
    if found:
        where, values = sql.among('"MessageId"', found)
        sql.change(
            db, f'UPDATE {sql.names.queue} SET "NextAt" = {sql.now} WHERE "MessageType" = ? AND {where}', side, *values
        )
        where, values = sql.among('"Id"', found)
        sql.change(
            db,
            f'UPDATE {message_table(sql, side)} SET "StatusName" = ? WHERE {where}',
            EventStatus.SCHEDULED.value,
            *values,
        )
    return found


def delete(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], *, force: bool = False) -> list[int]:
    """Closed ones; with `force` also open ones that no worker holds. The inbox remembers them all the same: should the
    broker deliver one again, it is a repeat."""
    if force:
        where, values = sql.among('"MessageId"', numbers)
        rows = sql.rows(
            db,
            f'SELECT "MessageId", CASE WHEN "LockedBy" IS NULL OR "NextAt" <= {sql.now} THEN 1 ELSE 0 END'
            f' FROM {sql.names.queue} WHERE "MessageType" = ? AND {where} ORDER BY "MessageId"{_locking(sql)}',
            side,
            *values,
        )
        held = {row[0] for row in rows if not row[1]}
        free = [row[0] for row in rows if row[1]]
        if free:  # a worker that lost its lease finds no row to finish, and rolls back
            _leave_queue(db, sql, side, free)
        numbers = [number for number in numbers if number not in held]
    found = _in_state(db, sql, side, numbers, None if force else _CLOSED_WORDS)
    if found:
        where, values = sql.among('"Id"', found)
        sql.change(db, f"DELETE FROM {message_table(sql, side)} WHERE {where}", *values)
    return found


def park(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], *, parks: bool = True) -> list[int]:
    """Failed ones: no round picks them up any more, or again."""
    found = _in_state(db, sql, side, numbers, (EventStatus.FAILED.value,))
    if found:
        where, values = sql.among('"Id"', found)
        sql.change(db, f'UPDATE {message_table(sql, side)} SET "Parked" = ? WHERE {where}', int(parks), *values)
    return found


def _in_state(
    db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], words: tuple[str, ...] | None
) -> list[int]:
    """Those in one of these states, locked; None: in any."""
    if not numbers:
        return []
    where, values = sql.among('"Id"', numbers)
    if words is not None:
        where += f' AND "StatusName" IN ({_listed(words)})'
    statement = f'SELECT "Id" FROM {message_table(sql, side)} WHERE {where} ORDER BY "Id"{_locking(sql)}'
    return [row[0] for row in sql.rows(db, statement, *values)]


def _waiting(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int], words: tuple[str, ...]) -> list[int]:
    """Those in one of these states that no worker holds, with their rows in Queue locked."""
    if not numbers:
        return []
    where, values = sql.among('"MessageId"', numbers)
    rows = sql.rows(
        db,
        f'SELECT "MessageId" FROM {sql.names.queue} WHERE "MessageType" = ? AND {where} AND "LockedBy" IS NULL'
        f' ORDER BY "MessageId"{_locking(sql)}',
        side,
        *values,
    )
    return _in_state(db, sql, side, [row[0] for row in rows], words)


def _leave_queue(db: Connection, sql: SqlDialect, side: int, numbers: Sequence[int]) -> None:
    where, values = sql.among('"MessageId"', numbers)
    sql.change(db, f'DELETE FROM {sql.names.queue} WHERE "MessageType" = ? AND {where}', side, *values)


def _locking(sql: SqlDialect) -> str:
    """Waits for who has the row: to an operator, a row that was passed over would look as if it were not there."""
    return "" if sql.kind == "sqlite" else " FOR UPDATE"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)

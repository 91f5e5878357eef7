"""Taking open work for a while: no two workers have the same message, and a dead one's comes back by itself.

1. A claim ends when the row's `NextAt` comes: it is due time, back-off time and the end of a lease in one.
2. Every claim raises `LockToken` and has a `LockedBy` of its own: finishing asks for both, so a worker that slept
   through its lease finishes nothing.
3. Of the messages with one key only the first, by `Seq`, can be claimed: the others wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PUBLISHED_SIDE
from sparrow.bus.states import EventStatus


class Claim(NamedTuple):
    """A lease on one message."""

    message_id: int
    token: int
    crashes: int
    key: str | None
    owner: str


class ClaimedEvent(NamedTuple):
    """A claimed message."""

    claim: Claim
    name: str
    content: str
    added: datetime
    retries: int
    rounds: int


def claim_due(
    db: Connection, sql: SqlDialect, side: int, group: str, count_max: int, *, owner: str, lease_s: float
) -> list[Claim]:
    """Up to so many messages that are due; those without a key first."""
    claims = _claim(db, sql, _due_plain(sql), side, group, count_max, owner, lease_s)
    if len(claims) < count_max:
        claims += _claim(db, sql, _due_heads(sql), side, group, count_max - len(claims), owner, lease_s)
    return claims


def load_claimed(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim]) -> list[ClaimedEvent]:
    """The claimed messages themselves, in the claims' order; from now on they are Processing.

    A claim without a message (an operator deleted it) is dropped with its row."""
    if not claims:
        return []
    table = message_table(sql, side)
    by_id = {one.message_id: one for one in claims}
    where, values = sql.among('"Id"', list(by_id))
    columns = '"Id", "Name", "Content", "Added", "Retries", "Rounds"'
    if not sql.writes_progress_states:
        rows = sql.rows(db, f"SELECT {columns} FROM {table} WHERE {where}", *values)
    elif sql.kind == "mysql":
        # Locked as they are read: what is read cannot change before it is marked.
        rows = sql.rows(db, f"SELECT {columns} FROM {table} WHERE {where} FOR UPDATE", *values)
        sql.change(db, f'UPDATE {table} SET "StatusName" = ? WHERE {where}', EventStatus.PROCESSING.value, *values)
    else:
        rows = sql.rows(
            db,
            f'UPDATE {table} SET "StatusName" = ? WHERE {where} RETURNING {columns}',
            EventStatus.PROCESSING.value,
            *values,
        )
    found = {row[0]: ClaimedEvent(by_id[row[0]], row[1], row[2], sql.from_time(row[3]), row[4], row[5]) for row in rows}
    if len(found) < len(by_id):
        where, values = sql.among('"MessageId"', [number for number in by_id if number not in found])
        sql.change(db, f'DELETE FROM {sql.names.queue} WHERE "MessageType" = ? AND {where}', side, *values)
    return [found[number] for number in by_id if number in found]


def renew_leases(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim], lease_s: float) -> set[int]:
    """Make the leases longer; which of the messages are still ours."""
    kept: set[int] = set()
    by_owner: dict[str, list[int]] = {}
    for one in claims:
        by_owner.setdefault(one.owner, []).append(one.message_id)
    for owner, numbers in by_owner.items():
        where, values = sql.among('"MessageId"', numbers)
        condition = f'"MessageType" = ? AND "LockedBy" = ? AND {where}'
        done = sql.change(
            db,
            f'UPDATE {sql.names.queue} SET "NextAt" = {sql.plus(sql.now)} WHERE {condition}',
            sql.span(lease_s),
            side,
            owner,
            *values,
        )
        if done == len(numbers):
            kept.update(numbers)
            continue
        rows = sql.rows(db, f'SELECT "MessageId" FROM {sql.names.queue} WHERE {condition}', side, owner, *values)
        kept.update(row[0] for row in rows)
    return kept


def message_table(sql: SqlDialect, side: int) -> str:
    return sql.names.published if side == PUBLISHED_SIDE else sql.names.received


# -- which rows are due ----------------------------------------------------------------------------------------------

_COLUMNS = 'q."Seq", q."MessageId", q."LockToken", q."Crashes", q."OrderKey", q."LockedBy"'


def _due_plain(sql: SqlDialect) -> str:
    return (
        f'SELECT {{columns}} FROM {sql.names.queue} q WHERE q."MessageType" = ? AND q."Group" = ?'
        f' AND q."OrderKey" IS NULL AND q."NextAt" <= {sql.now} ORDER BY q."NextAt", q."Seq" LIMIT ?'
    )


def _due_heads(sql: SqlDialect) -> str:
    # A join, not "no earlier one exists": with one hot key that is quadratic.
    return (
        f'SELECT {{columns}} FROM {sql.names.queue} q JOIN (SELECT MIN("Seq") AS head FROM {sql.names.queue}'
        ' WHERE "MessageType" = ? AND "Group" = ? AND "OrderKey" IS NOT NULL GROUP BY "OrderKey") heads'
        f' ON q."Seq" = heads.head WHERE q."NextAt" <= {sql.now} ORDER BY q."NextAt", q."Seq" LIMIT ?'
    )


def _claim(
    db: Connection, sql: SqlDialect, due: str, side: int, group: str, count_max: int, owner: str, lease_s: float
) -> list[Claim]:
    # MySQL works from left to right: Crashes looks at the LockedBy of before.
    taking = (
        '"Crashes" = {q}"Crashes" + CASE WHEN {q}"LockedBy" IS NULL THEN 0 ELSE 1 END, "LockedBy" = ?,'
        f' "LockToken" = {{q}}"LockToken" + 1, "NextAt" = {sql.plus(sql.now)}'
    )
    span = sql.span(lease_s)
    queue = sql.names.queue
    seqs = due.format(columns='q."Seq"')
    if sql.kind == "postgresql":
        rows = sql.rows(
            db,
            f"WITH due AS ({seqs} FOR UPDATE OF q SKIP LOCKED)"
            f' UPDATE {queue} q SET {taking.format(q="q.")} FROM due WHERE q."Seq" = due."Seq"'
            ' RETURNING q."MessageId", q."LockToken", q."Crashes", q."OrderKey", q."Seq"',
            side,
            group,
            count_max,
            owner,
            span,
        )
    elif sql.kind == "sqlite":
        rows = sql.rows(
            db,
            f'UPDATE {queue} SET {taking.format(q="")} WHERE "Seq" IN ({seqs})'
            ' RETURNING "MessageId", "LockToken", "Crashes", "OrderKey", "Seq"',
            owner,
            span,
            side,
            group,
            count_max,
        )
    else:
        return _claim_mysql(db, sql, due, taking.format(q=""), (side, group, count_max), owner, span)
    rows.sort(key=lambda row: row[4])
    return [Claim(row[0], row[1], row[2], row[3], owner) for row in rows]


def _claim_mysql(
    db: Connection, sql: SqlDialect, due: str, taking: str, values: tuple[int, str, int], owner: str, span: object
) -> list[Claim]:
    queue = sql.names.queue
    statement = due.format(columns=_COLUMNS)
    if sql.skips_locked:
        statement += sql.locking
    rows = sql.rows(db, statement, *values)
    if not rows:
        return []
    where, seqs = sql.among('"Seq"', [row[0] for row in rows])
    if sql.skips_locked:
        sql.change(db, f"UPDATE {queue} SET {taking} WHERE {where}", owner, span, *seqs)
    else:
        # Nothing was locked while we looked: take those that are still due, and see which they were.
        sql.change(db, f'UPDATE {queue} SET {taking} WHERE {where} AND "NextAt" <= {sql.now}', owner, span, *seqs)
        # The token too: others may have had them, and given them back, since we looked.
        columns = '"MessageId", "LockToken", "Crashes", "OrderKey"'
        ours = sql.rows(
            db, f'SELECT {columns} FROM {queue} WHERE {where} AND "LockedBy" = ? ORDER BY "Seq"', *seqs, owner
        )
        return [Claim(row[0], row[1], row[2], row[3], owner) for row in ours]
    rows.sort(key=lambda row: row[0])
    return [Claim(row[1], row[2] + 1, row[3] + (row[5] is not None), row[4], owner) for row in rows]

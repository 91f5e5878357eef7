"""Claiming due messages under a lease: no two workers hold the same message, and a lease ends by itself.

1. A claim ends at the row's `NextAt`. The column holds the due time, the retry time or the end of the lease.
2. Every claim increases `LockToken` and has its own `LockedBy`. Completion checks both, so a worker whose lease is over
   completes nothing.
3. Of the messages with one key only the first, by `Seq`, can be claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PUBLISHED_SIDE
from sparrow.bus.sql.statements import claims as statements
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
    """Claim up to `count_max` due messages, those without a key first."""
    claims = _claim(db, sql, statements.select_due_without_key, side, group, count_max, owner, lease_s)
    if len(claims) < count_max:
        left = count_max - len(claims)
        claims += _claim(db, sql, statements.select_due_first_of_key, side, group, left, owner, lease_s)
    return claims


def load_claimed(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim]) -> list[ClaimedEvent]:
    """Read the claimed messages, in the order of the claims, and mark them as Processing.

    If an operator has deleted the message of a claim, its queue row is deleted too.
    """
    if not claims:
        return []
    table = message_table(sql, side)
    by_id = {claim.message_id: claim for claim in claims}
    where, values = sql.among('"Id"', list(by_id))
    processing = EventStatus.PROCESSING.value
    if not sql.writes_progress_states:
        rows = sql.rows(db, statements.select_messages(sql, table, where), *values)
    elif sql.kind == "mysql":
        rows = sql.rows(db, statements.select_messages(sql, table, where, lock=True), *values)
        sql.change(db, statements.mark_processing(table, where), processing, *values)
    else:
        rows = sql.rows(db, statements.mark_processing_returning(table, where), processing, *values)
    found = {row[0]: ClaimedEvent(by_id[row[0]], row[1], row[2], sql.from_time(row[3]), row[4], row[5]) for row in rows}
    if len(found) < len(by_id):
        where, values = sql.among('"MessageId"', [number for number in by_id if number not in found])
        sql.change(db, statements.delete_queue_rows(sql, where), side, *values)
    return [found[number] for number in by_id if number in found]


def renew_leases(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim], lease_s: float) -> set[int]:
    """Extend the leases, and return the ids of the messages that are still held."""
    held: set[int] = set()
    by_owner: dict[str, list[int]] = {}
    for claim in claims:
        by_owner.setdefault(claim.owner, []).append(claim.message_id)
    for owner, numbers in by_owner.items():
        where, values = sql.among('"MessageId"', numbers)
        renewed = sql.change(db, statements.renew_leases(sql, where), sql.span(lease_s), side, owner, *values)
        if renewed == len(numbers):
            held.update(numbers)
            continue
        rows = sql.rows(db, statements.select_held_by_owner(sql, where), side, owner, *values)
        held.update(row[0] for row in rows)
    return held


def message_table(sql: SqlDialect, side: int) -> str:
    """Return the quoted name of Published or Received."""
    return sql.names.published if side == PUBLISHED_SIDE else sql.names.received


def _claim(
    db: Connection,
    sql: SqlDialect,
    select_due: Callable[[SqlDialect, str], str],
    side: int,
    group: str,
    count_max: int,
    owner: str,
    lease_s: float,
) -> list[Claim]:
    lease = sql.span(lease_s)
    if sql.kind == "mysql":
        return _claim_mysql(db, sql, select_due, (side, group, count_max), owner, lease)
    due = select_due(sql, 'q."Seq"')
    if sql.kind == "postgresql":
        rows = sql.rows(db, statements.claim_postgresql(sql, due), side, group, count_max, owner, lease)
    else:
        rows = sql.rows(db, statements.claim_sqlite(sql, due), owner, lease, side, group, count_max)
    rows.sort(key=lambda row: row[4])
    return [Claim(row[0], row[1], row[2], row[3], owner) for row in rows]


def _claim_mysql(
    db: Connection,
    sql: SqlDialect,
    select_due: Callable[[SqlDialect, str], str],
    values: tuple[int, str, int],
    owner: str,
    lease: object,
) -> list[Claim]:
    columns = 'q."Seq", q."MessageId", q."LockToken", q."Crashes", q."OrderKey", q."LockedBy"'
    rows = sql.rows(db, select_due(sql, columns) + (sql.locking if sql.skips_locked else ""), *values)
    if not rows:
        return []
    where, numbers = sql.among('"Seq"', [row[0] for row in rows])
    sql.change(db, statements.claim_mysql(sql, where), owner, lease, *numbers)
    if not sql.skips_locked:
        # Other workers may have claimed and released some of them since the SELECT: read the tokens again.
        ours = sql.rows(db, statements.select_claimed_by_owner(sql, where), *numbers, owner)
        return [Claim(row[0], row[1], row[2], row[3], owner) for row in ours]
    rows.sort(key=lambda row: row[0])
    return [Claim(row[1], row[2] + 1, row[3] + (row[5] is not None), row[4], owner) for row in rows]

"""How a claimed message ends: Successed, back to Scheduled, or Failed. Each change asks whether the claim still holds.

`mark_succeeded` in the transaction of a handler is the fence: when the lease has passed to another worker it raises,
the
transaction is rolled back, and so a message has its effect once, however often it was handled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sparrow.bus.errors import LeaseLost
from sparrow.bus.retry import NextAttempt
from sparrow.bus.sql.claims import Claim, message_table
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.states import EventStatus

ERROR_CHARS_MAX = 4_000


def mark_succeeded(db: Connection, sql: SqlDialect, side: int, claim: Claim, kept_s: float) -> None:
    """T4 for one message. Raises `LeaseLost`."""
    table, queue, word = message_table(sql, side), sql.names.queue, sql.word(EventStatus.SUCCESSED)
    expires = sql.plus(sql.now)
    if sql.kind == "postgresql":  # both in one round trip
        done = sql.change(
            db,
            f'WITH gone AS (DELETE FROM {queue} WHERE "MessageType" = ? AND "MessageId" = ? AND "LockToken" = ?'
            f' RETURNING "MessageId") UPDATE {table} SET "StatusName" = ?, "ExpiresAt" = {expires}'
            ' FROM gone WHERE "Id" = gone."MessageId"',
            side,
            claim.message_id,
            claim.token,
            word,
            sql.span(kept_s),
        )
        if done != 1:
            raise LeaseLost(claim.message_id)
        return
    _leave(db, sql, side, claim)
    sql.change(
        db,
        f'UPDATE {table} SET "StatusName" = ?, "ExpiresAt" = {expires} WHERE "Id" = ?',
        word,
        sql.span(kept_s),
        claim.message_id,
    )


def mark_all_succeeded(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim], kept_s: float) -> None:
    """T4 for messages claimed together. Raises `LeaseLost`, with nothing to keep, when one of them is not ours."""
    if not claims:
        return
    owner, numbers = claims[0].owner, [claim.message_id for claim in claims]
    assert all(claim.owner == owner for claim in claims), "one claim, one owner"
    where, values = sql.among('"MessageId"', numbers)
    gone = sql.change(
        db,
        f'DELETE FROM {sql.names.queue} WHERE "MessageType" = ? AND "LockedBy" = ? AND {where}',
        side,
        owner,
        *values,
    )
    if gone != len(numbers):
        raise LeaseLost(numbers[0])
    where, values = sql.among('"Id"', numbers)
    sql.change(
        db,
        f'UPDATE {message_table(sql, side)} SET "StatusName" = ?, "ExpiresAt" = {sql.plus(sql.now)} WHERE {where}',
        sql.word(EventStatus.SUCCESSED),
        sql.span(kept_s),
        *values,
    )


def still_claimed(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim]) -> list[Claim]:
    """Those whose lease has not passed to another worker."""
    where, values = sql.among('"MessageId"', [claim.message_id for claim in claims])
    rows = sql.rows(
        db,
        f'SELECT "MessageId", "LockedBy" FROM {sql.names.queue} WHERE "MessageType" = ? AND {where}',
        side,
        *values,
    )
    held = {(row[0], row[1]) for row in rows}
    return [claim for claim in claims if (claim.message_id, claim.owner) in held]


def reschedule(
    db: Connection,
    sql: SqlDialect,
    side: int,
    claim: Claim,
    again: NextAttempt,
    error: str,
    *,
    counts: bool = True,
    keeps_order: bool = True,
) -> None:
    """T5: back to Scheduled. Without `counts` the attempt is not one; without its place later ones may overtake."""
    base = sql.now if again.base == "now" else f'(SELECT "Added" FROM {message_table(sql, side)} WHERE "Id" = ?)'
    base_values: tuple[Any, ...] = () if again.base == "now" else (claim.message_id,)
    due = sql.plus(base)
    key = "" if keeps_order else ', "OrderKey" = NULL'
    done = sql.change(
        db,
        f'UPDATE {sql.names.queue} SET "LockedBy" = NULL, "NextAt" = {due}{key}'
        ' WHERE "MessageType" = ? AND "MessageId" = ? AND "LockToken" = ?',
        *base_values,
        sql.span(again.seconds),
        side,
        claim.message_id,
        claim.token,
    )
    if done != 1:
        raise LeaseLost(claim.message_id)
    sql.change(
        db,
        f'UPDATE {message_table(sql, side)} SET "StatusName" = ?, "Retries" = "Retries" + ?, "LastError" = ?'
        ' WHERE "Id" = ?',
        EventStatus.SCHEDULED.value,
        int(counts),
        error[:ERROR_CHARS_MAX],
        claim.message_id,
    )


def mark_failed(
    db: Connection,
    sql: SqlDialect,
    side: int,
    claim: Claim,
    error: str,
    kept_s: float,
    *,
    counts: bool = True,
    parks: bool = False,
    content: str | None = None,
) -> None:
    """T6, T9: Failed. `parks`: no later round picks it up by itself. `content`: what is stored from now on."""
    _leave(db, sql, side, claim)
    expires = sql.plus('"Added"')
    sql.change(
        db,
        f'UPDATE {message_table(sql, side)} SET "StatusName" = ?, "Retries" = "Retries" + ?, "LastError" = ?,'
        ' "Parked" = ?,'
        f' "Content" = COALESCE(?, "Content"), "ExpiresAt" = {expires} WHERE "Id" = ?',
        EventStatus.FAILED.value,
        int(counts),
        error[:ERROR_CHARS_MAX],
        int(parks),
        content,
        sql.span(kept_s),
        claim.message_id,
    )


def release_claims(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim]) -> None:
    """T10: what was claimed and not begun, or was interrupted, is anybody's again. Those lost meanwhile are left."""
    ours = still_claimed(db, sql, side, claims) if claims else []
    if not ours:
        return
    numbers = [claim.message_id for claim in ours]
    where, values = sql.among('"MessageId"', numbers)
    by_us, owners = sql.among('"LockedBy"', list({claim.owner for claim in ours}))
    sql.change(
        db,
        f'UPDATE {sql.names.queue} SET "LockedBy" = NULL, "NextAt" = {sql.now}'
        f' WHERE "MessageType" = ? AND {where} AND {by_us}',
        side,
        *values,
        *owners,
    )
    if sql.writes_progress_states:
        where, values = sql.among('"Id"', numbers)
        sql.change(
            db,
            f'UPDATE {message_table(sql, side)} SET "StatusName" = ? WHERE {where}',
            EventStatus.SCHEDULED.value,
            *values,
        )


def _leave(db: Connection, sql: SqlDialect, side: int, claim: Claim) -> None:
    gone = sql.change(
        db,
        f'DELETE FROM {sql.names.queue} WHERE "MessageType" = ? AND "MessageId" = ? AND "LockToken" = ?',
        side,
        claim.message_id,
        claim.token,
    )
    if gone != 1:
        raise LeaseLost(claim.message_id)

"""Ending an attempt at a claimed message: Successed, Scheduled again, or Failed.

Each change checks that the claim still holds. In the transaction of a handler `mark_succeeded` is the fence: if the
lease has passed to another worker it raises `LeaseLost` and the transaction is rolled back. So a message takes effect
once, however often it is handled. docs/event-bus.md lists the message states.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from sparrow.bus.errors import LeaseLost
from sparrow.bus.retry import NextAttempt
from sparrow.bus.sql.claims import Claim, message_table
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.direct_completion import complete_directly
from sparrow.bus.sql.statements import completion as statements
from sparrow.bus.states import EventStatus

ERROR_CHARS_MAX = 4_000


def mark_succeeded(
    db: Connection, sql: SqlDialect, side: int, claim: Claim, retention_s: float, *, may_defer: bool = False
) -> None:
    """Move one message from Processing to Successed; raise `LeaseLost` if it is held by another worker.

    With `may_defer` the check may be part of the commit, which then raises it.
    """
    table, status, retention = message_table(sql, side), sql.status_name(EventStatus.SUCCESSED), sql.span(retention_s)
    own_row = (side, claim.message_id, claim.token)
    deleted = complete_directly(db, sql, table, own_row, (status, retention), may_defer=may_defer)
    if deleted is not None:
        if deleted != 1:
            raise LeaseLost(claim.message_id)
    elif sql.kind == "postgresql":
        statement = statements.delete_claimed_and_mark_succeeded(sql, table)
        if sql.change(db, statement, *own_row, status, retention) != 1:
            raise LeaseLost(claim.message_id)
    else:
        _delete_claimed(db, sql, side, claim)
        sql.change(db, statements.mark_succeeded(sql, table, '"Id" = ?'), status, retention, claim.message_id)


def mark_all_succeeded(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim], retention_s: float) -> None:
    """Move messages that were claimed together to Successed.

    Raises `LeaseLost` if one of them is held by another worker: the caller rolls back.
    """
    if not claims:
        return
    owner, numbers = claims[0].owner, [claim.message_id for claim in claims]
    assert all(claim.owner == owner for claim in claims), "one claim, one owner"
    where, values = sql.among('"MessageId"', numbers)
    if sql.change(db, statements.delete_claimed_together(sql, where), side, owner, *values) != len(numbers):
        raise LeaseLost(numbers[0])
    where, values = sql.among('"Id"', numbers)
    statement = statements.mark_succeeded(sql, message_table(sql, side), where)
    sql.change(db, statement, sql.status_name(EventStatus.SUCCESSED), sql.span(retention_s), *values)


def still_claimed(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims whose lease has not passed to another worker."""
    where, values = sql.among('"MessageId"', [claim.message_id for claim in claims])
    held = {(row[0], row[1]) for row in sql.rows(db, statements.select_owners(sql, where), side, *values)}
    return [claim for claim in claims if (claim.message_id, claim.owner) in held]


def reschedule(
    db: Connection,
    sql: SqlDialect,
    side: int,
    claim: Claim,
    attempt: NextAttempt,
    error: str,
    *,
    counts: bool = True,
    keeps_order: bool = True,
) -> None:
    """Move a message from Processing back to Scheduled after a failed attempt.

    Without `counts` the attempt is not added to Retries. Without `keeps_order` later messages of its key may overtake.
    """
    table = message_table(sql, side)
    statement = statements.reschedule_claimed(sql, table, base=attempt.base, keeps_order=keeps_order)
    base = () if attempt.base == "now" else (claim.message_id,)
    values = (*base, sql.span(attempt.seconds), side, claim.message_id, claim.token)
    if sql.change(db, statement, *values) != 1:
        raise LeaseLost(claim.message_id)
    status, text = EventStatus.SCHEDULED.value, error[:ERROR_CHARS_MAX]
    sql.change(db, statements.mark_scheduled_again(table), status, int(counts), text, claim.message_id)


def mark_failed(
    db: Connection,
    sql: SqlDialect,
    side: int,
    claim: Claim,
    error: str,
    retention_s: float,
    *,
    counts: bool = True,
    parks: bool = False,
    content: str | None = None,
) -> None:
    """Move a message to Failed. With `parks` no retry round picks it up; `content` replaces the stored content."""
    _delete_claimed(db, sql, side, claim)
    sql.change(
        db,
        statements.mark_failed(sql, message_table(sql, side)),
        EventStatus.FAILED.value,
        int(counts),
        error[:ERROR_CHARS_MAX],
        int(parks),
        content,
        sql.span(retention_s),
        claim.message_id,
    )


def release_claims(db: Connection, sql: SqlDialect, side: int, claims: Sequence[Claim]) -> None:
    """Move messages that were claimed and not finished back to Scheduled, due now. Lost claims are left alone."""
    held = still_claimed(db, sql, side, claims) if claims else []
    if not held:
        return
    numbers = [claim.message_id for claim in held]
    where, values = sql.among('"MessageId"', numbers)
    by_owner, owners = sql.among('"LockedBy"', list({claim.owner for claim in held}))
    sql.change(db, statements.release_claims(sql, where, by_owner), side, *values, *owners)
    if sql.writes_progress_states:
        where, values = sql.among('"Id"', numbers)
        statement = statements.mark_status(message_table(sql, side), where)
        sql.change(db, statement, EventStatus.SCHEDULED.value, *values)


def _delete_claimed(db: Connection, sql: SqlDialect, side: int, claim: Claim) -> None:
    if sql.change(db, statements.delete_claimed(sql), side, claim.message_id, claim.token) != 1:
        raise LeaseLost(claim.message_id)

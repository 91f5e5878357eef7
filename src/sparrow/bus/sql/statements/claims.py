"""Statements that claim due messages under a lease, and renew leases."""

from __future__ import annotations

from sparrow.bus.sql.dialect import SqlDialect

CLAIMED_COLUMNS = '"MessageId", "LockToken", "Crashes", "OrderKey"'
MESSAGE_COLUMNS = '"Id", "Name", "Content", "Added", "Retries", "Rounds"'


def select_due_without_key(sql: SqlDialect, columns: str) -> str:
    """Select due queue rows without a key; values: side, group, limit."""
    return (
        f'SELECT {columns} FROM {sql.names.queue} q WHERE q."MessageType" = ? AND q."Group" = ?'
        f' AND q."OrderKey" IS NULL AND q."NextAt" <= {sql.now} ORDER BY q."NextAt", q."Seq" LIMIT ?'
    )


def select_due_first_of_key(sql: SqlDialect, columns: str) -> str:
    """Select the first queue row of each key, if it is due; values: side, group, limit.

    A join instead of "no earlier one exists", which is quadratic with one hot key.
    """
    return (
        f'SELECT {columns} FROM {sql.names.queue} q JOIN (SELECT MIN("Seq") AS head FROM {sql.names.queue}'
        ' WHERE "MessageType" = ? AND "Group" = ? AND "OrderKey" IS NOT NULL GROUP BY "OrderKey") heads'
        f' ON q."Seq" = heads.head WHERE q."NextAt" <= {sql.now} ORDER BY q."NextAt", q."Seq" LIMIT ?'
    )


def claim_postgresql(sql: SqlDialect, select_due: str) -> str:
    """Claim due rows that no other transaction has locked; values: those of `select_due`, owner, lease."""
    return (
        f"WITH due AS ({select_due} FOR UPDATE OF q SKIP LOCKED)"
        f' UPDATE {sql.names.queue} q SET {_claim(sql, "q.")} FROM due WHERE q."Seq" = due."Seq"'
        ' RETURNING q."MessageId", q."LockToken", q."Crashes", q."OrderKey", q."Seq"'
    )


def claim_sqlite(sql: SqlDialect, select_due: str) -> str:
    """Claim due rows; values: owner, lease, those of `select_due`."""
    return (
        f'UPDATE {sql.names.queue} SET {_claim(sql)} WHERE "Seq" IN ({select_due}) RETURNING {CLAIMED_COLUMNS}, "Seq"'
    )


def claim_mysql(sql: SqlDialect, condition: str) -> str:
    """Claim rows that were selected before; values: owner, lease, those of the condition.

    Without SKIP LOCKED the SELECT has locked nothing, so only rows that are still due are claimed.
    """
    still_due = "" if sql.skips_locked else f' AND "NextAt" <= {sql.now}'
    return f"UPDATE {sql.names.queue} SET {_claim(sql)} WHERE {condition}{still_due}"


def select_claimed_by_owner(sql: SqlDialect, condition: str) -> str:
    """Select which of the rows an owner holds, with their tokens; values: those of the condition, owner."""
    return f'SELECT {CLAIMED_COLUMNS} FROM {sql.names.queue} WHERE {condition} AND "LockedBy" = ? ORDER BY "Seq"'


def select_messages(sql: SqlDialect, table: str, condition: str, *, lock: bool = False) -> str:
    """Select claimed messages; with `lock`, keep them unchanged until they are marked."""
    return f"SELECT {MESSAGE_COLUMNS} FROM {table} WHERE {condition}{' FOR UPDATE' if lock else ''}"


def mark_processing(table: str, condition: str) -> str:
    """Set the status of claimed messages; values: status, those of the condition."""
    return f'UPDATE {table} SET "StatusName" = ? WHERE {condition}'


def mark_processing_returning(table: str, condition: str) -> str:
    """Set the status of claimed messages, and return them."""
    return f"{mark_processing(table, condition)} RETURNING {MESSAGE_COLUMNS}"


def delete_queue_rows(sql: SqlDialect, condition: str) -> str:
    """Delete queue rows of one side; values: side, those of the condition."""
    return f'DELETE FROM {sql.names.queue} WHERE "MessageType" = ? AND {condition}'


def renew_leases(sql: SqlDialect, condition: str) -> str:
    """Extend the leases of one owner; values: lease, side, owner, those of the condition."""
    return f'UPDATE {sql.names.queue} SET "NextAt" = {sql.plus(sql.now)} WHERE {_held_by_owner(condition)}'


def select_held_by_owner(sql: SqlDialect, condition: str) -> str:
    """Select which messages one owner still holds; values: side, owner, those of the condition."""
    return f'SELECT "MessageId" FROM {sql.names.queue} WHERE {_held_by_owner(condition)}'


def _held_by_owner(condition: str) -> str:
    return f'"MessageType" = ? AND "LockedBy" = ? AND {condition}'


def _claim(sql: SqlDialect, q: str = "") -> str:
    # MySQL evaluates from left to right: Crashes must read LockedBy before it is changed.
    return (
        f'"Crashes" = {q}"Crashes" + CASE WHEN {q}"LockedBy" IS NULL THEN 0 ELSE 1 END, "LockedBy" = ?,'
        f' "LockToken" = {q}"LockToken" + 1, "NextAt" = {sql.plus(sql.now)}'
    )

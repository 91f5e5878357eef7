"""Statements that end the attempt at a claimed message; each one checks that the claim still holds."""

from __future__ import annotations

from typing import Literal

from sparrow.bus.sql.dialect import SqlDialect

_OWN_ROW = '"MessageType" = ? AND "MessageId" = ? AND "LockToken" = ?'


def delete_claimed(sql: SqlDialect) -> str:
    """Delete the queue row of a claim; values: side, id, token."""
    return f"DELETE FROM {sql.names.queue} WHERE {_OWN_ROW}"


def delete_claimed_together(sql: SqlDialect, condition: str) -> str:
    """Delete the queue rows of one owner; values: side, owner, those of the condition."""
    return f'DELETE FROM {sql.names.queue} WHERE "MessageType" = ? AND "LockedBy" = ? AND {condition}'


def mark_succeeded(sql: SqlDialect, table: str, condition: str) -> str:
    """Set the status and the time of expiry; values: status, retention, those of the condition."""
    return f'UPDATE {table} SET "StatusName" = ?, "ExpiresAt" = {sql.plus(sql.now)} WHERE {condition}'


def delete_claimed_and_mark_succeeded(sql: SqlDialect, table: str) -> str:
    """PostgreSQL: do both in one round trip; values: side, id, token, status, retention."""
    return (
        f'WITH gone AS ({delete_claimed(sql)} RETURNING "MessageId")'
        f' UPDATE {table} SET "StatusName" = ?, "ExpiresAt" = {sql.plus(sql.now)}'
        ' FROM gone WHERE "Id" = gone."MessageId"'
    )


def reschedule_claimed(sql: SqlDialect, table: str, *, base: Literal["added", "now"], keeps_order: bool) -> str:
    """Release a queue row until its next attempt; values: the id if `base` is "added", the delay, side, id, token.

    Without `keeps_order` the row loses its key, and later messages of the key may overtake it.
    """
    moment = sql.now if base == "now" else f'(SELECT "Added" FROM {table} WHERE "Id" = ?)'
    key = "" if keeps_order else ', "OrderKey" = NULL'
    return f'UPDATE {sql.names.queue} SET "LockedBy" = NULL, "NextAt" = {sql.plus(moment)}{key} WHERE {_OWN_ROW}'


def mark_scheduled_again(table: str) -> str:
    """Count a failed attempt; values: status, attempts to add, error, id."""
    return f'UPDATE {table} SET "StatusName" = ?, "Retries" = "Retries" + ?, "LastError" = ? WHERE "Id" = ?'


def mark_failed(sql: SqlDialect, table: str) -> str:
    """Set Failed; values: status, attempts to add, error, parked, new content or NULL, retention, id."""
    expires = sql.plus('"Added"')
    return (
        f'UPDATE {table} SET "StatusName" = ?, "Retries" = "Retries" + ?, "LastError" = ?, "Parked" = ?,'
        f' "Content" = COALESCE(?, "Content"), "ExpiresAt" = {expires} WHERE "Id" = ?'
    )


def select_owners(sql: SqlDialect, condition: str) -> str:
    """Select who holds the messages; values: side, those of the condition."""
    return f'SELECT "MessageId", "LockedBy" FROM {sql.names.queue} WHERE "MessageType" = ? AND {condition}'


def release_claims(sql: SqlDialect, condition: str, owner_condition: str) -> str:
    """Make claimed rows due now; values: side, those of both conditions."""
    return (
        f'UPDATE {sql.names.queue} SET "LockedBy" = NULL, "NextAt" = {sql.now}'
        f' WHERE "MessageType" = ? AND {condition} AND {owner_condition}'
    )


def mark_status(table: str, condition: str) -> str:
    """Set the status; values: status, those of the condition."""
    return f'UPDATE {table} SET "StatusName" = ? WHERE {condition}'

"""Statements of operator actions: lock messages in a certain state, then change or delete them."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.bus.sql.dialect import SqlDialect


def lock_messages(sql: SqlDialect, table: str, condition: str, statuses: Sequence[str] | None) -> str:
    """Select and lock messages in one of the given states; None means any state."""
    if statuses is not None:
        condition += f' AND "StatusName" IN ({", ".join(repr(status) for status in statuses)})'
    return f'SELECT "Id" FROM {table} WHERE {condition} ORDER BY "Id"{_lock(sql)}'


def lock_unclaimed_queue_rows(sql: SqlDialect, condition: str) -> str:
    """Select and lock queue rows that no worker holds; values: side, those of the condition."""
    return (
        f'SELECT "MessageId" FROM {sql.names.queue} WHERE "MessageType" = ? AND {condition} AND "LockedBy" IS NULL'
        f' ORDER BY "MessageId"{_lock(sql)}'
    )


def lock_queue_rows(sql: SqlDialect, condition: str) -> str:
    """Select and lock queue rows, and whether each is free: unclaimed, or its lease is over."""
    return (
        f'SELECT "MessageId", CASE WHEN "LockedBy" IS NULL OR "NextAt" <= {sql.now} THEN 1 ELSE 0 END'
        f' FROM {sql.names.queue} WHERE "MessageType" = ? AND {condition} ORDER BY "MessageId"{_lock(sql)}'
    )


def delete_queue_rows(sql: SqlDialect, condition: str) -> str:
    """Delete queue rows; values: side, those of the condition."""
    return f'DELETE FROM {sql.names.queue} WHERE "MessageType" = ? AND {condition}'


def make_due_now(sql: SqlDialect, condition: str) -> str:
    """Make queue rows due; values: side, those of the condition."""
    return f'UPDATE {sql.names.queue} SET "NextAt" = {sql.now} WHERE "MessageType" = ? AND {condition}'


def mark_status(table: str, condition: str) -> str:
    """Set the status; values: status, those of the condition."""
    return f'UPDATE {table} SET "StatusName" = ? WHERE {condition}'


def mark_cancelled(sql: SqlDialect, table: str, condition: str) -> str:
    """Set the status and the time of expiry; values: status, retention, those of the condition."""
    return f'UPDATE {table} SET "StatusName" = ?, "ExpiresAt" = {sql.plus(sql.now)} WHERE {condition}'


def delete_messages(table: str, condition: str) -> str:
    return f"DELETE FROM {table} WHERE {condition}"


def mark_parked(table: str, condition: str) -> str:
    """Park or unpark messages; values: 1 or 0, those of the condition."""
    return f'UPDATE {table} SET "Parked" = ? WHERE {condition}'


def _lock(sql: SqlDialect) -> str:
    """Wait for locked rows: with SKIP LOCKED an operator would be told that the message does not exist."""
    return "" if sql.kind == "sqlite" else " FOR UPDATE"

"""Statements on the table of locks. A lock is free if it was not renewed for its time to live."""

from __future__ import annotations

from sparrow.bus.sql.dialect import SqlDialect


def take_or_renew(sql: SqlDialect) -> str:
    """Values: instance, key, instance, minus the time to live."""
    return (
        f'UPDATE {sql.names.lock} SET "Instance" = ?, "LastLockTime" = {sql.now}'
        f' WHERE "Key" = ? AND ("Instance" = ? OR "LastLockTime" < {sql.plus(sql.now)})'
    )


def insert_lock(sql: SqlDialect) -> str:
    """Insert a lock unless it exists; values: key, instance. MySQL reports a duplicate key instead."""
    ignore = "" if sql.kind == "mysql" else " ON CONFLICT DO NOTHING"
    return f'INSERT INTO {sql.names.lock} ("Key", "Instance", "LastLockTime") VALUES (?, ?, {sql.now}){ignore}'


def delete_lock(sql: SqlDialect) -> str:
    """Values: key, instance."""
    return f'DELETE FROM {sql.names.lock} WHERE "Key" = ? AND "Instance" = ?'


def select_held(sql: SqlDialect) -> str:
    """Select the locks that are held and whose key is LIKE the pattern; values: pattern, minus the time to live."""
    return f'SELECT "Key" FROM {sql.names.lock} WHERE "Key" LIKE ? AND "LastLockTime" >= {sql.plus(sql.now)}'

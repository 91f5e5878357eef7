"""What only one process may do at a time, and the numbers that processes are known by.

A row in `lock` names who holds it; it is free when it was not renewed for a while.
"""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import is_duplicate_key

WORKER_LOCK_PREFIX = "worker-"


def acquire(db: Connection, sql: SqlDialect, key: str, instance: str, ttl_s: float) -> bool:
    """Take it or renew it; False when somebody else has it."""
    lock = sql.names.lock
    taken = sql.change(
        db,
        f'UPDATE {lock} SET "Instance" = ?, "LastLockTime" = {sql.now}'
        f' WHERE "Key" = ? AND ("Instance" = ? OR "LastLockTime" < {sql.plus(sql.now)})',
        instance,
        key,
        instance,
        sql.span(-ttl_s),
    )
    if taken:
        return True
    ignoring = "" if sql.kind == "mysql" else " ON CONFLICT DO NOTHING"
    try:
        return bool(
            sql.change(
                db,
                f'INSERT INTO {lock} ("Key", "Instance", "LastLockTime") VALUES (?, ?, {sql.now}){ignoring}',
                key,
                instance,
            )
        )
    except DBAPIError as error:
        if is_duplicate_key(error):
            return False
        raise


def release(db: Connection, sql: SqlDialect, key: str, instance: str) -> None:
    sql.change(db, f'DELETE FROM {sql.names.lock} WHERE "Key" = ? AND "Instance" = ?', key, instance)


def lease_free_worker_number(db: Connection, sql: SqlDialect, instance: str, ttl_s: float, numbers: int) -> int | None:
    """The lowest number that is free, from now on ours; None when all are taken."""
    rows = sql.rows(
        db,
        f'SELECT "Key" FROM {sql.names.lock} WHERE "Key" LIKE ? AND "LastLockTime" >= {sql.plus(sql.now)}',
        f"{WORKER_LOCK_PREFIX}%",
        sql.span(-ttl_s),
    )
    taken = {row[0] for row in rows}
    for number in range(numbers):
        key = f"{WORKER_LOCK_PREFIX}{number}"
        if key not in taken and acquire(db, sql, key, instance, ttl_s):
            return number
    return None

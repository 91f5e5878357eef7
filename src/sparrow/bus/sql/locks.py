"""Locks of the cluster: what only one process may do at a time, and the worker numbers of the processes.

A row in `lock` names its holder. The lock is free if it was not renewed for its time to live.
"""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import is_duplicate_key
from sparrow.bus.sql.statements import locks as statements

WORKER_LOCK_PREFIX = "worker-"


def acquire(db: Connection, sql: SqlDialect, key: str, instance: str, ttl_s: float) -> bool:
    """Take or renew a lock. Return False if another instance holds it."""
    if sql.change(db, statements.take_or_renew(sql), instance, key, instance, sql.span(-ttl_s)):
        return True
    try:
        return bool(sql.change(db, statements.insert_lock(sql), key, instance))
    except DBAPIError as error:
        if is_duplicate_key(error):
            return False
        raise


def release(db: Connection, sql: SqlDialect, key: str, instance: str) -> None:
    """Release a lock, if this instance holds it."""
    sql.change(db, statements.delete_lock(sql), key, instance)


def lease_free_worker_number(db: Connection, sql: SqlDialect, instance: str, ttl_s: float, count: int) -> int | None:
    """Lease the lowest free worker number below `count`, and return it; None if all are taken."""
    taken = {row[0] for row in sql.rows(db, statements.select_held(sql), f"{WORKER_LOCK_PREFIX}%", sql.span(-ttl_s))}
    for number in range(count):
        key = f"{WORKER_LOCK_PREFIX}{number}"
        if key not in taken and acquire(db, sql, key, instance, ttl_s):
            return number
    return None

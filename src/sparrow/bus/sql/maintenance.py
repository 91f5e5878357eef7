"""What is done now and then: a new round for what has failed, cleaning up, and a look for rows that lost each other."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection

from sparrow.bus.sql.claims import message_table
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PUBLISHED_SIDE, RECEIVED_SIDE
from sparrow.bus.states import OPEN_STATUSES, EventStatus

MESSAGE_SIDES = (PUBLISHED_SIDE, RECEIVED_SIDE)
_ORPHAN_AGE_S = 300.0
_OPEN_WORDS = ", ".join(f"'{status.value}'" for status in sorted(OPEN_STATUSES))
_AS_INDEXED = "{m}\"StatusName\" NOT IN ('Successed', 'Succeeded')"
"""Word for word the condition of the index on what has not succeeded: SQLite uses a partial index for nothing else, and
would read the whole table."""


def start_retry_round(
    db: Connection, sql: SqlDialect, side: int, count_max: int, failed_retention_s: float
) -> list[int]:
    """T7: failed ones begin a new round, with all their attempts. Those that failed for good stay as they are."""
    table = message_table(sql, side)
    numbers = [
        row[0]
        for row in sql.rows(
            db,
            f'SELECT "Id" FROM {table} WHERE "StatusName" = ? AND {_AS_INDEXED.format(m="")}'
            f' AND "Parked" = 0 AND "Added" > {sql.plus(sql.now)}'
            f' ORDER BY "Added" LIMIT ?{sql.locking}',
            EventStatus.FAILED.value,
            sql.span(-failed_retention_s),
            count_max,
        )
    ]
    reopen(db, sql, side, numbers)
    return numbers


def reopen(db: Connection, sql: SqlDialect, side: int, numbers: list[int]) -> int:
    """Open these again: Enqueued, no failed attempts, due now. Those that are open already are left as they are."""
    if not numbers:
        return 0
    table, (where, values) = message_table(sql, side), sql.among('m."Id"', numbers)
    group = """CASE WHEN m."Version" = 'v1' THEN '' ELSE m."Version" END""" if side == PUBLISHED_SIDE else 'm."Group"'
    free = f'NOT EXISTS (SELECT 1 FROM {sql.names.queue} q WHERE q."MessageType" = ? AND q."MessageId" = m."Id")'
    opened = sql.change(
        db,
        f'INSERT INTO {sql.names.queue} ("MessageType", "MessageId", "Group", "NextAt", "OrderKey")'
        f' SELECT {side}, m."Id", {group}, {sql.now}, m."OrderKey" FROM {table} m WHERE {where} AND {free}'
        ' ORDER BY m."Id"',
        *values,
        side,
    )
    where, values = sql.among('"Id"', numbers)
    sql.change(
        db,
        f'UPDATE {table} SET "StatusName" = ?, "Retries" = 0, "ExpiresAt" = NULL, "Rounds" = "Rounds" + 1,'
        f' "Parked" = 0 WHERE {where} AND "ExpiresAt" IS NOT NULL',
        EventStatus.ENQUEUED.value,
        *values,
    )
    return opened


class ExpiredRows(NamedTuple):
    columns: list[str]
    rows: list[tuple[Any, ...]]


def expired_ids(db: Connection, sql: SqlDialect, side: int, count_max: int) -> list[int]:
    """Numbers of messages whose time is over, in their order, so that two cleaners never wait in a circle."""
    rows = sql.rows(
        db,
        f'SELECT "Id" FROM {message_table(sql, side)} WHERE "ExpiresAt" < {sql.now} ORDER BY "Id" LIMIT ?{sql.locking}',
        count_max,
    )
    return [row[0] for row in rows]


def read_rows(db: Connection, sql: SqlDialect, side: int, numbers: list[int]) -> ExpiredRows:
    """The whole rows, for an archive."""
    where, values = sql.among('"Id"', numbers)
    result = sql.run(db, f'SELECT * FROM {message_table(sql, side)} WHERE {where} ORDER BY "Id"', *values)
    return ExpiredRows(list(result.keys()), [tuple(row) for row in result])


def delete_expired(db: Connection, sql: SqlDialect, side: int, numbers: list[int]) -> int:
    where, values = sql.among('"Id"', numbers)
    return sql.change(db, f'DELETE FROM {message_table(sql, side)} WHERE {where} AND "ExpiresAt" < {sql.now}', *values)


def delete_expired_inbox_keys(db: Connection, sql: SqlDialect, count_max: int, kept_s: float) -> int:
    """Keys in the inbox that are older than any repeat is expected to be."""
    if sql.is_strict:
        return 0
    inbox = sql.names.inbox
    rows = sql.rows(
        db,
        f'SELECT "Group", "MsgId" FROM {inbox} WHERE "SeenAt" < {sql.plus(sql.now)}'
        f' ORDER BY "Group", "MsgId" LIMIT ?{sql.locking}',
        sql.span(-kept_s),
        count_max,
    )
    for group in sorted({row[0] for row in rows}):
        where, values = sql.among('"MsgId"', [row[1] for row in rows if row[0] == group])
        sql.change(db, f'DELETE FROM {inbox} WHERE "Group" = ? AND {where}', group, *values)
    return len(rows)


def repair_orphans(db: Connection, sql: SqlDialect, side: int) -> tuple[int, int]:
    """Open messages without a queue row get one; queue rows without a message go. Both counts should be 0."""
    table, queue = message_table(sql, side), sql.names.queue
    rows = sql.rows(
        db,
        f'SELECT m."Id" FROM {table} m LEFT JOIN {queue} q ON q."MessageType" = {side} AND q."MessageId" = m."Id"'
        f' WHERE m."StatusName" IN ({_OPEN_WORDS}) AND {_AS_INDEXED.format(m="m.")}'
        f' AND m."Added" < {sql.plus(sql.now)} AND q."Seq" IS NULL LIMIT 1000',
        sql.span(-_ORPHAN_AGE_S),
    )
    lost = [row[0] for row in rows]
    reopen(db, sql, side, lost)
    rows = sql.rows(
        db,
        f'SELECT q."Seq" FROM {queue} q LEFT JOIN {table} m ON m."Id" = q."MessageId"'
        f' WHERE q."MessageType" = {side} AND m."Id" IS NULL LIMIT 1000',
    )
    strays = [row[0] for row in rows]
    if strays:
        where, values = sql.among('"Seq"', strays)
        sql.change(db, f"DELETE FROM {queue} WHERE {where}", *values)
    return len(lost), len(strays)

"""Statements of maintenance: retry rounds, deletion of expired rows, repair of orphaned rows."""

from __future__ import annotations

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PUBLISHED_SIDE
from sparrow.bus.states import OPEN_STATUSES

REPAIR_LIMIT = 1_000
_OPEN = ", ".join(f"'{status.value}'" for status in sorted(OPEN_STATUSES))
_NOT_SUCCEEDED = "{m}\"StatusName\" NOT IN ('Successed', 'Succeeded')"
"""Literally the condition of the partial index on messages that have not succeeded: SQLite uses the index only then."""


def select_failed(sql: SqlDialect, table: str) -> str:
    """Select failed messages that are not parked and not too old; values: status, minus the retention, limit."""
    return (
        f'SELECT "Id" FROM {table} WHERE "StatusName" = ? AND {_NOT_SUCCEEDED.format(m="")}'
        f' AND "Parked" = 0 AND "Added" > {sql.plus(sql.now)} ORDER BY "Added" LIMIT ?{sql.locking}'
    )


def insert_queue_rows(sql: SqlDialect, table: str, side: int, condition: str) -> str:
    """Insert queue rows, due now, for messages that have none; values: those of the condition, side."""
    group = """CASE WHEN m."Version" = 'v1' THEN '' ELSE m."Version" END"""
    if side != PUBLISHED_SIDE:
        group = 'm."Group"'
    return (
        f'INSERT INTO {sql.names.queue} ("MessageType", "MessageId", "Group", "NextAt", "OrderKey")'
        f' SELECT {side}, m."Id", {group}, {sql.now}, m."OrderKey" FROM {table} m WHERE {condition}'
        f' AND NOT EXISTS (SELECT 1 FROM {sql.names.queue} q WHERE q."MessageType" = ? AND q."MessageId" = m."Id")'
        ' ORDER BY m."Id"'
    )


def mark_enqueued_again(table: str, condition: str) -> str:
    """Start a new round for closed messages; values: status, those of the condition."""
    return (
        f'UPDATE {table} SET "StatusName" = ?, "Retries" = 0, "ExpiresAt" = NULL, "Rounds" = "Rounds" + 1,'
        f' "Parked" = 0 WHERE {condition} AND "ExpiresAt" IS NOT NULL'
    )


def select_expired(sql: SqlDialect, table: str) -> str:
    """Select expired messages in the order of their ids, so that two processes cannot deadlock; value: limit."""
    return f'SELECT "Id" FROM {table} WHERE "ExpiresAt" < {sql.now} ORDER BY "Id" LIMIT ?{sql.locking}'


def select_rows(table: str, condition: str) -> str:
    """Select whole rows, for the archive."""
    return f'SELECT * FROM {table} WHERE {condition} ORDER BY "Id"'


def delete_expired(sql: SqlDialect, table: str, condition: str) -> str:
    return f'DELETE FROM {table} WHERE {condition} AND "ExpiresAt" < {sql.now}'


def select_expired_keys(sql: SqlDialect) -> str:
    """Select old keys of the inbox; values: minus the retention, limit."""
    return (
        f'SELECT "Group", "MsgId" FROM {sql.names.inbox} WHERE "SeenAt" < {sql.plus(sql.now)}'
        f' ORDER BY "Group", "MsgId" LIMIT ?{sql.locking}'
    )


def delete_keys(sql: SqlDialect, condition: str) -> str:
    """Delete keys of one group; values: group, those of the condition."""
    return f'DELETE FROM {sql.names.inbox} WHERE "Group" = ? AND {condition}'


def select_open_without_queue_row(sql: SqlDialect, table: str, side: int) -> str:
    """Select open messages without a queue row; value: minus the age from which a message counts as orphaned."""
    return (
        f'SELECT m."Id" FROM {table} m LEFT JOIN {sql.names.queue} q'
        f' ON q."MessageType" = {side} AND q."MessageId" = m."Id"'
        f' WHERE m."StatusName" IN ({_OPEN}) AND {_NOT_SUCCEEDED.format(m="m.")}'
        f' AND m."Added" < {sql.plus(sql.now)} AND q."Seq" IS NULL LIMIT {REPAIR_LIMIT}'
    )


def select_queue_without_message(sql: SqlDialect, table: str, side: int) -> str:
    """Select queue rows whose message is gone."""
    return (
        f'SELECT q."Seq" FROM {sql.names.queue} q LEFT JOIN {table} m ON m."Id" = q."MessageId"'
        f' WHERE q."MessageType" = {side} AND m."Id" IS NULL LIMIT {REPAIR_LIMIT}'
    )


def delete_queue_rows(sql: SqlDialect, condition: str) -> str:
    return f"DELETE FROM {sql.names.queue} WHERE {condition}"

"""Queries for stored messages.

1. Pages go by id, the newest first: page 1,000 costs the same as the first.
2. Open messages are found through Queue, failed and cancelled ones through the index on what has not succeeded: these
   queries do not depend on how many messages have succeeded.
3. No other column has an index: names and content are searched from the newest message back.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from sparrow.bus.codec import headers as h
from sparrow.bus.operations.stored_event import ANY_OPEN_STATUS, StoredEvent, Where, split_content
from sparrow.bus.sql.claims import message_table
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PUBLISHED_SIDE, RECEIVED_SIDE
from sparrow.bus.states import SUCCEEDED_SPELLINGS, EventStatus
from sparrow.bus.telemetry.probe import Side

_NUMBERS: dict[Side, int] = {"published": PUBLISHED_SIDE, "received": RECEIVED_SIDE}
_SUCCEEDED = ", ".join(f"'{status_name}'" for status_name in SUCCEEDED_SPELLINGS)
NOT_SUCCEEDED_CONDITION = f'm."StatusName" NOT IN ({_SUCCEEDED})'
"""Literally the condition of the partial index: SQLite uses the index only then."""


def message_type(side: Side) -> int:
    """Return Queue.MessageType of a side."""
    return _NUMBERS[side]


class EventSelection(NamedTuple):
    """The end of a SELECT, from FROM on."""

    tables: str
    conditions: list[str]
    values: list[Any]
    number: str
    """The column for paging."""
    has_queue: bool

    @property
    def text(self) -> str:
        return f"FROM {self.tables} WHERE {' AND '.join(self.conditions) or '1 = 1'}"


def select_events(sql: SqlDialect, side: int, where: Where) -> EventSelection:
    """Return the FROM and WHERE clauses for a filter, reading the smaller table first."""
    table, queue, status = message_table(sql, side), sql.names.queue, where.status
    conditions: list[str] = []
    values: list[Any] = []
    if status == ANY_OPEN_STATUS or (isinstance(status, EventStatus) and status.is_open):
        tables, number, has_queue = f"{queue} q CROSS JOIN {table} m", 'q."MessageId"', True
        conditions += [f'q."MessageType" = {side}', 'm."Id" = q."MessageId"']
        if status is EventStatus.PROCESSING:
            conditions.append('q."LockedBy" IS NOT NULL')
        elif isinstance(status, EventStatus):
            conditions += ['q."LockedBy" IS NULL', f"m.\"StatusName\" = '{status.value}'"]
    elif status is EventStatus.SUCCESSED:
        tables, number, has_queue = f"{table} m", 'm."Id"', False
        conditions.append(f'm."StatusName" IN ({_SUCCEEDED})')
    elif isinstance(status, EventStatus):
        # "+ 0" prevents MySQL from scanning the whole table by primary key in search of rare rows.
        tables, number, has_queue = f"{table} m", 'm."Id" + 0', False
        conditions += [f"m.\"StatusName\" = '{status.value}'", NOT_SUCCEEDED_CONDITION]
    else:
        tables, number, has_queue = f"{table} m", 'm."Id"', False
    for condition, value in _conditions(sql, side, where):
        conditions.append(condition)
        values += [value] if condition.count("?") else []
    return EventSelection(tables, conditions, values, number, has_queue)


def _conditions(sql: SqlDialect, side: int, where: Where) -> list[tuple[str, Any]]:
    conditions_and_values: list[tuple[str, Any]] = []
    exact = (('m."Name"', where.name), ('m."OrderKey"', where.key))
    conditions_and_values += [(f"{column} = ?", value) for column, value in exact if value is not None]
    if where.group is not None:
        conditions_and_values.append(('m."Group" = ?', where.group) if side == RECEIVED_SIDE else ("1 = 0", None))
    if where.message_id is not None:
        if side == RECEIVED_SIDE:
            conditions_and_values.append(('m."MsgId" = ?', where.message_id))
        else:
            conditions_and_values.append(('m."Id" = ?', _as_number(where.message_id)))
    pieces = [('m."Content"', where.content), ('m."LastError"', where.error)]
    for name, value in ((h.CORRELATION_ID, where.correlation_id), (h.TENANT, where.tenant)):
        if value is not None:
            pieces.append(('m."Content"', f'"{name}":{msgspec.json.encode(value).decode()}'))
    conditions_and_values += [(_contains(sql, column), piece) for column, piece in pieces if piece is not None]
    if where.added_since is not None:
        conditions_and_values.append(('m."Added" >= ?', sql.to_time(_in_utc(where.added_since))))
    if where.added_until is not None:
        conditions_and_values.append(('m."Added" < ?', sql.to_time(_in_utc(where.added_until))))
    if where.parked is not None:
        conditions_and_values.append((f'm."Parked" = {int(where.parked)}', None))
    return conditions_and_values


def find(
    db: Connection, sql: SqlDialect, side: Side, where: Where, *, limit: int, before_id: int | None = None
) -> list[StoredEvent]:
    """Return a page of messages, the newest first."""
    chosen = select_events(sql, message_type(side), where)
    if before_id is not None:
        chosen.conditions.append(f"{chosen.number.removesuffix(' + 0')} < ?")
        chosen.values.append(before_id)
    statement = f"SELECT {_columns(side, chosen.has_queue)} {chosen.text} ORDER BY {chosen.number} DESC LIMIT ?"
    events = [_event(sql, side, row) for row in sql.rows(db, statement, *chosen.values, limit)]
    return _live(db, sql, side, events) if where.status is None else events


def _live(db: Connection, sql: SqlDialect, side: Side, events: list[StoredEvent]) -> list[StoredEvent]:
    """Add what Queue knows of the messages.

    Not by a join: in a sudden backlog the planner still takes Queue for small and reads all of it.
    """
    if not events:
        return events
    where, values = sql.among('"MessageId"', [event.id for event in events])
    rows = sql.rows(
        db,
        f'SELECT "MessageId", "NextAt", "LockedBy" FROM {sql.names.queue} WHERE "MessageType" = ? AND {where}',
        message_type(side),
        *values,
    )
    known = {row[0]: (sql.from_time(row[1]), row[2]) for row in rows}
    return [_with_queue(event, *known[event.id]) if event.id in known else event for event in events]


def _with_queue(event: StoredEvent, due_at: datetime, locked_by: str | None) -> StoredEvent:
    status = EventStatus.PROCESSING if locked_by is not None and event.status.is_open else event.status
    return replace(event, due_at=due_at, locked_by=locked_by, status=status)


def get(db: Connection, sql: SqlDialect, side: Side, number: int) -> StoredEvent | None:
    table = message_table(sql, message_type(side))
    rows = sql.rows(db, f'SELECT {_columns(side, False)} FROM {table} m WHERE m."Id" = ?', number)
    found = _live(db, sql, side, [_event(sql, side, row) for row in rows])
    return found[0] if found else None


def count(db: Connection, sql: SqlDialect, side: Side, where: Where, limit: int | None) -> int:
    """Count matching messages, up to a limit."""
    chosen = select_events(sql, message_type(side), where)
    if limit is None:
        return int(sql.rows(db, f"SELECT COUNT(*) {chosen.text}", *chosen.values)[0][0])
    inner = f'SELECT m."Id" {chosen.text} LIMIT ?'
    return int(sql.rows(db, f"SELECT COUNT(*) FROM ({inner}) chosen", *chosen.values, limit)[0][0])


def matching_ids(
    db: Connection, sql: SqlDialect, side: Side, where: Where, *, limit: int, after_id: int = 0
) -> list[int]:
    """Return matching ids, the oldest first, so that messages of one key are queued in their order."""
    chosen = select_events(sql, message_type(side), where)
    chosen.conditions.append(f"{chosen.number.removesuffix(' + 0')} > ?")
    statement = f'SELECT m."Id" {chosen.text} ORDER BY {chosen.number} LIMIT ?'
    return [row[0] for row in sql.rows(db, statement, *chosen.values, after_id, limit)]


def _columns(side: Side, has_queue: bool) -> str:
    names = ("Id", "Version", "Name", "Content", "Retries", "Added", "ExpiresAt", "StatusName", "OrderKey", "Rounds")
    columns = [f'm."{name}"' for name in (*names, "LastError", "Parked")]
    columns += ['q."NextAt"', 'q."LockedBy"'] if has_queue else ["NULL", "NULL"]
    columns += ['m."Group"', 'm."MsgId"'] if side == "received" else ["NULL", "NULL"]
    return ", ".join(columns)


def _event(sql: SqlDialect, side: Side, row: Any) -> StoredEvent:
    number, version, name, content, retries, added, expires, status_name, key, rounds, error, parked = row[:12]
    due_at, locked_by, group, message_id = row[12:]
    headers, value = split_content(content)
    return StoredEvent(
        id=number,
        version=version,
        name=name,
        group=group,
        content=content,
        headers=headers,
        value=value,
        retries=retries,
        added=sql.from_time(added),
        expires_at=None if expires is None else sql.from_time(expires),
        status=EventStatus.PROCESSING if locked_by is not None else EventStatus.of(status_name),
        key=key,
        rounds=rounds,
        error=error,
        parked=bool(parked),
        message_id=message_id if side == "received" else headers.get(h.ID) or str(number),
        due_at=None if due_at is None else sql.from_time(due_at),
        locked_by=locked_by,
    )


def _contains(sql: SqlDialect, column: str) -> str:
    """Return a condition for "contains". Not LIKE: its wildcards and letter case differ between databases."""
    if sql.kind == "postgresql":
        return f"strpos({column}, ?) > 0"
    return f"instr({column}, ?) > 0"


def _as_number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 else -1


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

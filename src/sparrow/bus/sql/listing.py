"""Looking at stored messages, and counting them.

1. Pages go by number, newest first: page 1,000 costs what the first one does.
2. What is open is found through Queue, what has failed or was cancelled through the index on what has not succeeded. So
   neither lists of these nor counts grow with the messages that have succeeded, which are nearly all.
3. How many have succeeded is not counted: it is taken from the database's own estimate of the table's size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection

from sparrow.bus import headers as h
from sparrow.bus.probe import Side
from sparrow.bus.sql.claims import table_of
from sparrow.bus.sql.dialect import Sql
from sparrow.bus.sql.outbox import PUBLISH, SUBSCRIBE
from sparrow.bus.states import OPEN, SUCCEEDED_WORDS, Status
from sparrow.bus.stored import (
    OPEN_WORD,
    Backlog,
    Failures,
    SideStats,
    StoredEvent,
    Total,
    Where,
    parts_of,
)

COUNTED_MAX = 10_000
"""Up to here the rows of a table are counted one by one."""
ERRORS_MAX = 1_000
_ERROR_CHARS = 200
_NUMBERS: dict[Side, int] = {"published": PUBLISH, "received": SUBSCRIBE}
_SUCCEEDED = ", ".join(f"'{word}'" for word in SUCCEEDED_WORDS)
_NOT_SUCCEEDED = f'm."StatusName" NOT IN ({_SUCCEEDED})'
"""Word for word the condition of the index: SQLite uses a partial index for nothing else."""
_DIGITS = re.compile(r"\d+")


def number_of(side: Side) -> int:
    """Queue.MessageType."""
    return _NUMBERS[side]


# -- finding ---------------------------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """The end of a statement, from FROM on."""

    tables: str
    conditions: list[str]
    values: list[Any]
    number: str
    """The column to page by."""
    has_queue: bool

    @property
    def text(self) -> str:
        return f"FROM {self.tables} WHERE {' AND '.join(self.conditions) or '1 = 1'}"


def selection(sql: Sql, side: int, where: Where) -> Selection:
    """Reads the tables in the order in which little is read."""
    table, queue, status = table_of(sql, side), sql.names.queue, where.status
    conditions: list[str] = []
    values: list[Any] = []
    if status == OPEN_WORD or (isinstance(status, Status) and status.is_open):
        tables, number, has_queue = f"{queue} q CROSS JOIN {table} m", 'q."MessageId"', True
        conditions += [f'q."MessageType" = {side}', 'm."Id" = q."MessageId"']
        if status is Status.PROCESSING:
            conditions.append('q."LockedBy" IS NOT NULL')
        elif isinstance(status, Status):
            conditions += ['q."LockedBy" IS NULL', f"m.\"StatusName\" = '{status.value}'"]
    elif status is Status.SUCCESSED:
        tables, number, has_queue = f"{table} m", 'm."Id"', False
        conditions.append(f'm."StatusName" IN ({_SUCCEEDED})')
    elif isinstance(status, Status):
        # "+ 0": else MySQL walks the whole table by its primary key, hoping to meet a few of the rare ones soon.
        tables, number, has_queue = f"{table} m", 'm."Id" + 0', False
        conditions += [f"m.\"StatusName\" = '{status.value}'", _NOT_SUCCEEDED]
    else:
        tables = f'{table} m LEFT JOIN {queue} q ON q."MessageType" = {side} AND q."MessageId" = m."Id"'
        number, has_queue = 'm."Id"', True
    for condition, value in _told(sql, side, where):
        conditions.append(condition)
        values += [value] if condition.count("?") else []
    return Selection(tables, conditions, values, number, has_queue)


def _told(sql: Sql, side: int, where: Where) -> list[tuple[str, Any]]:
    told: list[tuple[str, Any]] = []
    exact = (('m."Name"', where.name), ('m."OrderKey"', where.key))
    told += [(f"{column} = ?", value) for column, value in exact if value is not None]
    if where.group is not None:
        told.append(('m."Group" = ?', where.group) if side == SUBSCRIBE else ("1 = 0", None))
    if where.message_id is not None:
        if side == SUBSCRIBE:
            told.append(('m."MsgId" = ?', where.message_id))
        else:
            told.append(('m."Id" = ?', _as_number(where.message_id)))
    pieces = [('m."Content"', where.content), ('m."LastError"', where.error)]
    for name, value in ((h.CORRELATION_ID, where.correlation_id), (h.TENANT, where.tenant)):
        if value is not None:
            pieces.append(('m."Content"', f'"{name}":{msgspec.json.encode(value).decode()}'))
    told += [(_holds(sql, column), piece) for column, piece in pieces if piece is not None]
    if where.added_since is not None:
        told.append(('m."Added" >= ?', sql.to_time(_in_utc(where.added_since))))
    if where.added_until is not None:
        told.append(('m."Added" < ?', sql.to_time(_in_utc(where.added_until))))
    if where.parked is not None:
        told.append((f'm."Parked" = {int(where.parked)}', None))
    return told


def find(
    db: Connection, sql: Sql, side: Side, where: Where, *, limit: int, before_id: int | None = None
) -> list[StoredEvent]:
    """The newest first; the next page begins before the last one's number."""
    chosen = selection(sql, number_of(side), where)
    if before_id is not None:
        chosen.conditions.append(f"{chosen.number.removesuffix(' + 0')} < ?")
        chosen.values.append(before_id)
    statement = f"SELECT {_columns(side, chosen.has_queue)} {chosen.text} ORDER BY {chosen.number} DESC LIMIT ?"
    return [_event(sql, side, row) for row in sql.rows(db, statement, *chosen.values, limit)]


def get(db: Connection, sql: Sql, side: Side, number: int) -> StoredEvent | None:
    chosen = selection(sql, number_of(side), Where())
    rows = sql.rows(db, f'SELECT {_columns(side, True)} FROM {chosen.tables} WHERE m."Id" = ?', number)
    return _event(sql, side, rows[0]) if rows else None


def count(db: Connection, sql: Sql, side: Side, where: Where, limit: int | None) -> int:
    """How many there are, up to a limit."""
    chosen = selection(sql, number_of(side), where)
    if limit is None:
        return int(sql.rows(db, f"SELECT COUNT(*) {chosen.text}", *chosen.values)[0][0])
    inner = f'SELECT m."Id" {chosen.text} LIMIT ?'
    return int(sql.rows(db, f"SELECT COUNT(*) FROM ({inner}) chosen", *chosen.values, limit)[0][0])


def numbers(db: Connection, sql: Sql, side: Side, where: Where, *, limit: int, after_id: int = 0) -> list[int]:
    """The oldest first: those with one key get back into the queue in their order."""
    chosen = selection(sql, number_of(side), where)
    chosen.conditions.append(f"{chosen.number.removesuffix(' + 0')} > ?")
    statement = f'SELECT m."Id" {chosen.text} ORDER BY {chosen.number} LIMIT ?'
    return [row[0] for row in sql.rows(db, statement, *chosen.values, after_id, limit)]


def _columns(side: Side, has_queue: bool) -> str:
    names = ("Id", "Version", "Name", "Content", "Retries", "Added", "ExpiresAt", "StatusName", "OrderKey", "Rounds")
    columns = [f'm."{name}"' for name in (*names, "LastError", "Parked")]
    columns += ['q."NextAt"', 'q."LockedBy"'] if has_queue else ["NULL", "NULL"]
    columns += ['m."Group"', 'm."MsgId"'] if side == "received" else ["NULL", "NULL"]
    return ", ".join(columns)


def _event(sql: Sql, side: Side, row: Any) -> StoredEvent:
    number, version, name, content, retries, added, expires, word, key, rounds, error, parked, *queue, group, known = row
    due_at, held_by = queue
    headers, value = parts_of(content)
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
        status=Status.PROCESSING if held_by is not None else Status.of(word),
        key=key,
        rounds=rounds,
        error=error,
        parked=bool(parked),
        message_id=known if side == "received" else headers.get(h.ID) or str(number),
        due_at=None if due_at is None else sql.from_time(due_at),
        held_by=held_by,
    )


def _holds(sql: Sql, column: str) -> str:
    """Whether a text has a piece. Not LIKE: its wildcards and its letter case differ from database to database."""
    if sql.kind == "postgresql":
        return f"strpos({column}, ?) > 0"
    return f"instr({column}, ?) > 0"


def _as_number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 else -1


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# -- counting --------------------------------------------------------------------------------------------------------


def stats(db: Connection, sql: Sql, side: Side) -> SideStats:
    """Costs what the open and failed messages cost, whatever else is in the table."""
    by_status, parked = _by_status(db, sql, side)
    return SideStats(
        side=side,
        by_status=by_status,
        parked=parked,
        rows=_rows(db, sql, table_of(sql, number_of(side))),
        oldest_open_s=oldest_open_s(db, sql, side),
        groups=tuple(backlog(db, sql, side)),
    )


def backlog(db: Connection, sql: Sql, side: Side, *, by_name: bool = False) -> list[Backlog]:
    """Open work by group, from Queue alone; by topic too it takes a look at every open message."""
    number, queue = number_of(side), sql.names.queue
    waits = f'q."LockedBy" IS NULL AND q."NextAt" <= {sql.now}'
    tables, names = f"{queue} q", "q.\"Group\", ''"
    if by_name:
        tables, names = f'{queue} q JOIN {table_of(sql, number)} m ON m."Id" = q."MessageId"', 'q."Group", m."Name"'
    rows = sql.rows(
        db,
        f'SELECT {names}, COUNT(*), COUNT(q."LockedBy"), SUM(CASE WHEN {waits} THEN 1 ELSE 0 END),'
        f' MIN(CASE WHEN {waits} THEN q."NextAt" END), {sql.now} FROM {tables}'
        f' WHERE q."MessageType" = {number} GROUP BY {names if by_name else names.partition(",")[0]}',
    )
    found = [
        Backlog(
            side=side,
            group=group,
            name=name if by_name else None,
            open=all_open,
            held=held,
            due=int(due),
            lag_s=0.0 if waiting is None else _seconds(sql, waiting, now),
        )
        for group, name, all_open, held, due, waiting, now in rows
    ]
    return sorted(found, key=lambda each: (-each.open, each.group, each.name or ""))


def oldest_open_s(db: Connection, sql: Sql, side: Side) -> float:
    """By number, which grows with time: one look into an index, not a sort. Those that shall wait are passed over."""
    number = number_of(side)
    rows = sql.rows(
        db,
        f'SELECT m."Added", {sql.now} FROM {sql.names.queue} q CROSS JOIN {table_of(sql, number)} m'
        f' WHERE q."MessageType" = {number} AND m."Id" = q."MessageId" AND m."StatusName" <> \'Delayed\''
        ' ORDER BY q."MessageId" LIMIT 1',
    )
    return _seconds(sql, rows[0][0], rows[0][1]) if rows else 0.0


def failures(db: Connection, sql: Sql, side: Side) -> list[Failures]:
    """What has failed, by kind of error, the most frequent first."""
    group = 'm."Group"' if side == "received" else "''"
    error = f"SUBSTR(m.\"LastError\", 1, {_ERROR_CHARS})"
    grouping = f'{error}, m."Name"' + (', m."Group"' if side == "received" else "")
    rows = sql.rows(
        db,
        f'SELECT {error}, m."Name", {group}, COUNT(*), SUM(m."Parked"), MIN(m."Added"), MAX(m."Added"), MAX(m."Id")'
        f" FROM {table_of(sql, number_of(side))} m WHERE m.\"StatusName\" = 'Failed' AND {_NOT_SUCCEEDED}"
        f" GROUP BY {grouping} ORDER BY COUNT(*) DESC LIMIT {ERRORS_MAX}",
    )
    alike: dict[str, list[Any]] = {}
    for row in rows:
        alike.setdefault(_DIGITS.sub("…", row[0] or ""), []).append(row)
    found = [_failures(sql, side, shape, members) for shape, members in alike.items()]
    return sorted(found, key=lambda each: (-each.count, each.error))


def _failures(sql: Sql, side: Side, error: str, rows: Sequence[Any]) -> Failures:
    return Failures(
        side=side,
        error=error,
        count=sum(row[3] for row in rows),
        parked=sum(int(row[4]) for row in rows),
        names=tuple(sorted({row[1] for row in rows})),
        groups=tuple(sorted({row[2] for row in rows if row[2]})),
        first_added=min(sql.from_time(row[5]) for row in rows),
        last_added=max(sql.from_time(row[6]) for row in rows),
        last_id=max(row[7] for row in rows),
    )


def _by_status(db: Connection, sql: Sql, side: Side) -> tuple[dict[str, int], int]:
    number = number_of(side)
    table = table_of(sql, number)
    found = {status.value: 0 for status in Status if status is not Status.SUCCESSED}
    rows = sql.rows(db, f'SELECT m."StatusName", COUNT(*) FROM {table} m WHERE {_NOT_SUCCEEDED} GROUP BY m."StatusName"')
    for word, how_many in rows:
        found[Status.of(word).value] += how_many
    # What is held is Processing, also where that is not written down: a few rows at any time.
    held = sql.rows(
        db,
        f'SELECT m."StatusName", COUNT(*) FROM {sql.names.queue} q JOIN {table} m ON m."Id" = q."MessageId"'
        f' WHERE q."MessageType" = {number} AND q."LockedBy" IS NOT NULL GROUP BY m."StatusName"',
    )
    for word, how_many in held:
        if Status.of(word) in OPEN:
            found[Status.of(word).value] -= how_many
            found[Status.PROCESSING.value] += how_many
    parked = sql.rows(
        db, f"SELECT COUNT(*) FROM {table} m WHERE m.\"StatusName\" = 'Failed' AND {_NOT_SUCCEEDED} AND m.\"Parked\" = 1"
    )
    return found, int(parked[0][0])


def _rows(db: Connection, sql: Sql, table: str) -> Total:
    """Exactly while they are few; then what the database keeps for its planner."""
    counted = int(sql.rows(db, f"SELECT COUNT(*) FROM (SELECT 1 FROM {table} LIMIT {COUNTED_MAX}) some")[0][0])
    if counted < COUNTED_MAX:
        return Total(counted)
    return Total(max(_estimated(db, sql, table), counted), is_exact=False)


def _estimated(db: Connection, sql: Sql, table: str) -> int:
    if sql.kind == "postgresql":
        rows = sql.rows(db, "SELECT CAST(reltuples AS bigint) FROM pg_class WHERE oid = CAST(CAST(? AS text) AS regclass)", table)
    elif sql.kind == "mysql":
        rows = sql.rows(
            db,
            "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?",
            table.strip('"'),
        )
    else:
        if not sql.rows(db, "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"):
            return 0  # nobody has run ANALYZE
        rows = sql.rows(db, "SELECT MAX(CAST(stat AS INTEGER)) FROM sqlite_stat1 WHERE tbl = ?", table.strip('"'))
    return int(rows[0][0] or 0) if rows else 0


def _seconds(sql: Sql, earlier: Any, later: Any) -> float:
    return max(0.0, (sql.from_time(later) - sql.from_time(earlier)).total_seconds())

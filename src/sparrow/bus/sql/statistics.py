"""Counting stored messages by state and group, cheap enough to run every second.

1. Open messages are counted in Queue, failed and cancelled ones in the index on what has not succeeded. Neither grows
   with the messages that have succeeded, which are nearly all.
2. Messages that have succeeded are not counted: their number is that of all rows minus the others. For large tables
   the number of rows is the database's own estimate. `BusProbe` counts exactly what one process has done.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sparrow.bus.operations.stored_event import FailureSummary, GroupBacklog, RowCount, TableStats
from sparrow.bus.sql.claims import message_table
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.stored_events import NOT_SUCCEEDED_CONDITION, message_type
from sparrow.bus.states import OPEN_STATUSES, EventStatus
from sparrow.bus.telemetry.probe import Side

EXACT_COUNT_MAX = 10_000
"""Up to here the rows of a table are counted exactly."""
ERROR_KINDS_MAX = 1_000
_ERROR_CHARS = 200
_DIGITS = re.compile(r"\d+")


def table_stats(db: Connection, sql: SqlDialect, side: Side) -> TableStats:
    """Return the statistics of one side; the cost depends on open and failed messages only."""
    by_status, parked = _by_status(db, sql, side)
    return TableStats(
        side=side,
        by_status=by_status,
        parked=parked,
        rows=_rows(db, sql, message_table(sql, message_type(side))),
        oldest_open_s=oldest_open_s(db, sql, side),
        groups=tuple(backlog(db, sql, side)),
    )


def backlog(db: Connection, sql: SqlDialect, side: Side, *, by_name: bool = False) -> list[GroupBacklog]:
    """Return the open messages by group, from Queue alone; by topic it reads every open message."""
    number, queue = message_type(side), sql.names.queue
    waits = f'q."LockedBy" IS NULL AND q."NextAt" <= {sql.now}'
    tables, names = f"{queue} q", "q.\"Group\", ''"
    if by_name:
        tables, names = (
            f'{queue} q JOIN {message_table(sql, number)} m ON m."Id" = q."MessageId"',
            'q."Group", m."Name"',
        )
    rows = sql.rows(
        db,
        f'SELECT {names}, COUNT(*), COUNT(q."LockedBy"), SUM(CASE WHEN {waits} THEN 1 ELSE 0 END),'
        f' MIN(CASE WHEN {waits} THEN q."NextAt" END), {sql.now} FROM {tables}'
        f' WHERE q."MessageType" = {number} GROUP BY {names if by_name else names.partition(",")[0]}',
    )
    found = [
        GroupBacklog(
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


def oldest_open_s(db: Connection, sql: SqlDialect, side: Side) -> float:
    """Return the age of the oldest open message that is not Delayed.

    By id, which ascends with time: one index lookup instead of a sort.
    """
    number = message_type(side)
    rows = sql.rows(
        db,
        f'SELECT m."Added", {sql.now} FROM {sql.names.queue} q CROSS JOIN {message_table(sql, number)} m'
        f' WHERE q."MessageType" = {number} AND m."Id" = q."MessageId" AND m."StatusName" <> \'Delayed\''
        ' ORDER BY q."MessageId" LIMIT 1',
    )
    return _seconds(sql, rows[0][0], rows[0][1]) if rows else 0.0


def failures(db: Connection, sql: SqlDialect, side: Side) -> list[FailureSummary]:
    """Return failed messages by kind of error, the most frequent first."""
    group = 'm."Group"' if side == "received" else "''"
    error = f'SUBSTR(m."LastError", 1, {_ERROR_CHARS})'
    grouping = f'{error}, m."Name"' + (', m."Group"' if side == "received" else "")
    rows = sql.rows(
        db,
        f'SELECT {error}, m."Name", {group}, COUNT(*), SUM(m."Parked"), MIN(m."Added"), MAX(m."Added"), MAX(m."Id")'
        f" FROM {message_table(sql, message_type(side))} m WHERE m.\"StatusName\" = 'Failed'"
        f" AND {NOT_SUCCEEDED_CONDITION}"
        f" GROUP BY {grouping} ORDER BY COUNT(*) DESC LIMIT {ERROR_KINDS_MAX}",
    )
    alike: dict[str, list[Any]] = {}
    for row in rows:
        alike.setdefault(_DIGITS.sub("…", row[0] or ""), []).append(row)
    found = [_failures(sql, side, shape, members) for shape, members in alike.items()]
    return sorted(found, key=lambda each: (-each.count, each.error))


def _failures(sql: SqlDialect, side: Side, error: str, rows: Sequence[Any]) -> FailureSummary:
    return FailureSummary(
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


def _by_status(db: Connection, sql: SqlDialect, side: Side) -> tuple[dict[str, int], int]:
    number = message_type(side)
    table = message_table(sql, number)
    found = {status.value: 0 for status in EventStatus if status is not EventStatus.SUCCESSED}
    rows = sql.rows(
        db, f'SELECT m."StatusName", COUNT(*) FROM {table} m WHERE {NOT_SUCCEEDED_CONDITION} GROUP BY m."StatusName"'
    )
    for status_name, count in rows:
        found[EventStatus.of(status_name).value] += count
    # A held message is Processing, even if that is not written; there are few.
    held = sql.rows(
        db,
        f'SELECT m."StatusName", COUNT(*) FROM {sql.names.queue} q JOIN {table} m ON m."Id" = q."MessageId"'
        f' WHERE q."MessageType" = {number} AND q."LockedBy" IS NOT NULL GROUP BY m."StatusName"',
    )
    for status_name, count in held:
        if EventStatus.of(status_name) in OPEN_STATUSES:
            found[EventStatus.of(status_name).value] = max(0, found[EventStatus.of(status_name).value] - count)
            found[EventStatus.PROCESSING.value] += count
    return found, count_parked(db, sql, side)


def count_parked(db: Connection, sql: SqlDialect, side: Side) -> int:
    """Count the failed messages that no retry round tries again."""
    table = message_table(sql, message_type(side))
    rows = sql.rows(
        db,
        f"SELECT COUNT(*) FROM {table} m WHERE m.\"StatusName\" = 'Failed' AND {NOT_SUCCEEDED_CONDITION}"
        ' AND m."Parked" = 1',
    )
    return int(rows[0][0])


def _rows(db: Connection, sql: SqlDialect, table: str) -> RowCount:
    """Count exactly up to a limit, then use the database's estimate."""
    counted = int(sql.rows(db, f"SELECT COUNT(*) FROM (SELECT 1 FROM {table} LIMIT {EXACT_COUNT_MAX}) counted")[0][0])
    if counted < EXACT_COUNT_MAX:
        return RowCount(counted)
    return RowCount(max(_estimated(db, sql, table), counted), is_exact=False)


def _estimated(db: Connection, sql: SqlDialect, table: str) -> int:
    if sql.kind == "postgresql":
        rows = sql.rows(
            db, "SELECT CAST(reltuples AS bigint) FROM pg_class WHERE oid = CAST(CAST(? AS text) AS regclass)", table
        )
    elif sql.kind == "mysql":
        rows = sql.rows(
            db,
            "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?",
            table.strip('"'),
        )
    else:
        if not sql.rows(db, "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"):
            return 0  # ANALYZE has never run
        rows = sql.rows(db, "SELECT MAX(CAST(stat AS INTEGER)) FROM sqlite_stat1 WHERE tbl = ?", table.strip('"'))
    return int(rows[0][0] or 0) if rows else 0


def _seconds(sql: SqlDialect, earlier: Any, later: Any) -> float:
    return max(0.0, (sql.from_time(later) - sql.from_time(earlier)).total_seconds())


def count_due(db: Connection, sql: SqlDialect) -> int:
    """Count the messages that are held or could be claimed; of one key only the first."""
    queue = sql.names.queue
    heads = f'SELECT MIN("Seq") FROM {queue} WHERE "OrderKey" IS NOT NULL GROUP BY "MessageType", "Group", "OrderKey"'
    [row] = sql.rows(
        db,
        f'SELECT COUNT(*) FROM {queue} WHERE "LockedBy" IS NOT NULL'
        f' OR ("NextAt" <= {sql.now} AND ("OrderKey" IS NULL OR "Seq" IN ({heads})))',
    )
    return int(row[0])

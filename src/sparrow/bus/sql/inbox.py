"""Storing what came from a broker: each message once for a group, however often it is delivered.

Only what is committed here is acknowledged to the broker; from then on the message is the database's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sparrow.bus.sql.completion import ERROR_CHARS_MAX
from sparrow.bus.sql.database import TransactionConflict
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import RECEIVED_SIDE, is_duplicate_key, row_batches
from sparrow.bus.states import EventStatus

_ROWS_A_STATEMENT = 50


class ReceivedRow(NamedTuple):
    id: int
    name: str
    group: str
    content: str
    message_id: str
    """What it is known by; `MsgId`."""
    dedupe_key: str | None
    """What a repeat has in common with it; None: repeats are welcome."""
    order_key: str | None = None
    error: str | None = None
    """It cannot be handled at all, and this is why."""


def store_received(
    db: Connection, sql: SqlDialect, arrivals: Sequence[ReceivedRow], version: str, failed_retention_s: float
) -> list[ReceivedRow]:
    """Those that were not there before, now stored and, unless they cannot be handled, queued."""
    fresh: list[ReceivedRow] = []
    for some in row_batches(arrivals, _ROWS_A_STATEMENT):
        new = some if sql.is_strict else _unseen(db, sql, some)
        if new:
            fresh += _insert(db, sql, new, version, failed_retention_s)
    return fresh


def _unseen(db: Connection, sql: SqlDialect, arrivals: Sequence[ReceivedRow]) -> list[ReceivedRow]:
    """Note their keys; those whose key was not there. Two with one key in the same lot are one."""
    once: dict[tuple[str, str], ReceivedRow] = {}
    welcome = []
    for arrival in arrivals:
        if arrival.dedupe_key is None:
            welcome.append(arrival)
        else:
            once.setdefault((arrival.group, arrival.dedupe_key), arrival)
    if not once:
        return welcome
    # In the order of the key: two receivers that store the same messages do not wait for each other in a circle.
    keyed = [arrival for _, arrival in sorted(once.items())]
    if sql.kind == "mysql":
        new = _noted_mysql(db, sql, keyed)
    else:
        statement, values = _note(sql, keyed)
        rows = sql.rows(db, f'{statement} ON CONFLICT DO NOTHING RETURNING "Group", "MsgId"', *values)
        noted = {(row[0], row[1]) for row in rows}
        new = [arrival for arrival in keyed if (arrival.group, arrival.dedupe_key) in noted]
    new_ids = {arrival.id for arrival in new + welcome}
    return [arrival for arrival in arrivals if arrival.id in new_ids]


def _noted_mysql(db: Connection, sql: SqlDialect, keyed: list[ReceivedRow]) -> list[ReceivedRow]:
    """Looks first, as MySQL does not say which rows an insert passed over."""
    where, keys = sql.among('"MsgId"', [arrival.dedupe_key for arrival in keyed])
    groups, names = sql.among('"Group"', list({arrival.group for arrival in keyed}))
    rows = sql.rows(db, f'SELECT "Group", "MsgId" FROM {sql.names.inbox} WHERE {groups} AND {where}', *names, *keys)
    seen = {(row[0], row[1]) for row in rows}
    unseen = [arrival for arrival in keyed if (arrival.group, arrival.dedupe_key) not in seen]
    if not unseen:
        return []
    statement, values = _note(sql, unseen)
    try:
        sql.change(db, statement, *values)
    except DBAPIError as error:
        if is_duplicate_key(error):  # another receiver stored one of them since we looked: now it can be seen
            raise TransactionConflict from error
        raise
    return unseen


def _note(sql: SqlDialect, arrivals: Sequence[ReceivedRow]) -> tuple[str, list[Any]]:
    rows = ", ".join([f"(?, ?, {sql.now})"] * len(arrivals))
    values = [value for arrival in arrivals for value in (arrival.group, arrival.dedupe_key)]
    return f'INSERT INTO {sql.names.inbox} ("Group", "MsgId", "SeenAt") VALUES {rows}', values


def _insert(
    db: Connection, sql: SqlDialect, arrivals: Sequence[ReceivedRow], version: str, failed_retention_s: float
) -> Sequence[ReceivedRow]:
    now, columns = sql.now, '"Id", "Version", "Name", "Group", "Content", "Added", "ExpiresAt", "StatusName",'
    columns += ' "OrderKey", "LastError", "Parked", "MsgId"'
    rows, values = [], []
    for arrival in arrivals:
        expires = "NULL" if arrival.error is None else sql.plus(now)
        rows.append(f"(?, ?, ?, ?, ?, {now}, {expires}, ?, ?, ?, ?, ?)")
        values += [arrival.id, version, arrival.name, arrival.group, arrival.content]
        if arrival.error is not None:
            values.append(sql.span(failed_retention_s))
        failed = arrival.error is not None
        values += [(EventStatus.FAILED if failed else EventStatus.SCHEDULED).value, arrival.order_key]
        values += [None if arrival.error is None else arrival.error[:ERROR_CHARS_MAX], int(failed), arrival.message_id]
    statement = f"INSERT INTO {sql.names.received} ({columns}) VALUES {', '.join(rows)}"
    if sql.is_strict:
        arrivals = _insert_strictly(db, sql, statement, values, arrivals)
    else:
        sql.change(db, statement, *values)
    open_ones = [arrival for arrival in arrivals if arrival.error is None]
    if open_ones:
        sql.change(
            db,
            f'INSERT INTO {sql.names.queue} ("MessageType", "MessageId", "Group", "NextAt", "OrderKey") VALUES '
            + ", ".join([f"({RECEIVED_SIDE}, ?, ?, {now}, ?)"] * len(open_ones)),
            *[value for one in open_ones for value in (one.id, one.group, one.order_key)],
        )
    return arrivals


def _insert_strictly(
    db: Connection, sql: SqlDialect, statement: str, values: list[Any], arrivals: Sequence[ReceivedRow]
) -> Sequence[ReceivedRow]:
    """The unique key of Received itself drops repeats; which rows are there with our numbers tells the new ones."""
    if sql.kind == "mysql":
        sql.change(db, statement + ' ON DUPLICATE KEY UPDATE "Id" = "Id"', *values)
    else:
        sql.change(db, statement + " ON CONFLICT DO NOTHING", *values)
    where, numbers = sql.among('"Id"', [arrival.id for arrival in arrivals])
    rows = sql.rows(db, f'SELECT "Id" FROM {sql.names.received} WHERE {where}', *numbers)
    there = {row[0] for row in rows}
    return [arrival for arrival in arrivals if arrival.id in there]

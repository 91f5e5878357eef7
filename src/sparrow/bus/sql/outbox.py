"""Writing events into the caller's transaction: one row in Published and one in Queue, and never a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.states import EventStatus

PUBLISHED_SIDE = 0
RECEIVED_SIDE = 1
"""Queue.MessageType."""

ExecuteStatement = Callable[[str, Sequence[Any]], int]
"""Executes a statement in the driver's own style, and says how many rows it touched."""

_ROWS_A_STATEMENT = 100
"""With seven values each, below the 999 that an old SQLite takes."""


_ROWS_AS_JSON = 10_000
_CHARS_A_STATEMENT = 1_000_000


class PublishedRow(NamedTuple):
    id: int
    name: str
    content: str
    key: str | None = None
    delay_s: float | None = None
    """None: at once."""

    @property
    def status(self) -> EventStatus:
        return EventStatus.SCHEDULED if self.delay_s is None else EventStatus.DELAYED


def insert_event(run: ExecuteStatement, sql: SqlDialect, event: PublishedRow, version: str) -> bool:
    """False when the id is taken: nothing was written, the transaction is whole, take another one."""
    lane, later = _literal(outgoing_group(version)), event.delay_s is not None
    due = sql.plus(sql.now) if later else sql.now
    span = (sql.span(event.delay_s),) if event.delay_s is not None else ()
    row = (event.id, version, event.name, event.content, event.status.value, event.key)
    if sql.kind == "postgresql":  # both in one round trip
        statement = (
            f"WITH new AS ({_into_published(sql)} VALUES (?, ?, ?, ?, {sql.now}, ?, ?)"
            f' ON CONFLICT DO NOTHING RETURNING "Id", "OrderKey") {_into_queue(sql)}'
            f' SELECT 0, {lane}, "Id", {due}, "OrderKey" FROM new'
        )
        return run(sql.text(statement), row + span) == 1
    conflict = " ON CONFLICT DO NOTHING" if sql.kind == "sqlite" else ""
    try:
        done = run(sql.text(f"{_into_published(sql)} VALUES (?, ?, ?, ?, {sql.now}, ?, ?){conflict}"), row)
    except Exception as error:
        if is_duplicate_key(error):
            return False  # MySQL undoes the statement, and nothing else
        raise
    if not done:
        return False
    run(sql.text(f"{_into_queue(sql)} VALUES (0, {lane}, ?, {due}, ?)"), (event.id, *span, event.key))
    return True


def insert_events(run: ExecuteStatement, sql: SqlDialect, events: Sequence[PublishedRow], version: str) -> None:
    """One statement for PostgreSQL, two for every hundred rows elsewhere."""
    if sql.kind == "postgresql":
        for some in row_batches(events, _ROWS_AS_JSON):
            _insert_as_json(run, sql, some, version)
        return
    into_published, into_queue, now = _into_published(sql), _into_queue(sql), sql.now
    lane = _literal(outgoing_group(version))
    for some in row_batches(events, _ROWS_A_STATEMENT):
        wide = [value for e in some for value in (e.id, version, e.name, e.content, e.status.value, e.key)]
        run(sql.text(f"{into_published} VALUES {_rows(f'(?, ?, ?, ?, {now}, ?, ?)', len(some))}"), wide)
        narrow: list[Any] = []
        places = []
        for event in some:
            narrow.append(event.id)
            if event.delay_s is None:
                places.append(f"(0, {lane}, ?, {now}, ?)")
            else:
                places.append(f"(0, {lane}, ?, {sql.plus(now)}, ?)")
                narrow.append(sql.span(event.delay_s))
            narrow.append(event.key)
        run(sql.text(f"{into_queue} VALUES {', '.join(places)}"), narrow)


class _Row(msgspec.Struct):
    id: int
    name: str
    content: str
    word: str
    key: str | None
    delay: float
    place: int


def _insert_as_json(run: ExecuteStatement, sql: SqlDialect, events: Sequence[PublishedRow], version: str) -> None:
    """Both tables in one statement with one value: drivers are slow with many."""
    rows = [
        _Row(e.id, e.name, e.content, e.status.value, e.key, e.delay_s or 0.0, place) for place, e in enumerate(events)
    ]
    run(
        sql.text(
            "WITH new AS (SELECT * FROM json_to_recordset(CAST(? AS json)) AS row"
            " (id bigint, name text, content text, word text, key text, delay float8, place int)), published AS ("
            f"{_into_published(sql)} SELECT id, CAST(? AS text), name, content, {sql.now}, word, key FROM new)"
            # Seq is the order in which those with one key are handled: it is handed out in the order given.
            f" {_into_queue(sql)} SELECT 0, {_literal(outgoing_group(version))}, id,"
            f" {sql.now} + delay * interval '1 second', key FROM new ORDER BY place"
        ),
        (msgspec.json.encode(rows).decode(), version),
    )


class _Sized(Protocol):
    @property
    def content(self) -> str: ...


S = TypeVar("S", bound=_Sized)


def row_batches(rows: Sequence[S], count_max: int) -> Iterator[Sequence[S]]:
    """As many as a statement may hold: servers refuse one that is too long."""
    lot: list[S] = []
    chars = 0
    for row in rows:
        chars += len(row.content)
        if lot and (len(lot) == count_max or chars > _CHARS_A_STATEMENT):
            yield lot
            lot, chars = [], len(row.content)
        lot.append(row)
    if lot:
        yield lot


def outgoing_group(version: str) -> str:
    """What stands in Queue.Group for events to be sent: the relays of another version leave them alone."""
    return "" if version == "v1" else version


def _literal(word: str) -> str:
    assert not set(word) & set("'\\"), "the settings have checked it"
    return f"'{word}'"


def is_duplicate_key(error: BaseException) -> bool:
    """Whether a driver says that a unique key is there already."""
    original = getattr(error, "orig", None) or error
    code = original.args[0] if original.args else None
    return code == 1062 or getattr(original, "sqlstate", None) == "23505" or "UNIQUE constraint failed" in str(original)


def _into_published(sql: SqlDialect) -> str:
    return f'INSERT INTO {sql.names.published} ("Id", "Version", "Name", "Content", "Added", "StatusName", "OrderKey")'


def _into_queue(sql: SqlDialect) -> str:
    return f'INSERT INTO {sql.names.queue} ("MessageType", "Group", "MessageId", "NextAt", "OrderKey")'


def _rows(row: str, count: int) -> str:
    return ", ".join([row] * count)

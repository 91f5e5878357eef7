"""Inserting events into the caller's transaction: one row in Published and one in Queue, without a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.statements import outbox as statements
from sparrow.bus.states import EventStatus

PUBLISHED_SIDE = 0
RECEIVED_SIDE = 1
"""Values of Queue.MessageType."""

ExecuteStatement = Callable[[str, Sequence[Any]], int]
"""Executes a statement in the driver's own notation, and returns the number of rows it affected."""

_ROWS_PER_STATEMENT = 100
"""With seven values each this stays below the 999 values that an old SQLite accepts."""
_ROWS_PER_JSON = 10_000
_CHARS_PER_STATEMENT = 1_000_000


class PublishedRow(NamedTuple):
    """An event, encoded for the table Published."""

    id: int
    name: str
    content: str
    key: str | None = None
    delay_s: float | None = None
    """None: send it at once."""

    @property
    def status(self) -> EventStatus:
        return EventStatus.SCHEDULED if self.delay_s is None else EventStatus.DELAYED


def insert_event(run: ExecuteStatement, sql: SqlDialect, event: PublishedRow, version: str) -> bool:
    """Insert an event. Return False if its id is taken: then nothing was written and the transaction goes on."""
    group, is_delayed = outgoing_group(version), event.delay_s is not None
    delay = (sql.span(event.delay_s),) if event.delay_s is not None else ()
    row = (event.id, version, event.name, event.content, event.status.value, event.key)
    if sql.kind == "postgresql":
        return run(sql.text(statements.insert_both(sql, group, is_delayed=is_delayed)), row + delay) == 1
    try:
        inserted = run(sql.text(statements.insert_published_unless_taken(sql)), row)
    except Exception as error:
        if is_duplicate_key(error):
            return False  # MySQL rolls back the statement, not the transaction
        raise
    if not inserted:
        return False
    run(sql.text(statements.insert_queue(sql, group, [is_delayed])), (event.id, *delay, event.key))
    return True


def insert_events(run: ExecuteStatement, sql: SqlDialect, events: Sequence[PublishedRow], version: str) -> None:
    """Insert many events: one statement on PostgreSQL, two per hundred rows elsewhere."""
    if sql.kind == "postgresql":
        for batch in row_batches(events, _ROWS_PER_JSON):
            _insert_as_json(run, sql, batch, version)
        return
    group = outgoing_group(version)
    for batch in row_batches(events, _ROWS_PER_STATEMENT):
        published = [value for e in batch for value in (e.id, version, e.name, e.content, e.status.value, e.key)]
        run(sql.text(statements.insert_published(sql, len(batch))), published)
        queue: list[Any] = []
        for event in batch:
            queue.append(event.id)
            if event.delay_s is not None:
                queue.append(sql.span(event.delay_s))
            queue.append(event.key)
        are_delayed = [event.delay_s is not None for event in batch]
        run(sql.text(statements.insert_queue(sql, group, are_delayed)), queue)


class _JsonRow(msgspec.Struct):
    id: int
    name: str
    content: str
    status: str
    key: str | None
    delay: float
    ordinal: int


def _insert_as_json(run: ExecuteStatement, sql: SqlDialect, events: Sequence[PublishedRow], version: str) -> None:
    rows = [
        _JsonRow(e.id, e.name, e.content, e.status.value, e.key, e.delay_s or 0.0, ordinal)
        for ordinal, e in enumerate(events)
    ]
    statement = statements.insert_both_from_json(sql, outgoing_group(version))
    run(sql.text(statement), (msgspec.json.encode(rows).decode(), version))


class _Sized(Protocol):
    @property
    def content(self) -> str: ...


S = TypeVar("S", bound=_Sized)


def row_batches(rows: Sequence[S], count_max: int) -> Iterator[Sequence[S]]:
    """Split rows into batches for one statement each; servers refuse statements that are too long."""
    batch: list[S] = []
    chars = 0
    for row in rows:
        chars += len(row.content)
        if batch and (len(batch) == count_max or chars > _CHARS_PER_STATEMENT):
            yield batch
            batch, chars = [], len(row.content)
        batch.append(row)
    if batch:
        yield batch


def outgoing_group(version: str) -> str:
    """Return Queue.Group for events to be sent. Relays of another version have another group."""
    return "" if version == "v1" else version


def is_duplicate_key(error: BaseException) -> bool:
    """Return whether a driver reports a duplicate key."""
    original = getattr(error, "orig", None) or error
    code = original.args[0] if original.args else None
    return code == 1062 or getattr(original, "sqlstate", None) == "23505" or "UNIQUE constraint failed" in str(original)

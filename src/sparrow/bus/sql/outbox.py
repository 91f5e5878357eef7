"""Writing events into the caller's transaction: one row in Published and one in Queue, and never a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from sparrow.bus.sql.dialect import Sql
from sparrow.bus.states import Status

PUBLISH = 0
SUBSCRIBE = 1
"""Queue.MessageType."""

Run = Callable[[str, Sequence[Any]], int]
"""Executes a statement in the driver's own style, and says how many rows it touched."""

_ROWS_A_STATEMENT = 100
"""With seven values each, below the 999 that an old SQLite takes."""


_CHARS_A_STATEMENT = 1_000_000


class NewEvent(NamedTuple):
    id: int
    name: str
    content: str
    key: str | None = None
    delay_s: float | None = None
    """None: at once."""

    @property
    def status(self) -> Status:
        return Status.SCHEDULED if self.delay_s is None else Status.DELAYED


def insert(run: Run, sql: Sql, event: NewEvent, version: str) -> bool:
    """False when the id is taken: nothing was written, the transaction is whole, take another one."""
    lane, later = _literal(lane_of(version)), event.delay_s is not None
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
        if is_duplicate(error):
            return False  # MySQL undoes the statement, and nothing else
        raise
    if not done:
        return False
    run(sql.text(f"{_into_queue(sql)} VALUES (0, {lane}, ?, {due}, ?)"), (event.id, *span, event.key))
    return True


def insert_many(run: Run, sql: Sql, events: Sequence[NewEvent], version: str) -> None:
    """One statement a table for PostgreSQL, one for every hundred rows elsewhere."""
    if sql.kind == "postgresql":
        _insert_arrays(run, sql, events, version)
        return
    into_published, into_queue, now = _into_published(sql), _into_queue(sql), sql.now
    lane = _literal(lane_of(version))
    for some in lots(events, _ROWS_A_STATEMENT):
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


def _insert_arrays(run: Run, sql: Sql, events: Sequence[NewEvent], version: str) -> None:
    ids, names, contents = [e.id for e in events], [e.name for e in events], [e.content for e in events]
    words, keys = [e.status.value for e in events], [e.key for e in events]
    run(
        sql.text(
            f"{_into_published(sql)} SELECT id, CAST(? AS text), name, content, {sql.now}, word, key"
            " FROM unnest(CAST(? AS bigint[]), CAST(? AS text[]), CAST(? AS text[]), CAST(? AS text[]),"
            " CAST(? AS text[])) AS new (id, name, content, word, key)"
        ),
        (version, ids, names, contents, words, keys),
    )
    # Seq is the order in which those with one key are handled: hand it out in the order given.
    run(
        sql.text(
            f"{_into_queue(sql)} SELECT 0, {_literal(lane_of(version))}, id,"
            f" {sql.now} + delay * interval '1 second', key"
            " FROM unnest(CAST(? AS bigint[]), CAST(? AS float8[]), CAST(? AS text[])) WITH ORDINALITY"
            " AS new (id, delay, key, place) ORDER BY place"
        ),
        (ids, [e.delay_s or 0.0 for e in events], keys),
    )


class _Sized(Protocol):
    @property
    def content(self) -> str: ...


S = TypeVar("S", bound=_Sized)


def lots(rows: Sequence[S], count_max: int) -> Iterator[Sequence[S]]:
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


def lane_of(version: str) -> str:
    """What stands in Queue.Group for events to be sent: the relays of another version leave them alone."""
    return "" if version == "v1" else version


def _literal(word: str) -> str:
    assert not set(word) & set("'\\"), "the settings have checked it"
    return f"'{word}'"


def is_duplicate(error: BaseException) -> bool:
    """Whether a driver says that a unique key is there already."""
    original = getattr(error, "orig", None) or error
    code = original.args[0] if original.args else None
    return code == 1062 or getattr(original, "sqlstate", None) == "23505" or "UNIQUE constraint failed" in str(original)


def _into_published(sql: Sql) -> str:
    return f'INSERT INTO {sql.names.published} ("Id", "Version", "Name", "Content", "Added", "StatusName", "OrderKey")'


def _into_queue(sql: Sql) -> str:
    return f'INSERT INTO {sql.names.queue} ("MessageType", "Group", "MessageId", "NextAt", "OrderKey")'


def _rows(row: str, count: int) -> str:
    return ", ".join([row] * count)

"""Testing with the bus: real tables, a broker in memory, a movable clock, and captured events.

```python
async with TestBus(bus):                        # the application's own bus and handlers, on a broker in memory
    with capture(bus) as published:             # nothing of this is sent
        await client.post("/orders", json={"number": 7})
    assert published.one("order.created").value == {"number": 7}

    await client.post("/orders", json={"number": 8})
    await bus.drain()                           # sent, received, handled
    bus.advance(3600)                           # what is due in an hour is due now
```

Tests use a real database, by default SQLite in a temporary file, because transactions are what they are about. SQLite
in memory does not work: it refuses a second writing connection. pytest also has the fixture `event_bus`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, overload

import msgspec
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from sparrow.bus import aio
from sparrow.bus.api import EventBus
from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.codec.headers import Headers
from sparrow.bus.common import AnyEventBus
from sparrow.bus.context import BusContext
from sparrow.bus.publish.outgoing_event import OutgoingEvent
from sparrow.bus.sql.connections.database import BusDatabase
from sparrow.bus.sql.dialect import BusTableNames
from sparrow.bus.sql.outbox import PublishedRow
from sparrow.bus.transports.memory import MemoryTransport
from sparrow.bus.transports.spi import Envelope, Transport
from sparrow.model.errors import Refused

TEMPORARY_SQLITE = "sqlite://"
"""As a database: SQLite in a temporary file."""


class TestBus:
    """A bus that runs for the length of a block, on a broker inside this process.

    `with` gives a blocking `EventBus`, `async with` one of `sparrow.bus.aio`.
    """

    __test__ = False  # pytest must not collect this class

    def __init__(
        self, bus: AnyEventBus | None = None, *, database: str | Engine | AsyncEngine | None = None, **options: Any
    ) -> None:
        """Run `bus`, which is restored when the block ends, or a new bus made from `options`.

        `database` replaces the database of the bus; `"sqlite://"` is a temporary one, and the default of a new bus.
        """
        if bus is not None and options:
            raise Refused(f"the bus exists already and cannot take the options {', '.join(sorted(options))}")
        self._bus, self._database, self._options = bus, database, options
        self._cleanup = ExitStack()

    def __enter__(self) -> EventBus:
        with self._configured() as bus:
            bus.blocking.start()
            return bus.blocking

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._cleanup:
            assert self._bus is not None
            self._bus.blocking.stop()

    async def __aenter__(self) -> aio.EventBus:
        with self._configured() as bus:
            await bus.aio.start()
            return bus.aio

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._cleanup:
            assert self._bus is not None
            await self._bus.aio.stop()

    @contextmanager
    def _configured(self) -> Iterator[AnyEventBus]:
        """Give the bus its test database and transport; restore it if the start fails."""
        try:
            database = self._database if self._database is not None or self._bus is not None else TEMPORARY_SQLITE
            if database == TEMPORARY_SQLITE:
                folder = tempfile.TemporaryDirectory(prefix="sparrow-bus-", ignore_cleanup_errors=True)
                database = f"sqlite:///{Path(self._cleanup.enter_context(folder)) / 'bus.db'}"
            if self._bus is None:
                assert database is not None
                self._bus = EventBus(database, MemoryTransport(), **self._options)
            else:
                self._cleanup.enter_context(_on_test_database(self._bus, database))
            yield self._bus
        except BaseException:
            self._cleanup.close()
            raise


@contextmanager
def _on_test_database(bus: AnyEventBus, database: str | Engine | AsyncEngine | None) -> Iterator[None]:
    if bus.is_running:
        raise Refused("the bus is running already: pass a bus that is stopped to TestBus")
    core, context = bus.core, bus.core.context
    before = core.database, context.sql, context.transport, core.clock.shift_s
    context.transport = MemoryTransport()
    if database is not None:
        new = BusDatabase(database)
        names = BusTableNames.of(new.kind, bus.settings.space(new.kind))
        core.use_database(new, replace(context.sql, kind=new.kind, paramstyle=new.paramstyle, names=names))
    try:
        yield
    finally:
        old, sql, context.transport, core.clock.shift_s = before
        core.use_database(old, sql)


# -- looking at what was published -------------------------------------------------------------------------------------


class CapturedEvent(NamedTuple):
    """A published event, as a test sees it."""

    id: int
    name: str
    value: Any
    """Decoded JSON: dicts, lists, strings and numbers."""
    headers: Headers


class CapturedEvents(Sequence[CapturedEvent]):
    """The events that were published and committed, in order. Read it after the commit."""

    def __init__(self, context: BusContext, database: BusDatabase, *, is_own: bool) -> None:
        self._context, self._database, self._is_own = context, database, is_own
        self.ids: list[int] = []

    @property
    def names(self) -> list[str]:
        """The names of the events, in order."""
        return [event.name for event in self]

    def one(self, name: str) -> CapturedEvent:
        """Return the only event of that name; an `AssertionError` lists what was published."""
        found = [event for event in self if event.name == name]
        if len(found) != 1:
            raise AssertionError(f"{len(found)} events {name!r} were published; in all: {', '.join(self.names) or '-'}")
        return found[0]

    @overload
    def __getitem__(self, index: int) -> CapturedEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[CapturedEvent]: ...

    def __getitem__(self, index: int | slice) -> CapturedEvent | list[CapturedEvent]:
        return self._read()[index]

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[CapturedEvent]:
        return iter(self._read())

    def __eq__(self, other: object) -> bool:
        return self._read() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CapturedEvents({self._read()!r})"

    def _read(self) -> list[CapturedEvent]:
        """Read with a plain connection: on SQLite a transaction would wait for the one the test has open."""
        if not self.ids:
            return []
        engine = self._database.engine
        sql = self._context.sql_for(self._database.kind, engine.dialect.paramstyle)
        condition, values = sql.among('"Id"', self.ids)
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(
                sql.text(f'SELECT "Id", "Name", "Content" FROM {sql.names.published} WHERE {condition}'), tuple(values)
            )
            rows = {row[0]: row for row in cursor.fetchall()}
            cursor.close()
        finally:
            connection.close()
            if self._is_own:
                engine.dispose()
        return [_event(*rows[number]) for number in self.ids if number in rows]


def _event(number: int, name: str, content: str) -> CapturedEvent:
    headers, body = decode_content(content)
    return CapturedEvent(number, name, msgspec.json.decode(body) if body else None, Headers(headers))


@contextmanager
def capture(bus: AnyEventBus) -> Iterator[CapturedEvents]:
    """Collect the events that the bus publishes inside the block; they are never sent.

    The bus may be running or not. Its tables must exist (`bus.blocking.prepare()` creates them).
    """
    context = bus.core.context
    # A blocking connection even for an asyncio engine: tests can compare without awaiting.
    own = None if bus.database.has_blocking else BusDatabase(bus.database.async_engine.url)
    captured = CapturedEvents(context, own or bus.database, is_own=own is not None)
    event_encoder, gate = context.event_encoder, context.transport
    if not isinstance(gate, _CapturingTransport):
        gate = _CapturingTransport(gate)
    context.event_encoder, context.transport = _CapturingEncoder(event_encoder, captured.ids, gate.held), gate  # type: ignore[assignment]
    try:
        yield captured
    finally:
        context.event_encoder = event_encoder


class _CapturingEncoder:
    """An encoder that notes the id before anything is written: right after the write the event may be sent."""

    def __init__(self, inner: Any, ids: list[int], held: set[str]) -> None:
        self._inner, self._ids, self._held = inner, ids, held

    def encode(self, event: OutgoingEvent, number: int | None = None) -> PublishedRow:
        new: PublishedRow = self._inner.encode(event, number)
        self._ids.append(new.id)
        self._held.add(str(new.id))
        return new

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _CapturingTransport:
    """A transport that acknowledges captured events without sending them."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.held: set[str] = set()

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        passing = [envelope for envelope in envelopes if envelope.id not in self.held]
        answers = iter(await self._inner.send(passing) if passing else ())
        return [None if envelope.id in self.held else next(answers) for envelope in envelopes]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

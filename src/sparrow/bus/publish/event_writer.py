"""Writing events into a transaction: the caller's, the bound one, or a short one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session

from sparrow.bus.context import BusContext
from sparrow.bus.errors import NotInTransaction, TablesMissing
from sparrow.bus.publish.bound_transaction import bound_transaction
from sparrow.bus.publish.outgoing_event import OutgoingEvent, write_event, write_events
from sparrow.bus.publish.transaction_handle import TransactionHandle, dbapi_handle, django_handle, sqlalchemy_handle
from sparrow.bus.sql.connections.database import is_missing_table
from sparrow.bus.sql.outbox import PublishedRow
from sparrow.model.errors import Refused

BlockingHandle = Session | Connection | scoped_session[Any]
"""A blocking transaction of SQLAlchemy."""
AsyncHandle = AsyncSession | AsyncConnection
"""An asyncio transaction of SQLAlchemy."""


class EventWriter:
    """Writes outgoing events for one bus, and counts them."""

    def __init__(self, context: BusContext, published_table: Callable[[], Table]) -> None:
        """`published_table` selects the engine of a session that has several binds."""
        self._context, self._published_table = context, published_table

    def write(
        self,
        events: Sequence[OutgoingEvent],
        *,
        session: BlockingHandle | None = None,
        connection: Any = None,
        using: str | None = None,
    ) -> list[int]:
        """Write events into a blocking transaction, and return their ids."""
        if not events:
            return []
        if session is None and connection is None and using is None:
            session = bound_transaction()
        if session is None and connection is None and using is None:
            self._check_own_transaction()
            if _in_event_loop():
                raise Refused("publish would block the event loop: use `await bus.aio.publish(...)`, or pass a session")
            rows = self._context.database.run_blocking(
                lambda db: self._write(self._sqlalchemy_handle(db), events), repeats_commit=False
            )
            self._context.wake_relay()  # the commit hook of the engine fires just before the commit
            return self._count(rows)
        return self._count(self._write(self._handle(session, connection, using), events))

    async def write_async(self, events: Sequence[OutgoingEvent], *, session: AsyncHandle | None = None) -> list[int]:
        """Write events into an asyncio transaction, and return their ids."""
        if not events:
            return []
        handle: Any = bound_transaction() if session is None else session
        if handle is None:
            self._check_own_transaction()
            rows = await self._context.database.run(
                lambda db: self._write(self._sqlalchemy_handle(db), events), repeats_commit=False
            )
            self._context.wake_relay()
            return self._count(rows)
        if isinstance(handle, (AsyncSession, AsyncConnection)):
            return self._count(await handle.run_sync(lambda inner: self._write(self._sqlalchemy_handle(inner), events)))
        return self._count(self._write(self._handle(handle, None, None), events))

    def _handle(self, session: Any, connection: Any, using: str | None) -> TransactionHandle:
        if sum(each is not None for each in (session, connection, using)) > 1:
            raise Refused("an event belongs to one transaction: pass one of session, connection and using")
        if using is not None:
            return self._django_handle(using)
        given = session if session is not None else connection
        if isinstance(given, scoped_session):
            given = given()
        if isinstance(given, (AsyncSession, AsyncConnection)):
            raise Refused(f"{type(given).__name__} needs asyncio: use `await bus.aio.publish(...)` with it")
        if isinstance(given, (Session, Connection)):
            return self._sqlalchemy_handle(given)
        if hasattr(given, "vendor") and hasattr(given, "alias"):  # Django's connection wrapper
            return self._django_handle(given.alias)
        return dbapi_handle(given, allow_autocommit=self._context.settings.allow_autocommit)

    def _django_handle(self, using: str) -> TransactionHandle:
        allowed = self._context.settings.allow_autocommit
        return django_handle(using, allow_autocommit=allowed, wake=self._context.wake_relay)

    def _sqlalchemy_handle(self, handle: Session | Connection) -> TransactionHandle:
        table = self._published_table() if isinstance(handle, Session) and handle.bind is None else None
        allowed = self._context.settings.allow_autocommit
        return sqlalchemy_handle(handle, allow_autocommit=allowed, wake=self._context.wake_relay, table=table)

    def _write(self, handle: TransactionHandle, events: Sequence[OutgoingEvent]) -> list[PublishedRow]:
        context = self._context
        sql, version = context.sql_for(handle.kind, handle.paramstyle), context.settings.version
        try:
            if len(events) == 1:
                rows = [write_event(context.event_encoder, handle, sql, events[0], version)]
            else:
                rows = write_events(context.event_encoder, handle, sql, events, version)
        except Exception as error:
            if is_missing_table(error):
                raise self._tables_missing(error) from error
            raise
        # Reported before the commit: right after it, the relay may report the next state.
        for row in rows:
            context.probe.changed("published", row.id, row.status)
        return rows

    def _tables_missing(self, error: Exception) -> TablesMissing:
        """Say who creates the tables. Not this call: in MySQL it would commit the transaction of the application."""
        where = f"{self._context.database}, and nothing was published"
        if type(error).__module__.partition(".")[0] == "django":
            return TablesMissing(where, "run `manage.py migrate`")
        if not self._context.settings.create_tables:
            return TablesMissing(where)
        return TablesMissing(where, "call `bus.prepare()` or start the bus before the first publish")

    def _count(self, rows: list[PublishedRow]) -> list[int]:
        self._context.probe.count("bus_published_total", len(rows))
        return [row.id for row in rows]

    def _check_own_transaction(self) -> None:
        if not self._context.settings.allow_own_transaction:
            raise NotInTransaction(
                "publish",
                "was called without a transaction",
                "pass session=..., or publish inside `with bus.bind(session)`",
            )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

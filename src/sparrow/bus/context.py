"""`BusContext`: what the relay, the receivers, the executors and the publishing side of one bus share."""

from __future__ import annotations

import itertools
import os
import random
import secrets
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Executor as Pool
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from sparrow.bus.handlers.filters import HandlerFilter
from sparrow.bus.handlers.registry import SubscriptionRegistry
from sparrow.bus.handlers.transactions import HandlerTransaction
from sparrow.bus.publish.outgoing_event import EventEncoder
from sparrow.bus.publish.snowflake import SnowflakeGenerator
from sparrow.bus.settings import BusSettings
from sparrow.bus.sql.connections.database import BusDatabase
from sparrow.bus.sql.dialect import BusTableNames, DatabaseKind, SqlDialect, database_kind
from sparrow.bus.telemetry.event_spans import EventSpans
from sparrow.bus.telemetry.handler_failures import HandlerFailures
from sparrow.bus.telemetry.probe import BusProbe
from sparrow.bus.transports.spi import Transport
from sparrow.bus.worker.wake_signal import WakeSignal

HOST_CHARS_MAX = 50


def instance_name() -> str:
    """Return a name that is unique among processes and buses. It is short because every claim stores it."""
    return f"{socket.gethostname()[:20]}.{os.getpid()}.{secrets.token_hex(3)}"


@dataclass(eq=False)
class BusContext:
    """The shared state of one bus; its parts hold a reference to it."""

    settings: BusSettings
    database: BusDatabase
    sql: SqlDialect
    transport: Transport
    registry: SubscriptionRegistry
    ids: SnowflakeGenerator
    event_encoder: EventEncoder
    probe: BusProbe
    spans: EventSpans
    broker: str = "broker"
    """The broker as errors name it: its URL without the password."""
    handler_failures: HandlerFailures = field(default_factory=HandlerFailures)
    blocking_transaction: Callable[[Pool], HandlerTransaction] | None = None
    """Creates the transaction of blocking handlers that ask for no session; None: they have none."""
    filters: tuple[HandlerFilter, ...] = ()
    """Filters around every handler, outside its own."""
    wake_relay: WakeSignal = field(default_factory=WakeSignal)
    wake_executors: WakeSignal = field(default_factory=WakeSignal)
    instance: str = field(default_factory=instance_name)
    host: str = field(default_factory=lambda: socket.gethostname()[:HOST_CHARS_MAX])
    rng: random.Random = field(default_factory=random.Random)
    _claims: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _styled: dict[tuple[str, str], SqlDialect] = field(default_factory=dict)

    def now(self) -> datetime:
        """Return the time of this host, for display. Decisions use the clock of the database."""
        return datetime.now(UTC) + timedelta(seconds=self.sql.clock.shift_s)

    def owner(self) -> str:
        """Return a new owner name; every claim has its own, so that what was claimed together is fenced together."""
        return f"{self.instance}/{next(self._claims)}"

    def clear_dialect_cache(self) -> None:
        self._styled.clear()

    def use(self, sql: SqlDialect) -> None:
        """Replace the dialect after something about the database has changed."""
        self.sql = sql
        self._styled.clear()

    def sql_of(self, db: Connection) -> SqlDialect:
        """Return the dialect of a connection of the application.

        Drivers differ in how they mark values in a statement.
        """
        return self.sql_for(database_kind(db.dialect.name), db.dialect.paramstyle)

    def sql_for(self, kind: DatabaseKind, paramstyle: str) -> SqlDialect:
        if kind == self.sql.kind and paramstyle == self.sql.paramstyle:
            return self.sql
        known = self._styled.get((kind, paramstyle))
        if known is None:
            names = self.sql.names if kind == self.sql.kind else BusTableNames.of(kind, self.settings.space(kind))
            known = self._styled[kind, paramstyle] = replace(self.sql, kind=kind, paramstyle=paramstyle, names=names)
        return known

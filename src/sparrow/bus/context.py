"""What the parts of a running bus share."""

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

from sparrow.bus.handlers.filters import Filter
from sparrow.bus.handlers.registry import Registry
from sparrow.bus.handlers.transactions import Effect
from sparrow.bus.publish.outgoing_event import Drafting
from sparrow.bus.settings import BusSettings
from sparrow.bus.snowflake import IdMaker
from sparrow.bus.sql.database import Database
from sparrow.bus.sql.dialect import Kind, Sql, TableNames, kind_of
from sparrow.bus.telemetry.probe import Probe
from sparrow.bus.telemetry.tracing import Tracing
from sparrow.bus.transports.spi import Transport
from sparrow.bus.worker.wake_signal import Wake

HOST_CHARS = 50


def instance_name() -> str:
    """Unique among processes and among buses in one; short, as it is written with every claim."""
    return f"{socket.gethostname()[:20]}.{os.getpid()}.{secrets.token_hex(3)}"


@dataclass(eq=False)
class Shared:
    settings: BusSettings
    database: Database
    sql: Sql
    transport: Transport
    registry: Registry
    ids: IdMaker
    drafting: Drafting
    probe: Probe
    tracing: Tracing
    blocking_effect: Callable[[Pool], Effect] | None = None
    """Makes the transaction of functions that ask for no session; None: they have none."""
    filters: tuple[Filter, ...] = ()
    """Around every handler, before its own."""
    to_send: Wake = field(default_factory=Wake)
    to_execute: Wake = field(default_factory=Wake)
    instance: str = field(default_factory=instance_name)
    host: str = field(default_factory=lambda: socket.gethostname()[:HOST_CHARS])
    chance: random.Random = field(default_factory=random.Random)
    _claims: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _styled: dict[tuple[str, str], Sql] = field(default_factory=dict)

    def now(self) -> datetime:
        """This host's clock, for what people read; what is decided is decided by the database's."""
        return datetime.now(UTC) + timedelta(seconds=self.sql.clock.shift_s)

    def owner(self) -> str:
        """Another one for every claim: what is held by it was claimed together and is fenced together."""
        return f"{self.instance}/{next(self._claims)}"

    def forget_styles(self) -> None:
        self._styled.clear()

    def use(self, sql: Sql) -> None:
        """What is known of the database has changed."""
        self.sql = sql
        self._styled.clear()

    def sql_of(self, db: Connection) -> Sql:
        """How to speak on a connection that is not ours: other drivers mark values in other ways."""
        return self.sql_for(kind_of(db.dialect.name), db.dialect.paramstyle)

    def sql_for(self, kind: Kind, paramstyle: str) -> Sql:
        if kind == self.sql.kind and paramstyle == self.sql.paramstyle:
            return self.sql
        known = self._styled.get((kind, paramstyle))
        if known is None:
            names = self.sql.names if kind == self.sql.kind else TableNames.of(kind, self.settings.space(kind))
            known = self._styled[kind, paramstyle] = replace(self.sql, kind=kind, paramstyle=paramstyle, names=names)
        return known

"""The parts of one bus and their life cycle, shared by the blocking and the asyncio `EventBus`."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, MetaData
from sqlalchemy.ext.asyncio import AsyncEngine

from sparrow.bus.context import BusContext
from sparrow.bus.errors import BusDatabaseUnreachable
from sparrow.bus.handlers.call_plan import Provider
from sparrow.bus.handlers.filters import to_filter
from sparrow.bus.handlers.registry import SubscriptionRegistry
from sparrow.bus.publish.event_writer import EventWriter
from sparrow.bus.publish.outgoing_event import EventEncoder
from sparrow.bus.publish.request_reply import PendingRequests
from sparrow.bus.publish.snowflake import SnowflakeGenerator
from sparrow.bus.settings import BusSettings
from sparrow.bus.sql.connections.database import BusDatabase, is_unreachable
from sparrow.bus.sql.dialect import BusTableNames, DatabaseClock, SqlDialect
from sparrow.bus.sql.migrations.runner import check_schema, migrate
from sparrow.bus.sql.statistics import count_due
from sparrow.bus.sql.tables import metadata
from sparrow.bus.telemetry.event_spans import EventSpans
from sparrow.bus.telemetry.probe import BusProbe, FailedEvent, StateChange
from sparrow.bus.transports.spi import Transport
from sparrow.bus.transports.url import transport_from_url
from sparrow.bus.worker.health import not_started_finding
from sparrow.bus.worker.worker import BusWorker
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.model.errors import Closed, Refused
from sparrow.model.health import Health
from sparrow.model.urls import hide_password

T = TypeVar("T")
_DRAIN_POLL_S = 0.005


class BusCore:
    """Settings, database, subscriptions and context of one bus, and its worker while it runs.

    Applications use `EventBus`; integrations, the command line and tests reach this object as `bus.core`.
    """

    def __init__(
        self,
        database: str | URL | Engine | AsyncEngine,
        broker: str | Transport,
        settings: BusSettings,
        *,
        providers: Mapping[Any, Provider] | None = None,
        filters: Sequence[Any] = (),
        on_failed: Callable[[FailedEvent], None] | None = None,
        on_state: Callable[[StateChange], None] | None = None,
    ) -> None:
        self.registry = SubscriptionRegistry(settings.default_group)
        self.clock = DatabaseClock()
        self._providers = dict(providers or {})
        bus_database, ids, spans = BusDatabase(database), SnowflakeGenerator(), EventSpans()
        kind = bus_database.kind
        transport = transport_from_url(broker, version=settings.version) if isinstance(broker, str) else broker
        sql = SqlDialect(
            kind,
            bus_database.paramstyle,
            BusTableNames.of(kind, settings.space(kind)),
            self.clock,
            succeeded_spelling=settings.succeeded_spelling,
            writes_progress_states=settings.status_writes == "full",
            is_strict=settings.strict_tables,
        )
        event_encoder = EventEncoder(
            ids,
            topic_prefix=settings.topic_prefix,
            naming=settings.naming,
            check_name=transport.check_name,
            now=self._now,
            trace_headers=spans.headers,
        )
        probe = BusProbe()
        self.context = BusContext(
            settings, bus_database, sql, transport, self.registry, ids, event_encoder, probe, spans
        )
        self.context.broker = hide_password(broker) if isinstance(broker, str) else type(broker).__name__
        self.context.filters = tuple(to_filter(each) for each in filters)
        if on_failed is not None:
            probe.on_failed.append(on_failed)
        if on_state is not None:
            probe.on_state.append(on_state)
        self.writer = EventWriter(self.context, self._published_table)
        self.requests = PendingRequests(self)
        self.faces: dict[type, Any] = {}
        """The `EventBus` objects of both kinds, by class: each exists once per bus."""
        self._worker: BusWorker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._metadata: MetaData | None = None
        self._stopped_at = datetime.now(UTC)

    @property
    def settings(self) -> BusSettings:
        return self.context.settings

    @settings.setter
    def settings(self, settings: BusSettings) -> None:
        self.context.settings = settings

    @property
    def database(self) -> BusDatabase:
        return self.context.database

    # -- life cycle ---------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._worker is not None

    @property
    def worker(self) -> BusWorker:
        """The worker of the running bus; `Closed` if the bus is not running."""
        if self._worker is None:
            raise Closed("the bus", "call start, or use it in a `with` block")
        return self._worker

    def problems(self) -> dict[str, str]:
        """Return the background tasks that are failing, with their errors."""
        return {"bus": "not started"} if self._worker is None else self._worker.problems()

    def health(self) -> Health:
        """Return what hinders the bus."""
        if self._worker is None:
            return Health(False, (not_started_finding(self._stopped_at),))
        return self._worker.health()

    def check(self) -> None:
        """Raise `SubscriptionError` if a handler is declared in a way that cannot work."""
        settings = self.settings
        self.registry.check(
            app=settings.app,
            prefix=settings.topic_prefix,
            group_prefix=settings.group_prefix,
            version=settings.version,
            naming=settings.naming,
            providers=self._providers,
        )
        for subscription in self.registry.subscriptions:  # report a wrong kind of engine now, not at the first message
            if subscription.plan.session_kind is not None:
                self.database.engine_for(subscription.plan.session_kind)

    async def start(self) -> None:
        """Create the tables, join the consumer groups, and start the background tasks on the running loop."""
        if self._worker is not None:
            return
        self.check()
        await self.prepare()
        worker = BusWorker(self.context, self._maintenance_clock)
        try:
            await worker.start()
        except BaseException:
            await worker.stop()
            raise
        self._worker, self._loop = worker, asyncio.get_running_loop()

    async def stop(self) -> None:
        """Wait for running handlers (`stop_timeout_s`), release what is not finished, and close all connections."""
        worker, self._worker, self._loop = self._worker, None, None
        if worker is not None:
            self._stopped_at = datetime.now(UTC)
            await worker.stop()
        self.requests.close()
        await self.context.transport.close()
        await self.database.close()

    def start_in_thread(self) -> None:
        """Start on an event loop in a thread of its own."""
        if self._worker is not None or self._thread is not None:
            return
        refuse_in_event_loop("start")
        thread = LoopThread("sparrow bus")
        try:
            # An empty context: a transaction bound to the caller must not leak into the tasks of the bus.
            contextvars.Context().run(thread.run, self.start())
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    def stop_thread(self) -> None:
        """Stop the bus from a thread without an event loop."""
        refuse_in_event_loop("stop")
        if self._thread is None and self._worker is not None:
            raise Refused("the bus runs on an asyncio event loop: stop it there with `await bus.aio.stop()`")
        thread, self._thread = self._thread or LoopThread("sparrow bus"), None
        try:
            thread.run(self.stop())
        finally:
            thread.stop()

    def run_blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the running bus, and wait for its result."""
        if self._thread is not None:
            return self._thread.run(coroutine)
        if self._loop is None or _running_loop() is not None:
            coroutine.close()
            if self._loop is None:
                raise Closed("the bus", "call start, or use it in a `with` block")
            refuse_in_event_loop("this call")
            raise AssertionError("unreachable")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # -- tables -------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Create or migrate the tables; with `create_tables=False`, check that they are current."""
        with self._unreachable_database():
            self.context.use(await self.database.run(self._prepare))

    def prepare_blocking(self) -> None:
        with self._unreachable_database():
            self.context.use(self.database.run_blocking(self._prepare_blocking))

    @contextmanager
    def _unreachable_database(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_unreachable(error):
                cause = str(getattr(error, "orig", None) or error)
                raise BusDatabaseUnreachable(str(self.database), cause) from error
            raise

    def _prepare(self, db: Connection) -> SqlDialect:
        sql = self.context.sql
        if self.settings.create_tables:
            migrate(db, sql, self.settings.space(sql.kind))
        else:
            check_schema(db, sql, self.settings.space(sql.kind))
        if sql.kind == "mysql":
            version = db.dialect.server_version_info or (0,)
            oldest = (10, 6) if getattr(db.dialect, "is_mariadb", False) else (8, 0)
            sql = replace(sql, skips_locked=tuple(version) >= oldest)
        return sql

    def _prepare_blocking(self, db: Connection) -> SqlDialect:
        sql = self.context.sql
        self.context.sql = self.context.sql_of(db)
        try:
            return replace(self._prepare(db), paramstyle=sql.paramstyle)
        finally:
            self.context.sql = sql

    def metadata(self) -> MetaData:
        """Return the tables as SQLAlchemy metadata."""
        if self._metadata is None:
            kind = self.database.kind
            self._metadata = metadata(kind, self.settings.space(kind), strict=self.settings.strict_tables)
        return self._metadata

    def _published_table(self) -> Any:
        return self.metadata().tables[f"{self.settings.space(self.database.kind)}.published"]

    def use_database(self, database: BusDatabase, sql: SqlDialect) -> None:
        """Replace the database; for tests."""
        self.context.database = database
        self._metadata = None
        self.context.use(sql)

    # -- tests --------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Wait until everything that is due is sent, received and handled."""
        worker, context = self.worker, self.context
        is_idle = getattr(context.transport, "is_idle", lambda: True)
        async with asyncio.timeout(timeout_s):
            quiet = 0
            while quiet < 2:
                context.wake_relay()
                context.wake_executors()
                await worker.relay.drain()
                busy = await self.database.run(lambda db: count_due(db, context.sql))
                quiet = quiet + 1 if not (busy or worker.is_joining) and is_idle() else 0
                await asyncio.sleep(_DRAIN_POLL_S)

    def advance(self, seconds: float) -> None:
        """Move the clock of the bus forward."""
        self.clock.shift_s += seconds
        self.context.wake_relay()
        self.context.wake_executors()

    def _now(self) -> datetime:
        return self.context.now()

    def _maintenance_clock(self) -> float:
        return time.monotonic() + self.clock.shift_s


def refuse_in_event_loop(call: str) -> None:
    """Raise `Refused` if the caller runs on an event loop, which a blocking call would stop."""
    if _running_loop() is not None:
        raise Refused(f"{call} would block the event loop: use `sparrow.bus.aio.EventBus`, or `bus.aio`, and await it")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

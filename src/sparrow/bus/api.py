"""The event bus: publish in your own transaction, handle once.

bus = EventBus("postgresql://localhost/shop", "sparrow://127.0.0.1:9876", app="shop")

@bus.subscribe("order.created")
async def on_order(order: Order, session: AsyncSession) -> None: ...

async with bus:
    async with AsyncSession(engine) as session, session.begin():
        session.add(order)
        await bus.publish_async("order.created", order, session=session)
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from sqlalchemy import URL, Connection, Engine, MetaData, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, scoped_session

from sparrow.bus.context import BusContext
from sparrow.bus.errors import BusDatabaseUnreachable, NotInTransaction
from sparrow.bus.handlers.call_plan import Provider
from sparrow.bus.handlers.filters import to_filter
from sparrow.bus.handlers.registry import Router, SubscriptionRegistry
from sparrow.bus.handlers.subscription import SubscriptionOptions
from sparrow.bus.operations.operations import AsyncOperations, Operations
from sparrow.bus.operations.stored_event import Where
from sparrow.bus.publish.bound_transaction import bind_transaction, bound_transaction
from sparrow.bus.publish.outgoing_event import (
    EventEncoder,
    EventKey,
    OutgoingEvent,
    to_outgoing_event,
    write_event,
    write_events,
)
from sparrow.bus.publish.publisher import Publisher
from sparrow.bus.publish.request_reply import PendingRequests
from sparrow.bus.publish.transaction_handle import TransactionHandle, dbapi_handle, django_handle, sqlalchemy_handle
from sparrow.bus.settings import BusSettings
from sparrow.bus.snowflake import SnowflakeGenerator
from sparrow.bus.sql.database import BusDatabase, is_unreachable
from sparrow.bus.sql.dialect import BusTableNames, DatabaseClock, SqlDialect
from sparrow.bus.sql.due_count import count_due
from sparrow.bus.sql.outbox import PublishedRow
from sparrow.bus.sql.schema import check_tables, create_tables
from sparrow.bus.sql.tables import metadata
from sparrow.bus.telemetry.probe import BusProbe, FailedEvent, StateChange
from sparrow.bus.telemetry.tracing import EventTracing
from sparrow.bus.transports.spi import Transport
from sparrow.bus.transports.url import transport_from_url
from sparrow.bus.worker.worker import BusWorker
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.model.errors import Closed, Refused

F = TypeVar("F", bound=Callable[..., Any])
BlockingHandle = Session | Connection | scoped_session[Any]
_DRAIN_POLL_S = 0.005


class EventBus:
    def __init__(
        self,
        database: str | URL | Engine | AsyncEngine,
        broker: str | Transport = "sparrow://127.0.0.1:9876",
        settings: BusSettings | None = None,
        *,
        providers: Mapping[Any, Provider] | None = None,
        filters: Sequence[Any] = (),
        on_failed: Callable[[FailedEvent], None] | None = None,
        on_state: Callable[[StateChange], None] | None = None,
        **options: Any,
    ) -> None:
        """Connects to nothing yet. `database`: a URL, or an engine of your own; from a URL both blocking and asyncio
        handlers can be served. `broker`: a URL or a transport. `options` are the fields of `BusSettings`. `providers`
        make what handlers ask for by type. `filters` run around every handler. `on_failed` is told of every message
        that enters Failed."""
        self.settings = replace(settings or BusSettings(), **options)
        self.registry = SubscriptionRegistry()
        self.database = BusDatabase(database)
        self.clock = DatabaseClock()
        self._providers = dict(providers or {})
        kind, ids, tracing = self.database.kind, SnowflakeGenerator(), EventTracing()
        transport = transport_from_url(broker, version=self.settings.version) if isinstance(broker, str) else broker
        sql = SqlDialect(
            kind,
            self.database.paramstyle,
            BusTableNames.of(kind, self.settings.space(kind)),
            self.clock,
            succeeded_spelling=self.settings.succeeded_spelling,
            writes_progress_states=self.settings.status_writes == "full",
            is_strict=self.settings.strict_tables,
        )
        event_encoder = EventEncoder(
            ids,
            topic_prefix=self.settings.topic_prefix,
            naming=self.settings.naming,
            check_name=transport.check_name,
            now=self._now,
            trace_headers=tracing.headers,
        )
        self.context = BusContext(
            self.settings, self.database, sql, transport, self.registry, ids, event_encoder, BusProbe(), tracing
        )
        self.context.filters = tuple(to_filter(each) for each in filters)
        if on_failed is not None:
            self.context.probe.on_failed.append(on_failed)
        if on_state is not None:
            self.context.probe.on_state.append(on_state)
        self._worker: BusWorker | None = None
        self._thread: LoopThread | None = None
        self._requests = PendingRequests(self)
        self._metadata: MetaData | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the tables, join the groups, and begin to send and to handle."""
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
        self._worker = worker

    async def stop(self) -> None:
        """Waits for running handlers (`stop_timeout_s`), then hands back what is not finished."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        self._requests.close()
        await self.context.transport.close()
        await self.database.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self.start_in_thread()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_thread()

    def start_in_thread(self) -> None:
        """For programs without an event loop: the bus gets one of its own, in a thread. Call it after a fork."""
        if self._thread is None:
            thread = LoopThread("sparrow bus")
            try:
                # In no context: what is bound to this caller's request is nothing to a bus that outlives it.
                contextvars.Context().run(thread.run, self.start())
            except BaseException:
                thread.stop()
                raise
            self._thread = thread

    def stop_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self.stop())
            thread.stop()

    @property
    def is_running(self) -> bool:
        return self._worker is not None

    @property
    def worker(self) -> BusWorker:
        if self._worker is None:
            raise Closed("the bus")
        return self._worker

    def problems(self) -> dict[str, str]:
        """What of the running bus is not at work just now, and why; empty: it is ready."""
        return {"bus": "not started"} if self._worker is None else self._worker.problems()

    def check(self) -> None:
        """Whether all handlers are declared in a way that can work; else `SubscriptionError`."""
        settings = self.settings
        self.registry.check(
            app=settings.app,
            prefix=settings.topic_prefix,
            group_prefix=settings.group_prefix,
            version=settings.version,
            naming=settings.naming,
            providers=self._providers,
        )
        for subscription in self.registry.subscriptions:  # an engine of the wrong kind is said now, not at a message
            if subscription.plan.session_kind is not None:
                self.database.engine_for(subscription.plan.session_kind)

    async def prepare(self) -> None:
        """Make the tables that are missing; without `create_tables`, say which ones are."""
        with self._reachable():
            self.context.use(await self.database.run(self._prepare))

    def prepare_blocking(self) -> None:
        with self._reachable():
            self.context.use(self.database.run_blocking(self._prepare_blocking))

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_unreachable(error):
                raise BusDatabaseUnreachable(str(self.database), str(getattr(error, "orig", None) or error)) from error
            raise

    def _prepare(self, db: Connection) -> SqlDialect:
        sql = self.context.sql
        do = create_tables if self.settings.create_tables else check_tables
        do(db, sql, self.settings.space(sql.kind))
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

    def install(self, app: Any, **options: Any) -> None:
        """Start and stop with an application of FastAPI, Starlette, Flask or Django, and let its views have a
        `Publisher`. What can be said besides is told by `sparrow.bus.integrations`, for each of them."""
        from sparrow.bus.integrations import install

        install(self, app, **options)

    @cached_property  # always the same one: FastAPI's dependency_overrides find it by what it is
    def publisher(self) -> Publisher:
        """Publishes in what `bind` has bound, else in short transactions. With FastAPI: `Depends(bus.publisher)`."""
        return Publisher(self)

    def publisher_for(self, session: Any) -> Callable[..., Awaitable[Publisher]]:
        """For FastAPI: `Depends(bus.publisher_for(get_session))` publishes in the request's session, of either kind."""
        from sparrow.bus.integrations.fastapi import publisher_for

        return publisher_for(self, session)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        value: object = None,
        *,
        session: BlockingHandle | None = None,
        connection: Any = None,
        using: str | None = None,
        key: EventKey | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str | None] | None = None,
        callback: str | None = None,
        dedupe: str | None = None,
        tenant: str | None = None,
    ) -> int:
        """Write an event into a transaction; its number. It is sent once that is committed, and never if it is not.

        The transaction is the one of `session` (SQLAlchemy's Session or Connection), of `connection` (a driver's, by
        PEP 249), of Django's `using`, or the one bound by `bus.bind`; with none of them, a short one of its own."""
        new = OutgoingEvent(name, value, key, delay, at, headers or {}, callback, dedupe, tenant)
        return self._publish(session, connection, using, [new], self._write)[0]

    async def publish_async(
        self,
        name: str,
        value: object = None,
        *,
        session: AsyncSession | AsyncConnection | None = None,
        key: EventKey | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str | None] | None = None,
        callback: str | None = None,
        dedupe: str | None = None,
        tenant: str | None = None,
    ) -> int:
        """The same inside SQLAlchemy's AsyncSession or AsyncConnection."""
        new = OutgoingEvent(name, value, key, delay, at, headers or {}, callback, dedupe, tenant)
        return (await self._publish_async(session, [new], self._write))[0]

    def publish_many(
        self,
        events: Iterable[OutgoingEvent | tuple[Any, ...]],
        *,
        session: BlockingHandle | None = None,
        connection: Any = None,
        using: str | None = None,
    ) -> list[int]:
        """Many at once, in a few statements: `OutgoingEvent`s, or tuples of name, payload and key."""
        return self._publish(session, connection, using, [to_outgoing_event(each) for each in events], self._write_many)

    async def publish_many_async(
        self,
        events: Iterable[OutgoingEvent | tuple[Any, ...]],
        *,
        session: AsyncSession | AsyncConnection | None = None,
    ) -> list[int]:
        return await self._publish_async(session, [to_outgoing_event(each) for each in events], self._write_many)

    def bind(self, session: Any) -> AbstractContextManager[None]:
        """Inside the block, publishing without a session belongs to this one."""
        return bind_transaction(session)

    def collect(self, session: Session | AsyncSession) -> None:
        """From now on publish what mapped objects of this session carry in a list `events`, when they are flushed.

        The entries are what `publish_many` takes; the list is emptied."""

        def before_flush(inner: Session, *_: Any) -> None:
            for instance in [*inner.new, *inner.dirty, *inner.deleted]:
                waiting = getattr(instance, "events", None)
                if isinstance(waiting, list) and waiting:
                    events, waiting[:] = list(waiting), []
                    self.publish_many(events, session=inner)

        event.listen(
            session.sync_session if isinstance(session, AsyncSession) else session, "before_flush", before_flush
        )

    def _publish(
        self,
        session: Any,
        connection: Any,
        using: str | None,
        events: list[OutgoingEvent],
        write_them: Callable[[TransactionHandle, list[OutgoingEvent]], list[PublishedRow]],
    ) -> list[int]:
        if not events:
            return []
        if session is None and connection is None and using is None:
            session = bound_transaction()
        if session is None and connection is None and using is None:
            self._may_begin("publish")
            if _in_event_loop():
                raise Refused(
                    "publish would block the event loop: use `await bus.publish_async(...)`, or name a session"
                )
            news = self.database.run_blocking(lambda db: write_them(self._handle(db), events))
            self.context.wake_relay()  # the hook of the engine fires a moment before the commit
            return self._told(news)
        return self._told(write_them(self._named(session, connection, using), events))

    async def _publish_async(
        self,
        session: Any,
        events: list[OutgoingEvent],
        write_them: Callable[[TransactionHandle, list[OutgoingEvent]], list[PublishedRow]],
    ) -> list[int]:
        if not events:
            return []
        session = bound_transaction() if session is None else session
        if session is None:
            self._may_begin("publish_async")
            news = await self.database.run(lambda db: write_them(self._handle(db), events))
            self.context.wake_relay()
            return self._told(news)
        if isinstance(session, (AsyncSession, AsyncConnection)):
            return self._told(await session.run_sync(lambda inner: write_them(self._handle(inner), events)))
        return self._told(write_them(self._named(session, None, None), events))

    def _named(self, session: Any, connection: Any, using: str | None) -> TransactionHandle:
        if sum(each is not None for each in (session, connection, using)) > 1:
            raise Refused("an event belongs to one transaction: give one of session, connection and using")
        if using is not None:
            return django_handle(using, allow_autocommit=self.settings.allow_autocommit, wake=self.context.wake_relay)
        handle = session if session is not None else connection
        if isinstance(handle, scoped_session):
            handle = handle()
        if isinstance(handle, (AsyncSession, AsyncConnection)):
            raise Refused(f"{type(handle).__name__} is asyncio's: use `await bus.publish_async(...)` with it")
        if isinstance(handle, (Session, Connection)):
            return self._handle(handle)
        if hasattr(handle, "vendor") and hasattr(handle, "alias"):  # Django's own wrapper
            return django_handle(
                handle.alias, allow_autocommit=self.settings.allow_autocommit, wake=self.context.wake_relay
            )
        return dbapi_handle(handle, allow_autocommit=self.settings.allow_autocommit)

    def _handle(self, handle: Session | Connection) -> TransactionHandle:
        table = None
        if isinstance(handle, Session) and handle.bind is None:
            table = self.metadata().tables[self._full_name("published")]
        return sqlalchemy_handle(
            handle, allow_autocommit=self.settings.allow_autocommit, wake=self.context.wake_relay, table=table
        )

    def _write(self, handle: TransactionHandle, events: list[OutgoingEvent]) -> list[PublishedRow]:
        sql = self.context.sql_for(handle.kind, handle.paramstyle)
        return self._written([write_event(self.context.event_encoder, handle, sql, events[0], self.settings.version)])

    def _write_many(self, handle: TransactionHandle, events: list[OutgoingEvent]) -> list[PublishedRow]:
        sql = self.context.sql_for(handle.kind, handle.paramstyle)
        return self._written(write_events(self.context.event_encoder, handle, sql, events, self.settings.version))

    def _written(self, news: list[PublishedRow]) -> list[PublishedRow]:
        """Told before the commit: a moment after it, the relay may tell what comes next."""
        for new in news:
            self.context.probe.changed("published", new.id, new.status)
        return news

    def _told(self, news: list[PublishedRow]) -> list[int]:
        self.context.probe.count("bus_published_total", len(news))
        return [new.id for new in news]

    def _may_begin(self, what: str) -> None:
        if not self.settings.allow_own_transaction:
            raise NotInTransaction(
                what, "was given no transaction", "say session=..., or publish inside `with bus.bind(session)`"
            )

    # -- subscribing --------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, **options: Unpack[SubscriptionOptions]) -> Callable[[F], F]:
        """For a function or coroutine function: call it with every event of this name, or that matches the pattern."""
        return self.registry.subscribe(topic, **self._with_default(options))

    def add_subscription(
        self, topic: str, handler: Callable[..., Any] | str, **options: Unpack[SubscriptionOptions]
    ) -> None:
        """The same at run time; the handler may be named as "module:name"."""
        self.registry.add(topic, handler, **self._with_default(options))

    def remove_subscription(self, topic: str, handler: Callable[..., Any]) -> None:
        self.registry.remove(topic, handler)

    def router(self, prefix: str, **defaults: Unpack[SubscriptionOptions]) -> Router:
        """For topics that begin alike: `@bus.router("order")` on a class, `.subscribe(".created")` inside."""
        return self.registry.router(prefix, **self._with_default(defaults))

    def _with_default(self, options: SubscriptionOptions) -> SubscriptionOptions:
        if options.get("group") is None and self.settings.default_group is not None:
            options["group"] = self.settings.default_group
        return options

    async def request(
        self, name: str, value: object = None, *, timeout: float = 30.0, answer: Any = Any, **more: Any
    ) -> Any:
        """Publish an event and wait for what its handler returns, as `answer` says; `NoAnswer` when nothing comes."""
        return await self._requests.ask(name, value, timeout_s=timeout, answer=answer, **more)

    # -- operating ----------------------------------------------------------------------------------------------------

    @property
    def operations(self) -> AsyncOperations:
        """Look at stored messages, and requeue, re-execute, cancel, delete or park them."""
        return AsyncOperations(self.context)

    @property
    def blocking_operations(self) -> Operations:
        """The same without an event loop."""
        return Operations(self.context)

    def cancel(self, *ids: int) -> None:
        """Never send what is Scheduled or Delayed; `IllegalTransition`, and no change, if one of them is not (any
        more)."""
        self.blocking_operations.cancel(*ids)

    async def cancel_async(self, *ids: int) -> None:
        await self.operations.cancel(*ids)

    def requeue(self, *ids: int, where: Where | None = None) -> int:
        """Send once more what has failed, or any closed message by its number; how many it were."""
        return self.blocking_operations.requeue(*ids, where=where).count

    async def requeue_async(self, *ids: int, where: Where | None = None) -> int:
        return (await self.operations.requeue(*ids, where=where)).count

    # -- tests and tools ----------------------------------------------------------------------------------------------

    def metadata(self) -> MetaData:
        """The tables, for Alembic's `target_metadata`."""
        if self._metadata is None:
            kind = self.database.kind
            self._metadata = metadata(kind, self.settings.space(kind), strict=self.settings.strict_tables)
        return self._metadata

    async def drain(self, timeout_s: float = 30.0) -> None:
        """Until everything that is due is sent, received and handled. For tests: the bus must be running."""
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

    def drain_blocking(self, timeout_s: float = 30.0) -> None:
        """The same for a bus in a thread (`with bus:`)."""
        if self._thread is None:
            raise Closed("the bus")
        self._thread.run(self.drain(timeout_s))

    def clear_table_cache(self) -> None:
        """What was worked out for the tables is not right any more: the database is another one."""
        self._metadata = None
        self.context.clear_dialect_cache()

    def advance(self, seconds: float) -> None:
        """Move the clock of this bus, for tests: delays, retries, rounds and cleaning come due."""
        self.clock.shift_s += seconds
        self.context.wake_relay()
        self.context.wake_executors()

    def _now(self) -> datetime:
        return self.context.now()

    def _maintenance_clock(self) -> float:
        return time.monotonic() + self.clock.shift_s

    def _full_name(self, table: str) -> str:
        space = self.settings.space(self.database.kind)
        return f"{space}.{table}"

    def __repr__(self) -> str:
        return f"EventBus({self.database}, app={self.settings.app!r}, {'running' if self.is_running else 'stopped'})"


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

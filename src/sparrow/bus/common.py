"""What the blocking and the asyncio `EventBus` have in common: construction, subscriptions, binding, checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from sqlalchemy import URL, Engine, MetaData, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sparrow.bus.core import BusCore
from sparrow.bus.deprecated import find_renamed
from sparrow.bus.handlers.call_plan import Provider
from sparrow.bus.handlers.registry import Router, SubscriptionRegistry
from sparrow.bus.handlers.subscription import SubscriptionOptions
from sparrow.bus.publish.bound_transaction import bind_transaction
from sparrow.bus.publish.outgoing_event import to_outgoing_event
from sparrow.bus.settings import BusOptions, BusSettings, apply_options
from sparrow.bus.sql.connections.database import BusDatabase
from sparrow.bus.telemetry.metrics import BusMetrics
from sparrow.bus.telemetry.probe import FailedEvent, StateChange
from sparrow.bus.transports.spi import Transport
from sparrow.model.health import Health

if TYPE_CHECKING:
    from sparrow.bus import aio, api

F = TypeVar("F", bound=Callable[..., Any])


class AnyEventBus:
    """A bus of either kind: `sparrow.bus.EventBus` blocks, `sparrow.bus.aio.EventBus` awaits."""

    core: BusCore
    """For the library's own parts."""

    def __init__(
        self,
        database: str | URL | Engine | AsyncEngine,
        broker: str | Transport = "sparrow://",
        settings: BusSettings | None = None,
        *,
        providers: Mapping[Any, Provider] | None = None,
        filters: Sequence[Any] = (),
        on_failed: Callable[[FailedEvent], None] | None = None,
        on_state: Callable[[StateChange], None] | None = None,
        **options: Unpack[BusOptions],
    ) -> None:
        """Create a bus; nothing connects before it starts or publishes.

        - `database`: a URL, or an engine of your own. From a URL, handlers of both kinds can have sessions.
        - `broker`: a URL or a transport. `sparrow://` without an address: the name servers of `SPARROW_NAME_SERVERS`,
          else 127.0.0.1:9876.
        - `providers`: factories for handler parameters, by type.
        - `filters`: run around every handler.
        - `on_failed`, `on_state`: called for every message that enters Failed, and for every change of state.
        - `options`: fields of `BusSettings`.
        """
        self.metric_source = BusMetrics(self)
        """The metrics of this bus, for a `HealthServer`."""
        self.core = BusCore(
            database,
            broker,
            apply_options(settings or BusSettings(), options),
            providers=providers,
            filters=filters,
            on_failed=on_failed,
            on_state=on_state,
        )
        self.core.faces[type(self)] = self

    @classmethod
    def of_core(cls, core: BusCore) -> Self:
        """Return the bus of this kind on a core that exists already."""
        if cls not in core.faces:
            bus = core.faces[cls] = cls.__new__(cls)
            bus.core = core
        found: Self = core.faces[cls]
        return found

    @property
    def blocking(self) -> api.EventBus:
        """The same bus with blocking methods."""
        from sparrow.bus.api import EventBus

        return EventBus.of_core(self.core)

    @property
    def aio(self) -> aio.EventBus:
        """The same bus with awaitable methods."""
        from sparrow.bus.aio import EventBus

        return EventBus.of_core(self.core)

    @property
    def settings(self) -> BusSettings:
        """The settings."""
        return self.core.settings

    @property
    def database(self) -> BusDatabase:
        """The engines: `bus.database.engine` and `bus.database.async_engine`."""
        return self.core.database

    @property
    def subscriptions(self) -> SubscriptionRegistry:
        """All subscriptions: add and remove them at run time, load them from a file or a package."""
        return self.core.registry

    @property
    def is_running(self) -> bool:
        """Whether the background tasks of the bus are started."""
        return self.core.is_running

    def problems(self) -> dict[str, str]:
        """Return the parts of the running bus that are failing, with their errors; empty means ready."""
        return self.core.problems()

    def health(self) -> Health:
        """Return what hinders the bus, since when, and what to do.

        It is ok while all parts of the bus work: handlers that keep failing and parked messages are findings, too, but
        a restart would not help. It never waits, and may be called from any thread.
        """
        return self.core.health()

    def metadata(self) -> MetaData:
        """Return the tables, for Alembic's `target_metadata`."""
        return self.core.metadata()

    def advance(self, seconds: float) -> None:
        """Move the clock of this bus, for tests: delays, retries, retry rounds and cleanup become due."""
        self.core.advance(seconds)

    def install(self, app: Any, **options: Any) -> None:
        """Start and stop the bus with an application of FastAPI, Starlette, Flask or Django.

        `sparrow.bus.integrations` describes the options of each framework.
        """
        from sparrow.bus.integrations import install

        install(self, app, **options)

    def subscribe(self, topic: str, **options: Unpack[SubscriptionOptions]) -> Callable[[F], F]:
        """Decorate a function or coroutine function as the handler of an event name or pattern."""
        return self.core.registry.subscribe(topic, **options)

    def router(self, prefix: str, **defaults: Unpack[SubscriptionOptions]) -> Router:
        """Return a router for topics with a common prefix.

        Use `@bus.router("order")` on a class and `@subscribe(".created")` on its methods.
        """
        return self.core.registry.router(prefix, **defaults)

    def bind(self, session: Any) -> AbstractContextManager[None]:
        """Publish into this transaction inside the block, where no other is named."""
        return bind_transaction(session)

    def collect(self, session: Session | AsyncSession) -> None:
        """Publish the list `events` of each mapped object when this session flushes it.

        The entries are those that `publish_many` takes. The list is emptied.
        """

        def before_flush(inner: Session, *_: Any) -> None:
            for instance in [*inner.new, *inner.dirty, *inner.deleted]:
                waiting = getattr(instance, "events", None)
                if isinstance(waiting, list) and waiting:
                    events, waiting[:] = [to_outgoing_event(each) for each in waiting], []
                    self.core.writer.write(events, session=inner)

        event.listen(
            session.sync_session if isinstance(session, AsyncSession) else session, "before_flush", before_flush
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return find_renamed(self, name)

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        return f"{type(self).__name__}({self.database}, app={self.settings.app!r}, {state})"

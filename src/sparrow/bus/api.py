"""`EventBus`: publish in your own transaction, handle once. Methods block; `sparrow.bus.aio` has awaitable ones.

bus = EventBus("postgresql://localhost/shop", "sparrow://127.0.0.1:9876", app="shop")

@bus.subscribe("order.created")
def on_order(order: Order, session: Session) -> None: ...

with bus, Session(engine) as session, session.begin():
    session.add(order)
    bus.publish("order.created", order, session=session)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from types import TracebackType
from typing import Any, Self, Unpack

from sparrow.bus.common import AnyEventBus
from sparrow.bus.core import refuse_in_event_loop
from sparrow.bus.operations.operations import Operations
from sparrow.bus.publish.event_writer import BlockingHandle
from sparrow.bus.publish.outgoing_event import OutgoingEvent, PublishOptions, to_outgoing_event
from sparrow.bus.publish.publisher import Publisher


class EventBus(AnyEventBus):
    """An event bus for programs without an event loop; its background tasks run in a thread of their own."""

    def start(self) -> None:
        """Create the tables, join the consumer groups, and start to send and to handle. Call it after a fork."""
        self.core.start_in_thread()

    def stop(self) -> None:
        """Wait for running handlers (`stop_timeout_s`), then release what is not finished."""
        self.core.stop_thread()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def prepare(self) -> None:
        """Create or migrate the tables; with `create_tables=False`, check that they are current."""
        refuse_in_event_loop("prepare")
        self.core.prepare_blocking()

    def publish(
        self,
        name: str,
        value: object = None,
        *,
        session: BlockingHandle | None = None,
        connection: Any = None,
        using: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> int:
        """Write an event into a transaction, and return its id. It is sent after the commit, and only then.

        The transaction is that of `session` (SQLAlchemy's Session or Connection), of `connection` (a driver's, by
        PEP 249), of Django's database `using`, or the one bound by `bus.bind`; without any, a short one of its own.
        """
        event = OutgoingEvent(name, value, **options)
        return self.core.writer.write([event], session=session, connection=connection, using=using)[0]

    def publish_many(
        self,
        events: Iterable[OutgoingEvent | tuple[Any, ...]],
        *,
        session: BlockingHandle | None = None,
        connection: Any = None,
        using: str | None = None,
    ) -> list[int]:
        """Write many events in few statements: `OutgoingEvent`s, or tuples of name, payload and key."""
        outgoing = [to_outgoing_event(each) for each in events]
        return self.core.writer.write(outgoing, session=session, connection=connection, using=using)

    def request(
        self,
        name: str,
        value: object = None,
        *,
        timeout: float = 30.0,
        reply_type: Any = Any,
        **options: Unpack[PublishOptions],
    ) -> Any:
        """Publish an event and wait for what its handler returns, decoded as `reply_type`; `NoReply` after `timeout`.

        The bus must be running.
        """
        asking = self.core.requests.ask(name, value, timeout_s=timeout, reply_type=reply_type, options=options)
        return self.core.run_blocking(asking)

    @cached_property  # always the same object: FastAPI's dependency_overrides find it by identity
    def publisher(self) -> Publisher:
        """A publisher for the bound transaction, or for short ones. With FastAPI: `Depends(bus.publisher)`."""
        return Publisher(self)

    def publisher_for(self, session: Any) -> Callable[..., Awaitable[Publisher]]:
        """Return a FastAPI dependency that publishes in the session of another dependency."""
        from sparrow.bus.integrations.fastapi import session_dependency

        return session_dependency(lambda found: Publisher(self, session=found), session)

    @property
    def operations(self) -> Operations:
        """Find stored messages, and requeue, execute again, cancel, delete or park them."""
        return Operations(self.core.context)

    def drain(self, timeout_s: float = 30.0) -> None:
        """Wait until everything that is due is sent, received and handled. For tests; the bus must be running."""
        self.core.run_blocking(self.core.drain(timeout_s))

"""The asyncio flavour of the event bus: the names of `sparrow.bus`, with methods to await.

from sparrow.bus.aio import EventBus

bus = EventBus("postgresql://localhost/shop", "sparrow://127.0.0.1:9876", app="shop")

@bus.subscribe("order.created")
async def on_order(order: Order, session: AsyncSession) -> None: ...

async with bus:
    async with AsyncSession(engine) as session, session.begin():
        session.add(order)
        await bus.publish("order.created", order, session=session)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from types import TracebackType
from typing import Any, Self, Unpack

from sparrow.bus.common import AnyEventBus
from sparrow.bus.operations.operations import AsyncOperations as Operations
from sparrow.bus.publish.event_writer import AsyncHandle
from sparrow.bus.publish.outgoing_event import OutgoingEvent, PublishOptions, to_outgoing_event
from sparrow.bus.publish.publisher import AsyncPublisher as Publisher

__all__ = ["EventBus", "Operations", "Publisher"]


class EventBus(AnyEventBus):
    """An event bus on the running event loop."""

    async def start(self) -> None:
        """Create the tables, join the consumer groups, and start to send and to handle. Call it after a fork."""
        await self.core.start()

    async def stop(self) -> None:
        """Wait for running handlers (`stop_timeout_s`), then release what is not finished."""
        await self.core.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def prepare(self) -> None:
        """Create or migrate the tables; with `create_tables=False`, check that they are current."""
        await self.core.prepare()

    async def publish(
        self, name: str, value: object = None, *, session: AsyncHandle | None = None, **options: Unpack[PublishOptions]
    ) -> int:
        """Write an event into a transaction, and return its id. It is sent after the commit, and only then.

        The transaction is that of `session` (SQLAlchemy's AsyncSession or AsyncConnection), or the one bound by
        `bus.bind`; without either, a short one of its own.
        """
        return (await self.core.writer.write_async([OutgoingEvent(name, value, **options)], session=session))[0]

    async def publish_many(
        self, events: Iterable[OutgoingEvent | tuple[Any, ...]], *, session: AsyncHandle | None = None
    ) -> list[int]:
        """Write many events in few statements: `OutgoingEvent`s, or tuples of name, payload and key."""
        return await self.core.writer.write_async([to_outgoing_event(each) for each in events], session=session)

    async def request(
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
        return await self.core.requests.ask(name, value, timeout_s=timeout, reply_type=reply_type, options=options)

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

    async def drain(self, timeout_s: float = 30.0) -> None:
        """Wait until everything that is due is sent, received and handled. For tests; the bus must be running."""
        await self.core.drain(timeout_s)

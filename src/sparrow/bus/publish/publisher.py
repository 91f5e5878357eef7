"""`Publisher`: a bus together with the transaction of one request, for views of web frameworks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from sparrow.bus.publish.outgoing_event import OutgoingEvent, PublishOptions

if TYPE_CHECKING:
    from sparrow.bus import aio, api


class Publisher:
    """A publisher for blocking views.

    ```python
    @app.post("/orders")
    def create(order: Order, session: Session = Depends(get_session), events: Publisher = Depends(publisher)) -> None:
        session.add(order)
        events.publish("order.created", order)
    ```
    """

    def __init__(self, bus: api.EventBus, *, session: Any = None, using: str | None = None) -> None:
        """Create a publisher for a blocking `session` of SQLAlchemy, or for Django's database `using`.

        Without either, events go into the transaction that `bus.bind` has bound, or into short ones of their own.
        """
        self.bus = bus
        self._session, self._using = session, using

    async def __call__(self) -> Publisher:
        """Return itself, for `Depends(bus.publisher)`. A coroutine: FastAPI would call a function in a thread."""
        return self

    def publish(self, name: str, value: object = None, **options: Unpack[PublishOptions]) -> int:
        """Write an event into the transaction, and return its id. It is sent after the commit."""
        return self.bus.publish(name, value, session=self._session, using=self._using, **options)

    def publish_many(self, events: Iterable[OutgoingEvent | tuple[Any, ...]]) -> list[int]:
        """Write many events: `OutgoingEvent`s, or tuples of name, payload and key."""
        return self.bus.publish_many(events, session=self._session, using=self._using)


class AsyncPublisher:
    """A publisher for asyncio views; `sparrow.bus.aio.Publisher`."""

    def __init__(self, bus: aio.EventBus, *, session: Any = None) -> None:
        """Create a publisher for an asyncio `session` of SQLAlchemy.

        Without one, events go into the transaction that `bus.bind` has bound, or into short ones of their own.
        """
        self.bus = bus
        self._session = session

    async def __call__(self) -> AsyncPublisher:
        """Return itself, for `Depends(bus.publisher)`."""
        return self

    async def publish(self, name: str, value: object = None, **options: Unpack[PublishOptions]) -> int:
        """Write an event into the transaction, and return its id. It is sent after the commit."""
        return await self.bus.publish(name, value, session=self._session, **options)

    async def publish_many(self, events: Iterable[OutgoingEvent | tuple[Any, ...]]) -> list[int]:
        """Write many events: `OutgoingEvent`s, or tuples of name, payload and key."""
        return await self.bus.publish_many(events, session=self._session)

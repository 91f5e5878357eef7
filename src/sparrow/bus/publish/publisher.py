"""What a view publishes with: a bus, and the transaction of the request.

It has the bus's own words, without `session=`: `publish` and `publish_many` for a blocking session, `publish_async` and
`publish_many_async` for an asyncio one. There is no `publish` that must sometimes be awaited: forgetting to would
publish nothing, and nobody would say so. The wrong one of the two is refused, with the name of the right one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from sparrow.bus.publish.outgoing_event import EventKey, OutgoingEvent
from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.api import EventBus


class PublishOptions(TypedDict, total=False):
    """What can be said of an event besides its name and payload."""

    key: EventKey | None
    delay: timedelta | float | None
    at: datetime | None
    headers: Mapping[str, str | None] | None
    callback: str | None
    dedupe: str | None
    tenant: str | None


class Publisher:
    """
    ```python
    @app.post("/orders")
    def create(order: Order, session: Session = Depends(get_session), events: Publisher = Depends(publisher)) -> None:
        session.add(order)
        events.publish("order.created", order)
    ```
    """

    def __init__(self, bus: EventBus, *, session: Any = None, using: str | None = None) -> None:
        """`session`: SQLAlchemy's, of either kind. `using`: Django's name of a database. With neither, events belong
        to what `bus.bind` has bound, else to short transactions of their own."""
        self.bus = bus
        self._session, self._using = session, using

    async def __call__(self) -> Publisher:
        """Itself: so `Depends(bus.publisher)` works. A coroutine, as FastAPI would use a thread for a function."""
        return self

    def publish(self, name: str, value: object = None, **how: Unpack[PublishOptions]) -> int:
        """Write an event into the transaction; its number. It is sent once that is committed."""
        return self.bus.publish(name, value, session=self._session, using=self._using, **how)

    async def publish_async(self, name: str, value: object = None, **how: Unpack[PublishOptions]) -> int:
        return await self.bus.publish_async(name, value, session=self._for_asyncio(), **how)

    def publish_many(self, events: Iterable[OutgoingEvent | tuple[Any, ...]]) -> list[int]:
        """`OutgoingEvent`s, or tuples of name, payload and key."""
        return self.bus.publish_many(events, session=self._session, using=self._using)

    async def publish_many_async(self, events: Iterable[OutgoingEvent | tuple[Any, ...]]) -> list[int]:
        return await self.bus.publish_many_async(events, session=self._for_asyncio())

    def _for_asyncio(self) -> Any:
        if self._using is not None:
            raise Refused(
                "Django's transactions belong to threads: write the rows and `publish` in one function, "
                "and call it with sync_to_async"
            )
        return self._session

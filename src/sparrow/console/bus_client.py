"""The event bus whose tables the console shows: opened when they are needed, and again after an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from sparrow.extras import require

if TYPE_CHECKING:
    from sparrow.bus.aio import EventBus
    from sparrow.bus.operations.operations import AsyncOperations


class BusClient:
    """The tables of a bus in one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened = AsyncExitStack()
        self._bus: EventBus | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections."""
        await self._opened.aclose()
        self._bus = None

    @asynccontextmanager
    async def operations(self) -> AsyncIterator[AsyncOperations]:
        """Provide the operations; an error about an unreachable database becomes `Unavailable`."""
        require("sqlalchemy", extra="bus", for_="the bus in the console")
        from sparrow.bus.operations.opened_tables import open_tables, unavailable_if_unreachable

        async with self._opening:
            if self._bus is None:
                self._bus = await self._opened.enter_async_context(open_tables(self._url))
        with unavailable_if_unreachable(self._bus):
            yield self._bus.operations

"""What producers and consumers have in common: `async with`, and their health."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.health import Health


class SessionClient(ABC):
    """A producer or consumer that uses a session, its own or that of another client."""

    session: ClientSession

    async def open(self) -> None:
        """Open the session. `async with` does it."""
        await self.session.open()

    @abstractmethod
    async def close(self) -> None:
        """Close what was opened."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def health(self) -> Health:
        """Return what keeps the client from its work now. Clients that share a session share its findings."""
        return self.session.health.current()

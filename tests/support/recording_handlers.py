"""Message handlers that record what they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sparrow.model.message import StoredMessage


def body_texts(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


class RecordingHandler:
    """A handler that records its messages."""

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []

    async def __call__(self, message: StoredMessage) -> None:
        self.messages.append(message)

    @property
    def texts(self) -> list[str]:
        return body_texts(self.messages)


class GatedHandler(RecordingHandler):
    """A handler that keeps each message in progress until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.finished: list[str] = []

    async def __call__(self, message: StoredMessage) -> None:
        self.messages.append(message)
        await self.opened.wait()
        self.finished.append(message.body.decode())

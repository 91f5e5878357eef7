"""The interface of transactional messages that both store engines implement (`log`, `sql`)."""

from __future__ import annotations

from typing import Protocol

from sparrow.model.errors import Refused
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.store.spi import AppendResult, PendingAppend
from sparrow.wire.headers import EndTransaction


class TransactionNotEnded(Refused):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the transaction cannot be ended: {self.why}"


class TransactionCoordinator(Protocol):
    """Stores half messages, ends transactions, and checks back with producers that did not end theirs."""

    def append_half(self, queue: Queue, draft: Draft) -> PendingAppend:
        """Store a half message. Consumers see it in `queue` once its producer has committed it."""
        ...

    async def end(self, request: EndTransaction) -> AppendResult | None:
        """Commit or roll back. Return None if no message became visible.

        Raises `TransactionNotEnded` if the request does not match the half message.
        """
        ...

"""The interface of transactional messages that both store engines implement (`log`, `sql`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from sparrow.model.errors import Refused
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.store.spi import AppendResult, PendingAppend
from sparrow.wire.bodies import HalfMessages, ListHalfMessages
from sparrow.wire.headers import EndTransaction

SCANNED_MAX = 2_000
"""Half messages that one request for a list may look at."""


class TransactionNotEnded(Refused):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the transaction cannot be ended: {self.why}"


class EndOutcome(StrEnum):
    """What a request to end a transaction did."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOT_FOUND = "not_found"
    """It was ended before, or is unknown here."""
    UNDECIDED = "undecided"
    """The producer does not know the state yet: the broker checks back again."""


class EndedTransaction(NamedTuple):
    """The result of a request to end a transaction."""

    outcome: EndOutcome
    appended: AppendResult | None = None
    """Where the message became visible, if it was committed."""


PendingEnd = EndedTransaction | Awaitable[EndedTransaction]
"""The result, or an awaitable of it if the half message must be read from disk or from a database first."""


class TransactionCoordinator(Protocol):
    """Stores half messages, ends transactions, and checks back with producers that did not end theirs."""

    def append_half(self, queue: Queue, draft: Draft) -> PendingAppend:
        """Store a half message. Consumers see it in `queue` once its producer has committed it."""
        ...

    def end(self, request: EndTransaction, *, may_publish: Callable[[str], bool] = lambda topic: True) -> PendingEnd:
        """Commit or roll back. A half message for a topic to which the sender may not publish is not found.

        Raises `TransactionNotEnded` if the request does not match the half message.
        """
        ...

    async def count_by_topic(self) -> Mapping[str, int]:
        """Return the number of half messages that wait for their end, by topic."""
        ...

    async def list_waiting(self, request: ListHalfMessages) -> HalfMessages:
        """Return half messages that wait for their end, the oldest first. At most `SCANNED_MAX` are looked at."""
        ...

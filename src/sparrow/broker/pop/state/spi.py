"""The interface of the state of pops that both store engines implement (`log`, `sql`).

`log` writes every change to a journal, and a group's committed offset is its position. `sql` keeps the state in the
memory of the leader; there the committed offset is the ack floor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol

from sparrow.broker.pop.state.fifo import FifoBatch, FifoTable
from sparrow.broker.pop.state.in_flight import InFlightBatch, InFlightTable
from sparrow.model.queue import Queue


class PopState(Protocol):
    """The messages in flight of a broker, and the positions of groups."""

    cold_reads_max: int
    """How many queues may be read from disk or database for one pop.

    With more than one, no lane is skipped for a lower one.
    """

    @property
    def in_flight(self) -> InFlightTable: ...
    @property
    def fifo(self) -> FifoTable: ...
    @property
    def earlier_due(self) -> asyncio.Event:
        """An event that is set when something may be due earlier than before."""
        ...

    def check_available(self) -> None:
        """Raise an error if pops are not served here."""
        ...

    # -- positions ----------------------------------------------------------------------------------------------------

    def is_ready(self, group: str, queue: Queue) -> bool:
        """Return whether the group may pop the queue now. If not, parked pops are woken when it may."""
        ...

    def load_positions(self, group: str, queues: Iterable[Queue]) -> Awaitable[None] | None:
        """Return an awaitable that loads the group's positions in these queues; None if they are loaded."""
        ...

    def position(self, group: str, queue: Queue) -> int | None:
        """Return the next offset of the group; None before its first pop."""
        ...

    def advance(self, group: str, queue: Queue, offset: int) -> None:
        """Move the group's position to `offset`."""
        ...

    # -- messages in flight -------------------------------------------------------------------------------------------

    def add(self, batches: Sequence[InFlightBatch]) -> None:
        """Put batches in flight."""
        ...

    def settle(self, batch: InFlightBatch, mask: int) -> int:
        """Settle messages. Return those that were in flight."""
        ...

    def change_invisible_time(self, batch: InFlightBatch, offset: int, invisible_ms: int) -> InFlightBatch:
        """Change the invisible time of a message: it gets a batch, and so a handle, of its own."""
        ...

    def withdraw(self, batch: InFlightBatch) -> int:
        """Withdraw the rest of a batch while it is stored again. Return its messages; they cannot be acknowledged."""
        ...

    def confirm_stored(self, batch: InFlightBatch, mask: int) -> None:
        """Settle these withdrawn messages, which are stored again. The others are in flight as before."""
        ...

    def fifo_changed(self, fifo_batch: FifoBatch) -> None:
        """Store the change of a FIFO queue."""
        ...

    def put_mark(self, name: str, value: int) -> None:
        """Store a mark that survives a restart."""
        ...

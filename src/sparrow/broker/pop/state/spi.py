"""What pop asks of whoever keeps its state: what is in flight, and how far each group was handed messages out.

Two keep it. `pops` writes every change to the log, and a group's offset is how far messages were handed out. `sql_pops`
keeps it in the memory of the broker that leads; there the stored offset is how far everything is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol

from sparrow.broker.pop.state.fifo import FifoBatch, FifoTable
from sparrow.broker.pop.state.in_flight import InFlightBatch, InFlightTable
from sparrow.model.queue import Queue


class PopState(Protocol):
    """The state of all pops of a broker."""

    cold_reads_max: int
    """How many queues that are not at hand are read for one pop. With more than one, no lane is passed over for the one
    below it."""

    @property
    def in_flight(self) -> InFlightTable: ...
    @property
    def fifo(self) -> FifoTable: ...
    @property
    def earlier_due(self) -> asyncio.Event:
        """Something may be due before anything was before."""
        ...

    def check_available(self) -> None:
        """Raises what to tell whoever asks while pops are not served here."""
        ...

    # -- how far groups are -------------------------------------------------------------------------------------------

    def is_ready(self, group: str, queue: Queue) -> bool:
        """Whether the group may be handed out messages now. If not, who waits for the queue is woken when it may."""
        ...

    def load_positions(self, group: str, queues: Iterable[Queue]) -> Awaitable[None] | None:
        """To be awaited until it is known how far the group is in all of these; None: it is."""
        ...

    def position(self, group: str, queue: Queue) -> int | None:
        """What the group is handed out next; None if it never was anything."""
        ...

    def advance(self, group: str, queue: Queue, offset: int) -> None:
        """The group is handed out `offset` next."""
        ...

    # -- what is in flight --------------------------------------------------------------------------------------------

    def add(self, batches: Sequence[InFlightBatch]) -> None:
        """Messages are being handed out: in flight when this returns."""
        ...

    def settle(self, batch: InFlightBatch, mask: int) -> int:
        """These need nothing more; which of them still did."""
        ...

    def change_invisible_time(self, batch: InFlightBatch, offset: int, invisible_ms: int) -> InFlightBatch:
        """A message shall be invisible for so long from now on: it gets a lot, and so a handle, of its own."""
        ...

    def withdraw(self, batch: InFlightBatch) -> int:
        """What is left of a lot is being stored elsewhere: which that is. It cannot be acknowledged meanwhile."""
        ...

    def confirm_stored(self, batch: InFlightBatch, mask: int) -> None:
        """These of what was withdrawn are stored elsewhere, and settled; the others are in flight as before."""
        ...

    def fifo_changed(self, fifo_batch: FifoBatch) -> None:
        """A queue read in order has changed."""
        ...

    def put_mark(self, name: str, value: int) -> None:
        """Something to be known after a restart, too."""
        ...

"""What a replica set needs of a coordinator: a state that many may change, one at a time, and a key with a lease."""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import Enum
from typing import Protocol

from sparrow.replication.core.output import Change, Elect, HandOver
from sparrow.replication.core.snapshot import Snapshot


class CallOutcome(Enum):
    """What became of a conditional write."""

    APPLIED = "applied"
    REFUSED = "refused"
    """Somebody else was first; nothing is written."""
    UNKNOWN = "unknown"
    """No answer: it may have been applied, or may be later. Read the state."""


class Coordinator(Protocol):
    """Holds the state of one replica set. Calls raise `Unavailable` only where nothing can have been written."""

    ttl_s: int
    """How long the lease of a leader key lives without being renewed."""
    announced_s: int
    """How long the address of a replica stays known without being announced again."""

    async def read(self) -> Snapshot | None:
        """Return what is held now, linearizably; None before the set is initialised."""

    async def elect(self, election: Elect) -> CallOutcome:
        """Write the state and the leader key, with a new lease, if both are as they were read."""

    async def change(self, change: Change) -> CallOutcome:
        """Write the state, if it is as it was read and the leader key is still the caller's."""

    async def hand_over(self, call: HandOver) -> CallOutcome:
        """Write the state and remove the leader key, if both are as they were read."""

    async def announce(self, *, replacing: str = "") -> str | None:
        """Tell others where this replica takes requests.

        Return the address of another process that is announced as this replica; None: this one is. `replacing`: the
        address of such a process that is gone.
        """

    async def withdraw(self) -> None:
        """Forget the address of this replica."""

    async def resign(self, leader_revision: int) -> CallOutcome:
        """Remove the leader key that was created at this revision."""

    async def renew(self) -> bool:
        """Extend the lease of the leader key; return False if it is gone."""

    def watch(self) -> AsyncIterator[Snapshot]:
        """Yield what is held after each change. It may be silent for long: read from time to time as well."""

"""The candidacy of a replica: when it asks to be elected, for which epoch, and whether it was.

1. Only a replica that has every committed byte asks.
2. An election counts only in the process that asked for it, which recognises it by a random value. Outcomes may be
   unknown: any of the elections that it has asked for may still be applied.
3. After a hand-over the successor asks at once, and the others later. So does a replica whose disk is full.
"""

from __future__ import annotations

from collections.abc import Callable

from sparrow.replication.core import membership
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.core.output import Elect
from sparrow.replication.core.snapshot import LeaderKey, Snapshot


class Candidacy:
    """The elections that one process of a replica asks for."""

    def __init__(self, options: ReplicaOptions, make_id: Callable[[], str]) -> None:
        self.options, self._make_id = options, make_id
        self.due_ms: int | None = None
        """When to ask to be elected; None: not at all."""
        self.is_full = False
        """The disk has no space for more."""
        self._asked: set[str] = set()
        """The change ids of the elections that this process has asked for."""

    def plan(self, snapshot: Snapshot, now_ms: int) -> None:
        """Ask to be elected in a moment: nobody leads."""
        successor = snapshot.state.successor
        if successor == self.options.replica_id:
            self.due_ms = now_ms
        elif self.due_ms is None:
            delay_ms = self.options.election_delay_ms if successor is None else self.options.successor_delay_ms
            delay_ms = self.options.resign_after_ms if self.is_full else delay_ms
            self.due_ms = now_ms + delay_ms

    def ask(self, snapshot: Snapshot, incarnation: str, *known_epochs: int) -> Elect:
        """Return the call that elects this replica, with an epoch above all that are known."""
        state, holder = snapshot.state, snapshot.leader
        epoch = membership.next_epoch(state.epoch, *known_epochs)
        elected = membership.elect(state, self.options.replica_id, incarnation, epoch, self._make_id())
        self._asked.add(elected.change_id)
        return Elect(
            state=elected,
            state_revision=snapshot.state_revision,
            leader_revision=holder.create_revision if holder is not None else 0,
        )

    def has_won(self, holder: LeaderKey) -> bool:
        """Return whether this process was elected; an earlier one of the same replica does not count."""
        return holder.change_id in self._asked

    def forget(self) -> None:
        """Count none of the elections that were asked for so far: another one was applied, or a leadership ended."""
        self._asked.clear()

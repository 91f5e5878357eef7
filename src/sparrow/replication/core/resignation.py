"""When a leader at which nothing can be written or committed resigns, so that another replica leads."""

from __future__ import annotations

from sparrow.replication.core.membership import ReplicaSetState

FULL_AGAIN_FACTOR = 12
"""A leader whose disk was full from the start resigns so many times later: those with space were elected before it,
and retention needs the time of a leadership to free some."""


class Resignation:
    """Counts how long a leader has been of no use."""

    def __init__(self, *, is_full: bool) -> None:
        self.is_full = self._was_always_full = is_full
        """The disk has no space for more."""
        self._useless_since_ms: int | None = None

    def set_full(self, is_full: bool) -> None:
        """Note whether the disk has space for more."""
        self.is_full = is_full
        self._was_always_full &= is_full

    @property
    def reason(self) -> str:
        """Why the leader is of no use."""
        return "the disk is full" if self.is_full else "too few replicas are in sync"

    def is_due(self, state: ReplicaSetState, now_ms: int, after_ms: int, *, another_could_lead: bool) -> bool:
        """Return whether nothing could be written for so long, while another replica, which runs, could lead."""
        if not self._is_useless(state) or not another_could_lead:
            self._useless_since_ms = None
            return False
        if self._useless_since_ms is None:
            self._useless_since_ms = now_ms
        return now_ms - self._useless_since_ms >= after_ms * (FULL_AGAIN_FACTOR if self._was_always_full else 1)

    def _is_useless(self, state: ReplicaSetState) -> bool:
        if len(state.in_sync) < state.min_in_sync:
            return bool(state.eligible)
        return self.is_full and len(state.in_sync) > 1

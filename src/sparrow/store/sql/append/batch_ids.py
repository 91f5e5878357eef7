"""Identities of batches: how a repeated append is recognised, and which ids an append was given."""

from __future__ import annotations

from typing import NamedTuple

from sparrow.store.sql.lanes import Lane


class BatchId(NamedTuple):
    """Identifies some rows of an append in `hermes_batch`, so that they are stored once however often it is retried."""

    producer: int
    seq: int
    first: int
    """The index of the first row that it covers."""
    size: int
    is_for_all_lanes: bool = False
    """True for an idempotent producer's sequence: a repeat may be sent to another queue."""

    def stored_lane(self, lane: Lane) -> int:
        """Return the value of column `lane`: 0 stands for all lanes."""
        return 0 if self.is_for_all_lanes else lane.number

    def stored_offset(self, lane: Lane) -> int:
        """Return what column `base_id` holds above the first id: the lane, too, if the row stands for all lanes."""
        return lane.physical_offset(self.first) if self.is_for_all_lanes else self.first


class AssignedIds(NamedTuple):
    """The ids that an append was given: consecutive, from `base_id` on."""

    base_id: int
    store_ms: int
    lane: int

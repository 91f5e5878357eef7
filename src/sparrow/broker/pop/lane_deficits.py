"""Deficit accounting between the priority lanes of a topic: in which order a pop reads them. Pure functions.

High is read before middle, and middle before low. A starving lane is guaranteed tenths of every batch, and slots are
reserved for it. What it does not get (a batch of one has no tenths, large messages fill the answer) is its deficit;
once the deficit is a whole batch, the lane is read first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sparrow.model.priority import Priority

GUARANTEED_TENTHS: Mapping[Priority, int] = {Priority.MIDDLE: 2, Priority.LOW: 1}
"""Of a batch, for a starving lane."""
_WHOLE = 10
_OWED_BATCHES_MAX = 2
"""Larger deficits are cut: a lane that could not be read for a while must not block the others afterwards."""

LaneDeficits = Mapping[Priority, int]
"""In tenths of a slot."""


class LanePlan(NamedTuple):
    """The order of lanes for one batch, and the slots reserved for starving ones."""

    order: tuple[Priority, ...] = tuple(Priority)
    reserved: Mapping[Priority, int] = {}
    """Slots that no other lane may use."""

    def reserved_after(self, lane: Priority | None) -> int:
        """Return the slots that this lane must leave for later ones. None: for all lanes."""
        later = self.order if lane is None else self.order[self.order.index(lane) + 1 :]
        return sum(self.reserved.get(each, 0) for each in later)


STRICT_PRIORITY = LanePlan()


def accrue_deficits(deficits: LaneDeficits, starving: Collection[Priority], *, slots: int) -> LaneDeficits:
    """Return the deficits after one more batch. A lane that does not starve has none."""
    most = _OWED_BATCHES_MAX * _WHOLE * slots
    return {lane: min(deficits.get(lane, 0) + GUARANTEED_TENTHS[lane] * slots, most) for lane in starving}


def repay_deficit(deficits: LaneDeficits, lane: Priority, *, count: int) -> LaneDeficits:
    """Return the deficits after `count` messages of a lane were taken."""
    return {each: max(0, tenths - _WHOLE * count) if each is lane else tenths for each, tenths in deficits.items()}


def plan_batch(deficits: LaneDeficits, *, slots: int) -> LanePlan:
    """Return the plan for the next batch, which has `slots` slots."""
    first = max(deficits, key=lambda lane: (deficits[lane], -lane), default=None)
    if first is not None and deficits[first] >= _WHOLE * slots:
        return LanePlan((first, *(lane for lane in Priority if lane is not first)))
    return LanePlan(reserved={lane: tenths // _WHOLE for lane, tenths in deficits.items()})


def starvation_candidates(waiting: Iterable[int], *, slots: int) -> list[Priority]:
    """Return the lanes that a batch of `slots` slots does not reach. `waiting` has the lag of each lane, high first."""
    before, found = 0, []
    for lane, count in zip(Priority, waiting, strict=True):
        if count and before >= slots:
            found.append(lane)
        before += count
    return found

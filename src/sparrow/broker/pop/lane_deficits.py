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
"""Of a batch, for a lane that starves."""
_WHOLE = 10
_OWED_BATCHES_MAX = 2
"""More is forgotten: a lane that could not be read for a while does not shut the others out afterwards."""

LaneDeficits = Mapping[Priority, int]
"""Tenths of places."""


class LanePlan(NamedTuple):
    """How one batch is filled."""

    order: tuple[Priority, ...] = tuple(Priority)
    reserved: Mapping[Priority, int] = {}
    """Places that no other lane gets."""

    def reserved_after(self, lane: Priority | None) -> int:
        """Places that this lane, or with None somebody before them all, must leave to those whose turn is later."""
        later = self.order if lane is None else self.order[self.order.index(lane) + 1 :]
        return sum(self.reserved.get(each, 0) for each in later)


STRICT_PRIORITY = LanePlan()


def accrue_deficits(deficits: LaneDeficits, starving: Collection[Priority], *, places: int) -> LaneDeficits:
    """What is owed with one more batch. A lane that does not starve is owed nothing."""
    most = _OWED_BATCHES_MAX * _WHOLE * places
    return {lane: min(deficits.get(lane, 0) + GUARANTEED_TENTHS[lane] * places, most) for lane in starving}


def repay_deficit(deficits: LaneDeficits, lane: Priority, *, count: int) -> LaneDeficits:
    """What is still owed when so many of a lane were taken."""
    return {each: max(0, tenths - _WHOLE * count) if each is lane else tenths for each, tenths in deficits.items()}


def plan_batch(deficits: LaneDeficits, *, places: int) -> LanePlan:
    """How the next batch, of so many places, is to be filled."""
    first = max(deficits, key=lambda lane: (deficits[lane], -lane), default=None)
    if first is not None and deficits[first] >= _WHOLE * places:
        return LanePlan((first, *(lane for lane in Priority if lane is not first)))
    return LanePlan(reserved={lane: tenths // _WHOLE for lane, tenths in deficits.items()})


def starvation_candidates(waiting: Iterable[int], *, places: int) -> list[Priority]:
    """Lanes that a batch of so many places does not get to. `waiting`: messages in each lane, the highest first."""
    before, found = 0, []
    for lane, count in zip(Priority, waiting, strict=True):
        if count and before >= places:
            found.append(lane)
        before += count
    return found

"""The ack floor of a group in a queue, for stores that keep only settled offsets. Pure.

1. `position` is the next message to pop. Everything below `floor` is settled: acknowledged, or stored again.
2. A popped message holds back the floor until it is settled, even if it has moved to another batch.
"""

from __future__ import annotations

import heapq
from itertools import count

from sparrow.broker.pop.state.in_flight import InFlightBatch

_SPARE_ENTRIES = 1024


class AckFloor:
    """The position and the ack floor of one group in one queue."""

    __slots__ = ("_compact_at", "_numbers", "_unsettled", "lane", "observed_offset", "position", "stored_offset")

    def __init__(self, lane: int, stored: int | None) -> None:
        """Start with nothing in flight."""
        self.lane = lane
        """The lane's number. A topic that is deleted and created again has other lanes."""
        self.position = stored
        """None: nothing was ever popped."""
        self.stored_offset = stored
        """The offset that is stored, or being stored."""
        self.observed_offset: int | None = None
        """The store's offset at the last check. If it differs now, another client has committed an offset."""
        self._unsettled: list[tuple[int, int, InFlightBatch]] = []
        """A heap of batches, ordered by their first unsettled offset at the last check. That offset only grows."""
        self._numbers = count()
        self._compact_at = _SPARE_ENTRIES

    def track(self, batch: InFlightBatch) -> None:
        """Track a batch whose messages are not settled."""
        lowest = batch.first_unsettled()
        assert lowest is not None, "an empty batch has no messages to track"
        heapq.heappush(self._unsettled, (lowest, next(self._numbers), batch))
        if len(self._unsettled) > self._compact_at:
            # While one batch stays long in flight, settled batches with higher offsets would pile up.
            self._unsettled = [entry for entry in self._unsettled if entry[2].first_unsettled() is not None]
            heapq.heapify(self._unsettled)
            self._compact_at = 2 * len(self._unsettled) + _SPARE_ENTRIES

    @property
    def floor(self) -> int | None:
        """The first unsettled message; None before the first pop."""
        unsettled = self._unsettled
        while unsettled:
            lowest, number, batch = unsettled[0]
            now = batch.first_unsettled()
            if now is None:
                heapq.heappop(unsettled)
            elif now != lowest:
                heapq.heapreplace(unsettled, (now, number, batch))
            else:
                return lowest if self.position is None else min(lowest, self.position)
        return self.position

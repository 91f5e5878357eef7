"""How far a group is in a queue where only what is settled is stored. Pure: whoever stores it is told what.

1. `position` is what is handed out next. Everything below `floor` is settled: acknowledged, or stored elsewhere.
2. What was taken holds the floor until it is settled, in whatever lot it is by then.
"""

from __future__ import annotations

import heapq
from itertools import count

from sparrow.broker.pop.state.in_flight import InFlightBatch

_SPARE_ENTRIES = 1024


class AckFloor:
    """Of one group in one queue."""

    __slots__ = ("_compact_at", "_numbers", "_unsettled", "lane", "observed_offset", "position", "stored_offset")

    def __init__(self, lane: int, stored: int | None) -> None:
        """As it is when nothing is in flight."""
        self.lane = lane
        """The lane's number: a topic that was deleted and made again has others."""
        self.position = stored
        """None: nothing was ever handed out."""
        self.stored_offset = stored
        """The offset that is stored, or on its way there."""
        self.observed_offset: int | None = None
        """What the store took for that when we last looked: if it is another now, somebody else has said so."""
        self._unsettled: list[tuple[int, int, InFlightBatch]] = []
        """A heap of lots by the first message of each that was not settled when we last looked: it only grows."""
        self._numbers = count()
        self._compact_at = _SPARE_ENTRIES

    def track(self, batch: InFlightBatch) -> None:
        """Its messages are not settled yet."""
        lowest = batch.first_unsettled()
        assert lowest is not None, "an empty lot holds nothing"
        heapq.heappush(self._unsettled, (lowest, next(self._numbers), batch))
        if len(self._unsettled) > self._compact_at:
            # Behind one that stays long in flight, lots that are gone would pile up.
            self._unsettled = [entry for entry in self._unsettled if entry[2].first_unsettled() is not None]
            heapq.heapify(self._unsettled)
            self._compact_at = 2 * len(self._unsettled) + _SPARE_ENTRIES

    @property
    def floor(self) -> int | None:
        """The first message that is not settled; None while nothing was ever handed out."""
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

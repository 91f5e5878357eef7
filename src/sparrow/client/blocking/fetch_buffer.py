"""Messages fetched from the loop in one hop and handed out one by one, or some at a time.

1. What was handed out counts as dealt with when more is asked for; before that it is in hand.
2. The loop hears of what is dealt with at the next hop, or after a second at the latest if messages go slowly.
3. A message of a queue that was given up, or left for another place, is not handed out any more.

One thread takes at a time. `add` and `settle` run on the loop; deques make that safe.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, mark_consumed
from sparrow.model.message import StoredMessage

SETTLE_INTERVAL_S = 1.0


class FetchBuffer:
    def __init__(self) -> None:
        self._line: deque[FetchedMessage] = deque()
        self._in_hand: list[FetchedMessage] = []
        self._dealt_with: deque[FetchedMessage] = deque()
        self._settled_s = time.monotonic()

    # -- in the thread that takes -------------------------------------------------------------------------------------

    def take(self, count_max: int) -> list[StoredMessage]:
        """What is here. The messages before are dealt with."""
        self.finish()
        line, taken = self._line, self._in_hand
        while line and len(taken) < count_max:
            item = line.popleft()
            if not item[0].is_dropped:
                taken.append(item)
        return [message for _, message in taken]

    def finish(self) -> None:
        """What is in hand is dealt with."""
        self._dealt_with.extend(self._in_hand)
        self._in_hand = []

    @property
    def is_due(self) -> bool:
        """Whether the loop should hear of what is dealt with, though nothing else is asked of it."""
        return bool(self._dealt_with) and time.monotonic() - self._settled_s > SETTLE_INTERVAL_S

    # -- on the loop --------------------------------------------------------------------------------------------------

    def add(self, items: Iterable[FetchedMessage]) -> None:
        self._line.extend(items)

    def settle(self) -> None:
        """Tell the feeds what is dealt with."""
        self._settled_s = time.monotonic()
        mark_consumed([self._dealt_with.popleft() for _ in range(len(self._dealt_with))])

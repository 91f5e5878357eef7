"""A buffer of messages that are fetched from the loop thread at once and taken one by one, or some at a time.

1. A taken message counts as consumed when more are taken.
2. Consumed messages are reported to the loop thread at the next fetch, or after a second if messages are slow.
3. Messages of a queue that was released or restarted are not returned any more; if they were committed before they were
   fetched (at most once), they are, because no other member gets them.

One thread takes messages at a time. `add` and `settle` run on the loop thread; deques make that safe.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, mark_consumed
from sparrow.model.message import StoredMessage

SETTLE_INTERVAL_S = 1.0


class FetchBuffer:
    """Fetched messages of a blocking consumer."""

    def __init__(self, *, are_committed: bool = False) -> None:
        self._are_committed = are_committed
        self._line: deque[FetchedMessage] = deque()
        self._taken: list[FetchedMessage] = []
        self._consumed: deque[FetchedMessage] = deque()
        self._settled_s = time.monotonic()

    # -- in the consuming thread --------------------------------------------------------------------------------------

    def take(self, count_max: int) -> list[StoredMessage]:
        """Return buffered messages. Those taken before count as consumed."""
        self.finish()
        line, taken = self._line, self._taken
        while line and len(taken) < count_max:
            item = line.popleft()
            if self._are_committed or not item[0].is_dropped:
                taken.append(item)
        return [message for _, message in taken]

    def finish(self) -> None:
        """Count the taken messages as consumed."""
        self._consumed.extend(self._taken)
        self._taken = []

    @property
    def is_due(self) -> bool:
        """Whether consumed messages should be reported, though nothing is fetched."""
        return bool(self._consumed) and time.monotonic() - self._settled_s > SETTLE_INTERVAL_S

    # -- on the loop thread -------------------------------------------------------------------------------------------

    def add(self, items: Iterable[FetchedMessage]) -> None:
        """Add fetched messages."""
        self._line.extend(items)

    def settle(self) -> None:
        """Report consumed messages to their fetchers."""
        self._settled_s = time.monotonic()
        mark_consumed([self._consumed.popleft() for _ in range(len(self._consumed))])

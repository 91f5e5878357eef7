"""Delivery to applications that poll: messages wait until they are taken, one by one or some at a time.

In a topic with priority lanes, the highest priority at that moment is taken first. Topics take turns in the order of
arrival.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from itertools import repeat
from typing import cast

from sparrow import clock
from sparrow.client.aio.consume.handler_delivery import COMMIT_RETRY_S, CommitFirst
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, QueueFetcher, mark_consumed
from sparrow.client.aio.consume.topic_lanes import TopicLanes
from sparrow.client.consume.priority_lanes import PriorityLanes
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.message import StoredMessage


class PolledDelivery:
    """Fetched messages that wait for a poll."""

    def __init__(self, lanes: TopicLanes, commit_first: CommitFirst | None = None) -> None:
        """Create it. `commit_first`: commit messages before they are taken, for delivery at most once."""
        self._lanes, self._commit_first = lanes, commit_first
        # Lanes are queued once for each message that waits in them. Which message it is, is decided when it is taken.
        self._line: deque[FetchedMessage | PriorityLanes[FetchedMessage]] = deque()
        self._taken: list[FetchedMessage] = []
        self._has_messages = asyncio.Event()
        self.is_stopped = False

    def arrived(self, fetcher: QueueFetcher, messages: list[StoredMessage]) -> None:
        """Add fetched messages."""
        plain, in_lanes = self._lanes.add(fetcher, messages)
        self._line.extend([(fetcher, message) for message in plain])
        for lanes, count in in_lanes:
            self._line.extend(repeat(lanes, count))
        self._has_messages.set()

    async def release_queue(self, fetcher: QueueFetcher) -> bool:
        """Drop the waiting messages of a queue."""
        self._line = deque(turn for turn in self._line if isinstance(turn, PriorityLanes) or turn[0] is not fetcher)
        self._lanes.forget(fetcher)
        return True

    async def handle_directly(self, message: StoredMessage) -> None:
        """Refuse: there is no handler."""
        raise Refused("this consumer is polled and has no handler: start one with a handler")

    async def take(self, count_max: int, timeout_s: float | None) -> list[StoredMessage]:
        """Return some messages, or none when the time is up. They count as unconsumed until `finish`."""
        taken = await self.fetch_items(count_max, timeout_s)
        self._taken += taken
        return [message for _, message in taken]

    async def fetch_items(
        self, count_max: int, timeout_s: float | None, *, in_lanes_max: int | None = None
    ) -> list[FetchedMessage]:
        """Return some messages with their fetchers; the caller marks them as consumed.

        `in_lanes_max`: the limit in topics with lanes, because a message that is taken can no longer be overtaken.
        """
        taken = await self._take_waiting(count_max, timeout_s, in_lanes_max)
        if self._commit_first is None or not taken:
            return taken
        try:
            return await self._commit_first(taken)  # in its own time: it must not be cut short by a short poll
        except BaseException as error:
            self._line.extendleft(reversed(taken))
            if not isinstance(error, SparrowError):
                raise
            await asyncio.sleep(COMMIT_RETRY_S)
            return []

    async def _take_waiting(
        self, count_max: int, timeout_s: float | None, in_lanes_max: int | None
    ) -> list[FetchedMessage]:
        # At first without a deadline: to set one costs more than to take a message.
        taken = self._take_ready(count_max, in_lanes_max)
        if taken is not None:
            return taken
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_stopped:
                    self._has_messages.clear()
                    await self._has_messages.wait()
                    taken = self._take_ready(count_max, in_lanes_max)
                    if taken is not None:
                        return taken
        except TimeoutError:
            pass
        return []

    def _take_ready(self, count_max: int, in_lanes_max: int | None) -> list[FetchedMessage] | None:
        """Return some of the messages that are there; None if there are none."""
        while self._line and not self.is_stopped:
            if self._lanes and in_lanes_max is not None:
                count_max = min(count_max, in_lanes_max)
            taken = self._next(count_max)
            if taken or count_max <= 0:
                return taken
        return None

    def _next(self, count_max: int) -> list[FetchedMessage]:
        """Remove and return the next messages; none if those that were due have been released."""
        line = self._line
        turns = [line.popleft() for _ in range(min(count_max, len(line)))]
        if not self._lanes:
            return cast(list[FetchedMessage], turns)
        taken: list[FetchedMessage] = []
        counts: Counter[PriorityLanes[FetchedMessage]] = Counter()
        for turn in turns:
            if isinstance(turn, PriorityLanes):
                counts[turn] += 1
            else:
                taken.append(turn)
        for lanes, count in counts.items():
            taken += lanes.take(count, clock.now_ms())
        return taken

    def finish(self) -> None:
        """Mark everything taken so far as consumed."""
        taken, self._taken = self._taken, []
        mark_consumed(taken)

    async def stop(self, grace_s: float) -> None:
        """Drop what was not taken, and end the waiting polls."""
        self.is_stopped = True
        self._line.clear()
        self._has_messages.set()

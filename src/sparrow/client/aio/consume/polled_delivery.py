"""Messages that wait until the application takes them: one by one, or some at a time.

Of a topic with lanes, what has the highest priority when somebody asks is taken first. Topics take turns as their
messages came.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from itertools import repeat
from typing import cast

from sparrow import clock
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, QueueFetcher, mark_consumed
from sparrow.client.aio.consume.topic_lanes import TopicLanes
from sparrow.client.priority_lanes import PriorityLanes
from sparrow.model.errors import Refused
from sparrow.model.message import StoredMessage


class PolledDelivery:
    def __init__(self, lanes: TopicLanes) -> None:
        self._lanes = lanes
        # Lanes stand in line once for each message that waits in them. Which one it is, is decided when it is taken.
        self._line: deque[FetchedMessage | PriorityLanes[FetchedMessage]] = deque()
        self._taken: list[FetchedMessage] = []
        self._there_are_some = asyncio.Event()
        self.is_stopped = False

    def arrived(self, feed: QueueFetcher, messages: list[StoredMessage]) -> None:
        plain, in_lanes = self._lanes.add(feed, messages)
        self._line.extend([(feed, message) for message in plain])
        for lanes, count in in_lanes:
            self._line.extend(repeat(lanes, count))
        self._there_are_some.set()

    async def release_queue(self, feed: QueueFetcher) -> bool:
        self._line = deque(turn for turn in self._line if isinstance(turn, PriorityLanes) or turn[0] is not feed)
        self._lanes.forget(feed)
        return True

    async def handle_directly(self, message: StoredMessage) -> None:
        raise Refused("this consumer has no handler that a message could be given to")

    async def take(self, count_max: int, timeout_s: float | None) -> list[StoredMessage]:
        """Some messages, or none when the time is up. They are in hand until `finish`."""
        taken = await self.fetch_items(count_max, timeout_s)
        self._taken += taken
        return [message for _, message in taken]

    async def fetch_items(
        self, count_max: int, timeout_s: float | None, *, in_lanes_max: int | None = None
    ) -> list[FetchedMessage]:
        """The same; it is up to the caller to tell the feeds when they are done. `in_lanes_max`: no more than that
        where there are priorities, for what is taken away is not overtaken any more."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_stopped:
                    while self._line:
                        if self._lanes and in_lanes_max is not None:
                            count_max = min(count_max, in_lanes_max)
                        taken = self._next(count_max)
                        if taken or count_max <= 0:
                            return taken
                    self._there_are_some.clear()
                    await self._there_are_some.wait()
        except TimeoutError:
            pass
        return []

    def _next(self, count_max: int) -> list[FetchedMessage]:
        """None: those whose turns these were have been taken back."""
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
        """Everything taken so far is dealt with."""
        taken, self._taken = self._taken, []
        mark_consumed(taken)

    async def stop(self, grace_s: float) -> None:
        """What was not taken is not ours to finish. Who waits for more is told that there will be none."""
        self.is_stopped = True
        self._line.clear()
        self._there_are_some.set()

"""Waiting messages of topics with priority lanes, by topic: priorities of different topics are not compared."""

from __future__ import annotations

from collections.abc import Callable

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, QueueFetcher
from sparrow.client.consume.priority_lanes import STARVATION_MS, PriorityLanes
from sparrow.client.consume.pulled_batch import PulledBatch
from sparrow.model.errors import IllegalMessage
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority, parse_priority
from sparrow.model.protocol import PROPERTY_PRIORITY, PROPERTY_PRIORITY_NUMBER


class TopicLanes:
    """The priority lanes of each topic."""

    def __init__(self, has_lanes: Callable[[str], bool], *, starvation_ms: int = STARVATION_MS) -> None:
        self._has_lanes, self._starvation_ms = has_lanes, starvation_ms
        self._by_topic: dict[str, PriorityLanes[FetchedMessage]] = {}

    def __bool__(self) -> bool:
        """Return whether a message of a topic with lanes has arrived."""
        return bool(self._by_topic)

    def add(
        self, fetcher: QueueFetcher, messages: list[StoredMessage]
    ) -> tuple[list[StoredMessage], list[tuple[PriorityLanes[FetchedMessage], int]]]:
        """Add messages to lanes. Return those of topics without lanes, and how many were added to which lanes."""
        if fetcher.lane is not None:
            lanes = self._of(fetcher.queue.topic)
            lanes.add(fetcher.lane, [(fetcher, message) for message in messages])
            return [], [(lanes, len(messages))]
        if not fetcher.is_retry:
            return messages, []
        plain, counts = [], dict[PriorityLanes[FetchedMessage], int]()
        for message in messages:
            if self._has_lanes(message.topic):
                lanes = self._of(message.topic)
                lanes.add(_priority_of(message), [(fetcher, message)])
                counts[lanes] = counts.get(lanes, 0) + 1
            else:
                plain.append(message)
        return plain, list(counts.items())

    def forget(self, fetcher: QueueFetcher) -> None:
        """Drop the waiting messages of a queue."""
        for lanes in self._by_topic.values():
            lanes.keep(lambda item: item[0] is not fetcher)

    def _of(self, topic: str) -> PriorityLanes[FetchedMessage]:
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = PriorityLanes(_stored_ms, starvation_ms=self._starvation_ms)
        return found


def has_lanes(session: ClientSession | None, topic: str) -> bool:
    """Return whether retried messages of a topic are delivered by priority; without a session, none are."""
    route = session.cached_route(topic) if session is not None else None
    return route is not None and bool(route.lane_brokers)


def _stored_ms(item: FetchedMessage) -> int:
    return item[1].store_ms


def _priority_of(message: StoredMessage | PulledBatch) -> Priority:
    """Return the priority of a retried message, or of the first of a batch: its queue does not show it."""
    try:
        properties = (message[0] if isinstance(message, PulledBatch) else message).properties
        return parse_priority(properties.get(PROPERTY_PRIORITY), properties.get(PROPERTY_PRIORITY_NUMBER))
    except IllegalMessage:  # of a broker on which the topic has no lanes
        return Priority.MIDDLE

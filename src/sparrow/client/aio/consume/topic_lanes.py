"""What waits of topics with lanes, for each topic: priorities say nothing about messages of different topics."""

from __future__ import annotations

from collections.abc import Callable

from sparrow.client.aio.consume.queue_fetcher import FetchedMessage, QueueFetcher
from sparrow.client.priority_lanes import STARVATION_MS, PriorityLanes
from sparrow.model.errors import IllegalMessage
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority, parse_priority
from sparrow.model.protocol import PROPERTY_PRIORITY


class TopicLanes:
    def __init__(self, has_lanes: Callable[[str], bool], *, starvation_ms: int = STARVATION_MS) -> None:
        self._has_lanes, self._starvation_ms = has_lanes, starvation_ms
        self._by_topic: dict[str, PriorityLanes[FetchedMessage]] = {}

    def __bool__(self) -> bool:
        """Whether anything of a topic with lanes has come."""
        return bool(self._by_topic)

    def add(
        self, feed: QueueFetcher, messages: list[StoredMessage]
    ) -> tuple[list[StoredMessage], list[tuple[PriorityLanes[FetchedMessage], int]]]:
        """Messages of topics without lanes are the caller's again; of the others, into which lanes how many went."""
        if feed.lane is not None:
            lanes = self._of(feed.queue.topic)
            lanes.add(feed.lane, [(feed, message) for message in messages])
            return [], [(lanes, len(messages))]
        if not feed.is_retry:
            return messages, []
        plain, counts = [], dict[PriorityLanes[FetchedMessage], int]()
        for message in messages:
            if self._has_lanes(message.topic):
                lanes = self._of(message.topic)
                lanes.add(_said_by(message), [(feed, message)])
                counts[lanes] = counts.get(lanes, 0) + 1
            else:
                plain.append(message)
        return plain, list(counts.items())

    def forget(self, feed: QueueFetcher) -> None:
        for lanes in self._by_topic.values():
            lanes.keep(lambda item: item[0] is not feed)

    def _of(self, topic: str) -> PriorityLanes[FetchedMessage]:
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = PriorityLanes(_stored_ms, starvation_ms=self._starvation_ms)
        return found


def _stored_ms(item: FetchedMessage) -> int:
    return item[1].store_ms


def _said_by(message: StoredMessage) -> Priority:
    """Of a message that comes again: the queue it comes from says nothing."""
    try:
        return parse_priority(message.properties.get(PROPERTY_PRIORITY))
    except IllegalMessage:  # from a broker on which the topic has no lanes
        return Priority.MIDDLE

"""A cursor over a whole topic of a store, in the order of priorities: high, middle, low.

1. The cursor of a group starts at the group's committed offset of each queue, or at the oldest message.
2. A cursor without a group starts after the newest message and stores nothing; a commit is refused (`GroupRequired`).
3. Both kinds are independent of each other.
4. Messages of a queue come in order, each once. The parts of a priority take turns at being read first.

A cursor does not wait for messages: call `read` again.
"""

from __future__ import annotations

from typing import NamedTuple

from sparrow.model.errors import GroupRequired, UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.priority import LANES_SYS_FLAG, Priority, read_queue_id
from sparrow.model.queue import Queue, QueueOffset
from sparrow.model.topic import Topic
from sparrow.store.spi import AtEnd, Moved, Slice, Store
from sparrow.wire import record

READ_BYTES_MAX = 4 << 20
"""Limit of one read of a queue."""


async def open_at_end(store: Store, topic: str) -> TopicCursor:
    """Open a cursor without a group, after the newest message."""
    levels = await _levels(store, topic)
    at = {queue: (await store.bounds(queue)).end for level in levels for queue in level}
    return TopicCursor(store, levels, at, None)


async def open_for_group(store: Store, topic: str, group: str) -> TopicCursor:
    """Open a cursor for a group, at its committed offsets or at the oldest message."""
    levels = await _levels(store, topic)
    at = {}
    for queue in (queue for level in levels for queue in level):
        committed = await store.offsets.committed(group, queue)
        at[queue] = (await store.bounds(queue)).first if committed is None else committed
    return TopicCursor(store, levels, at, group)


class TopicCursor:
    """A position in each queue of a topic. Queues that are added later are not read."""

    def __init__(
        self, store: Store, levels: list[list[Queue]], at: dict[Queue, QueueOffset], group: str | None
    ) -> None:
        self._store, self._levels, self._at, self._group = store, levels, at, group
        self._committed = dict(at)

    def position(self, queue: Queue) -> QueueOffset:
        """Return the offset to be read next."""
        return self._at[queue]

    def group_for(self, what: str) -> str:
        """Return the group; `GroupRequired` with `what` in its message if there is none."""
        if self._group is None:
            raise GroupRequired(what)
        return self._group

    async def read(self, count_max: int) -> list[StoredMessage]:
        """Return the next messages, the highest priority first; fewer than `count_max` only if there are no more."""
        found: list[StoredMessage] = []
        for level in self._levels:
            for queue in level:
                found += await self._from(queue, count_max - len(found))
            # Rotate, so that a queue which is never empty does not starve the others of its priority.
            level.append(level.pop(0))
        return found

    async def commit(self) -> None:
        """Commit everything read so far."""
        group = self.group_for("to commit what was read")
        for queue, offset in self._at.items():
            if offset != self._committed[queue]:
                await self._store.offsets.commit(group, queue, offset)
                self._committed[queue] = offset

    async def _from(self, queue: Queue, count_max: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while len(found) < count_max:
            more = await self._store.read(
                queue, self._at[queue], count_max=count_max - len(found), bytes_max=READ_BYTES_MAX
            )
            match more:
                case Slice():
                    found += record.decode_all(more.tobytes())
                    self._at[queue] = more.next_offset
                case Moved(to=to):  # retention has deleted the next message, or the queue was truncated
                    self._at[queue] = to
                case AtEnd():
                    break
        return found


class QueueSpan(NamedTuple):
    """Messages of one queue in a range of offsets."""

    messages: list[StoredMessage]
    missing: int
    """How many messages of the range do not exist: deleted by retention, or not appended yet."""


async def read_span(store: Store, queue: Queue, begin: int, end: int) -> QueueSpan:
    """Read the messages with offsets in [begin, end)."""
    found: list[StoredMessage] = []
    at = begin
    while at < end:
        more = await store.read(queue, at, count_max=end - at, bytes_max=READ_BYTES_MAX)
        match more:
            case Slice():
                found += [each for each in record.decode_all(more.tobytes()) if each.queue_offset < end]
                at = more.next_offset
            case Moved(to=to) if to > at:
                at = to
            case Moved() | AtEnd():
                break
    return QueueSpan(found, end - begin - len(found))


async def _levels(store: Store, name: str) -> list[list[Queue]]:
    """Return the queues of each priority; all in one list if the topic has no lanes."""
    topic = (await store.catalog.list_topics()).get(name)
    if topic is None:
        raise UnknownTopic(name)
    if not topic.sys_flag & LANES_SYS_FLAG:
        return [[Queue(name, queue_id) for queue_id in range(topic.read_queues)]]
    return [_level(topic, priority) for priority in Priority]


def _level(topic: Topic, priority: Priority) -> list[Queue]:
    return [Queue(topic.name, read_queue_id(part, priority)) for part in range(topic.write_queues)]

"""Reading a whole topic straight from a store, high before middle before low.

1. A reader of a group goes on where the group committed, queue by queue; where it never did, at the oldest message.
2. A reader without a group starts behind the newest message, and nothing is ever kept for it. What only a group can
   have, it is refused (`GroupRequired`).
3. The two know nothing of each other, and may be used side by side.
4. Inside a queue messages come in order, each once. With several parts, those of a priority take turns at being first.

Nothing here waits for messages to come: whoever holds a reader asks again.
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
"""Of one read of a queue. There are as many reads as it takes."""


async def open_at_end(store: Store, topic: str) -> TopicCursor:
    """A reader without a group: it sees what comes from now on."""
    levels = await _levels(store, topic)
    at = {queue: (await store.bounds(queue)).end for level in levels for queue in level}
    return TopicCursor(store, levels, at, None)


async def open_for_group(store: Store, topic: str, group: str) -> TopicCursor:
    """A reader for a group: it goes on where the group is, or begins with the oldest message there is."""
    levels = await _levels(store, topic)
    at = {}
    for queue in (queue for level in levels for queue in level):
        committed = await store.offsets.committed(group, queue)
        at[queue] = (await store.bounds(queue)).first if committed is None else committed
    return TopicCursor(store, levels, at, group)


class TopicCursor:
    """Where somebody is in a topic. Parts that the topic is given later are seen by readers made later."""

    def __init__(
        self, store: Store, levels: list[list[Queue]], at: dict[Queue, QueueOffset], group: str | None
    ) -> None:
        self._store, self._levels, self._at, self._group = store, levels, at, group
        self._committed = dict(at)

    def position(self, queue: Queue) -> QueueOffset:
        """The offset to be read next."""
        return self._at[queue]

    def group_for(self, what: str) -> str:
        """The group in whose name something is kept; `GroupRequired` if there is none. `what` is the sentence's."""
        if self._group is None:
            raise GroupRequired(what)
        return self._group

    async def read(self, count_max: int) -> list[StoredMessage]:
        """The next messages, the highest priority first; fewer than asked for only if there are no more."""
        found: list[StoredMessage] = []
        for level in self._levels:
            for queue in level:
                found += await self._from(queue, count_max - len(found))
            # So that a part which is always full does not keep the others of its priority waiting for ever.
            level.append(level.pop(0))
        return found

    async def commit(self) -> None:
        """Everything read so far is done with: a reader of the same group that is made now comes after it."""
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
                case Moved(to=to):  # retention took what was next, or the store lost its newest
                    self._at[queue] = to
                case AtEnd():
                    break
        return found


class QueueSpan(NamedTuple):
    """Messages of one queue that were asked for by their places."""

    messages: list[StoredMessage]
    missing: int
    """How many of them are not there: retention took them, or they have not come yet."""


async def read_span(store: Store, queue: Queue, begin: int, end: int) -> QueueSpan:
    """The messages from `begin` on and before `end`, as many as there are."""
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
    """The queues of each priority; of a topic without lanes, all of them as one."""
    topic = (await store.catalog.list_topics()).get(name)
    if topic is None:
        raise UnknownTopic(name)
    if not topic.sys_flag & LANES_SYS_FLAG:
        return [[Queue(name, queue_id) for queue_id in range(topic.read_queues)]]
    return [_level(topic, priority) for priority in Priority]


def _level(topic: Topic, priority: Priority) -> list[Queue]:
    return [Queue(topic.name, read_queue_id(part, priority)) for part in range(topic.write_queues)]

"""The progress of a consumer group in the commit log, for retention that waits for an archive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue


def consumed_to(written: int, queues: Iterable[ConsumeQueue], offsets: Mapping[str, Mapping[int, int]]) -> int:
    """Return the physical offset below which a group with these offsets (topic -> queue -> next) needs nothing.

    Read `written` before offsets and queues: messages appended meanwhile then do not count as consumed. Once the group
    has read one queue of a topic, all queues of the topic count. Messages that readers may not see yet count as well.
    """
    passed = written
    for queue in queues:
        its = offsets.get(queue.queue.topic)
        if its is None:
            continue
        at = max(its.get(queue.queue.id, 0), queue.first)
        if at < queue.end:
            place = queue.physical_offset_at(at)
            # A damaged entry has no physical offset: nothing counts as consumed until the group has passed it.
            passed = min(passed, 0 if place is None else place)
    return passed

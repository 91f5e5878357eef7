"""How much of the log a group has behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue


def consumed_to(written: int, queues: Iterable[ConsumeQueue], offsets: Mapping[str, Mapping[int, int]]) -> int:
    """The physical offset below which the group, which is at these offsets (topic -> queue -> next), needs nothing.

    `written` must be taken before the offsets and queues are looked at: what comes in meanwhile is then not passed.
    All queues of a topic count once the group has read one of them: it has not come to the others yet. Messages that
    readers may not see yet count as well.
    """
    passed = written
    for queue in queues:
        its = offsets.get(queue.queue.topic)
        if its is None:
            continue
        at = max(its.get(queue.queue.id, 0), queue.first)
        if at < queue.end:
            place = queue.physical_offset_at(at)
            # A damaged entry tells no place. The group will pass it; until then nothing of the queue goes.
            passed = min(passed, 0 if place is None else place)
    return passed

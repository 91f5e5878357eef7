"""Long polling without tasks: requests that found no message are parked until a queue grows or a deadline passes.

1. A queue that grows wakes its requests once, in the next iteration of the event loop, however many messages arrived.
2. A woken request reports whether it is answered. If not (no tag matched), it stays parked.
3. Deadlines are kept in slots of 100 ms, and one timer waits for the next slot that is not empty.
4. A request is dropped when its connection closes.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable

from sparrow.model.errors import Busy
from sparrow.model.queue import Queue, QueueOffset

_SLOTS_A_SECOND = 10


class ParkedRequest:
    """A parked pull or pop. `resume(request, is_over)` answers it and returns True, or returns False to stay parked.

    A pop waits for the first of several queues to grow: `queue` and `other_queues`.
    """

    __slots__ = ("channel", "offset", "other_queues", "queue", "resume", "slot")

    def __init__(
        self,
        queue: Queue,
        offset: int,
        resume: Callable[[ParkedRequest, bool], bool],
        channel: object = None,
        *,
        other_queues: tuple[Queue, ...] = (),
    ) -> None:
        self.queue, self.offset, self.resume, self.channel, self.other_queues = (
            queue,
            offset,
            resume,
            channel,
            other_queues,
        )
        self.slot = 0


class LongPollTable:
    """All parked requests of a broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, pulls_max: int) -> None:
        self._loop, self._pulls_max = loop, pulls_max
        self._thread = threading.get_ident()
        self._waiting: dict[Queue, dict[ParkedRequest, None]] = {}
        self._slots: dict[int, set[ParkedRequest]] = {}
        self._slot_order: list[int] = []
        self._of_channel: dict[object, set[ParkedRequest]] = {}
        self._grown: set[Queue] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        self.count = 0

    def park(self, request: ParkedRequest, long_poll_ms: int) -> None:
        """Park a request. The caller then checks its queue again: another thread may have appended in between."""
        if self.count >= self._pulls_max:
            raise Busy(f"{self.count} requests are parked already: try again later, or raise long_polls_max")
        self.count += 1
        self._waiting.setdefault(request.queue, {})[request] = None
        for queue in request.other_queues:
            self._waiting.setdefault(queue, {})[request] = None
        self._of_channel.setdefault(request.channel, set()).add(request)
        # Rounded up: a request never ends early.
        slot = request.slot = int((self._loop.time() + long_poll_ms / 1000) * _SLOTS_A_SECOND) + 1
        members = self._slots.get(slot)
        if members is None:
            members = self._slots[slot] = set()
            heapq.heappush(self._slot_order, slot)
            if self._timer is None or slot < self._timer_slot:
                self._watch(slot)
        members.add(request)

    def notify_growth(self, queue: Queue, _end: QueueOffset) -> None:
        """Wake the requests of a queue in which readers now see more messages. Any thread may call this."""
        if queue not in self._waiting:
            return
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.wake, queue)
        else:
            self.wake(queue)

    def wake(self, queue: Queue) -> None:
        """Retry the requests of this queue at the end of this iteration of the event loop."""
        if not self._grown:
            self._loop.call_soon(self._retry_grown)
        self._grown.add(queue)

    def _retry_grown(self) -> None:
        grown, self._grown = self._grown, set()
        for queue in grown:
            for request in list(self._waiting.get(queue, ())):
                if request.resume(request, False):
                    self._forget(request)

    def queues(self) -> list[Queue]:
        """Return the queues with parked requests."""
        return list(self._waiting)

    def parked_on(self, queue: Queue) -> list[ParkedRequest]:
        return list(self._waiting.get(queue, ()))

    def _forget(self, request: ParkedRequest) -> None:
        waiting = self._waiting.get(request.queue)
        if waiting is None or waiting.pop(request, self) is self:
            return
        self.count -= 1
        if not waiting:
            del self._waiting[request.queue]
        for queue in request.other_queues:
            waiting = self._waiting[queue]
            del waiting[request]
            if not waiting:
                del self._waiting[queue]
        slot = self._slots.get(request.slot)
        if slot is not None:
            slot.discard(request)  # the slot itself is removed at its time
        siblings = self._of_channel[request.channel]
        siblings.discard(request)
        if not siblings:
            del self._of_channel[request.channel]

    def drop_channel(self, channel: object) -> None:
        """Drop the requests of a closed connection."""
        for request in list(self._of_channel.get(channel, ())):
            self._forget(request)

    def _watch(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot / _SLOTS_A_SECOND, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() * _SLOTS_A_SECOND
        while self._slot_order and self._slot_order[0] <= now:
            for request in list(self._slots.get(self._slot_order[0], ())):
                request.resume(request, True)
                self._forget(request)
            self._slots.pop(heapq.heappop(self._slot_order), None)
        if self._slot_order:
            self._watch(self._slot_order[0])

    def release_all(self) -> None:
        """Answer all parked requests, because the broker stops."""
        for waiting in list(self._waiting.values()):
            for request in list(waiting):
                request.resume(request, True)
                self._forget(request)
        self._slots.clear()
        self._slot_order.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""Long polling without tasks: requests that found no message are parked until a queue grows or a deadline passes.

1. A queue that grows wakes its requests once, in the next iteration of the event loop, however many messages arrived.
   Waking, expiring and dropping many requests takes several iterations, so that other connections are served in
   between; hosts take turns.
2. A woken request reports whether it is answered. If not (no tag matched), it stays parked.
3. Deadlines are kept in slots of 100 ms, and one timer waits for the next slot that is not empty.
4. A request is dropped when its connection closes.
5. The places are shared fairly: when all are taken, a host that has fewer than another gets a place of that one, whose
   oldest request is answered as if its time were over.
6. A pop of a topic with many queues waits for `ANY_QUEUE` of the topic, whose growth is recorded.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from sparrow.broker.consume.grown_queues import GrownQueues
from sparrow.model.errors import Busy
from sparrow.model.queue import Queue, QueueOffset
from sparrow.net.limits.read_gate import ReadGate
from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metrics.rocketmq import RPC_BOUNDS_MS
from sparrow.wire.codes import RequestCode

_SLOTS_A_SECOND = 10
_TURN_S = 0.005
"""How long the table may hold an iteration of the event loop. An answer takes about 25 µs."""
ANY_QUEUE = -1
"""The id of the queue for which a request waits that waits for all queues of its topic."""


class ParkedRequest:
    """A parked pull or pop. `resume(request, is_over)` answers it and returns True, or returns False to stay parked.

    A pop waits for the first of several queues to grow: `queue` and `other_queues`.
    """

    __slots__ = ("channel", "code", "gate", "host", "offset", "other_queues", "parked_s", "queue", "resume", "slot")

    def __init__(
        self,
        queue: Queue,
        offset: int,
        resume: Callable[[ParkedRequest, bool], bool],
        channel: object = None,
        *,
        other_queues: tuple[Queue, ...] = (),
        code: int = RequestCode.PULL_MESSAGE,
    ) -> None:
        self.queue, self.offset, self.resume, self.channel, self.other_queues = (
            queue,
            offset,
            resume,
            channel,
            other_queues,
        )
        self.slot, self.code, self.parked_s = 0, code, 0.0
        self.host: str = getattr(channel, "host", "")
        """The address of the peer, without its port."""
        gate: ReadGate | None = getattr(channel, "gate", None)
        self.gate = gate.token_gate if gate is not None else None
        """Counts the request for the token of its connection; None: there is none."""


class LongPollTable:
    """All parked requests of a broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, pulls_max: int, turn_s: float = _TURN_S) -> None:
        self._loop, self._pulls_max, self._turn_s = loop, pulls_max, turn_s
        self._thread = threading.get_ident()
        self._waiting: dict[Queue, dict[ParkedRequest, None]] = {}
        self._slots: dict[int, set[ParkedRequest]] = {}
        self._slot_order: list[int] = []
        self._of_channel: dict[object, set[ParkedRequest]] = {}
        self._of_host: dict[str, dict[ParkedRequest, None]] = {}
        """The requests of each host, the oldest first."""
        self._grown: set[Queue] = set()
        self._woken: dict[str, deque[ParkedRequest]] = {}
        """Requests to try again, of queues that have grown, by host: the host in front is next."""
        self._is_retrying = False
        """Whether some of them are left for the next iteration."""
        self._dropped: deque[ParkedRequest] = deque()
        """Requests of closed connections that still have a place."""
        self._growth: dict[str, GrownQueues] = {}
        """The growth of topics for which a request waits, or waited, as a whole."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        self.count = 0
        self.refused = 0
        """Requests that were not parked, or answered early, because of the limit."""
        self.durations: dict[tuple[int, bool], DurationHistogram] = {}
        """How long answered requests were parked, by request code and whether their time was over, in ms."""

    def park(self, request: ParkedRequest, long_poll_ms: int) -> None:
        """Park a request. The caller then checks its queue again: another thread may have appended in between."""
        if self.count >= self._pulls_max:
            self.refused += 1
            if not self._make_room(request.host):
                raise Busy(f"{self.count} requests are parked already: try again later, or raise long_polls_max")
        self.count += 1
        if request.gate is not None:
            request.gate.hold_parked(1)
        self._of_host.setdefault(request.host, {})[request] = None
        self._waiting.setdefault(request.queue, {})[request] = None
        for queue in request.other_queues:
            self._waiting.setdefault(queue, {})[request] = None
        self._of_channel.setdefault(request.channel, set()).add(request)
        # Rounded up: a request never ends early.
        request.parked_s = self._loop.time()
        slot = request.slot = int((request.parked_s + long_poll_ms / 1000) * _SLOTS_A_SECOND) + 1
        members = self._slots.get(slot)
        if members is None:
            members = self._slots[slot] = set()
            heapq.heappush(self._slot_order, slot)
            if self._timer is None or slot < self._timer_slot:
                self._watch(slot)
        members.add(request)

    def _make_room(self, host: str) -> bool:
        """Answer the oldest request of the host with the most, if that one has more than `host` would have."""
        most = max(self._of_host.values(), key=len)
        if len(most) <= len(self._of_host.get(host, ())) + 1:
            return False
        oldest = next(iter(most))
        oldest.resume(oldest, True)
        self._forget(oldest)
        return True

    def notify_growth(self, queue: Queue, _end: QueueOffset) -> None:
        """Wake the requests of a queue in which readers now see more messages. Any thread may call this."""
        if queue not in self._waiting and (not self._growth or queue.topic not in self._growth):
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
        if self._growth and queue.id != ANY_QUEUE and (growth := self._growth.get(queue.topic)) is not None:
            growth.add(queue.id)

    def record_growth(self, topic: str) -> GrownQueues:
        """Return the growth of a topic, which is recorded from the first call on."""
        return self._growth.setdefault(topic, GrownQueues())

    def keep_growth(self, is_kept: Callable[[str], bool]) -> None:
        """Stop to record the growth of other topics."""
        for topic in [topic for topic in self._growth if not is_kept(topic)]:
            del self._growth[topic]

    def _retry_grown(self) -> None:
        grown, self._grown = self._grown, set()
        for queue in grown:
            self._add_woken(self._waiting.get(queue, ()))
        if self._growth:
            for topic in {queue.topic for queue in grown if queue.id != ANY_QUEUE}:
                self._add_woken(self._waiting.get(Queue(topic, ANY_QUEUE), ()))
        if not self._is_retrying:
            self._retry_woken()

    def _add_woken(self, requests: Iterable[ParkedRequest]) -> None:
        for request in requests:
            of_host = self._woken.get(request.host)
            if of_host is None:
                of_host = self._woken[request.host] = deque()
            of_host.append(request)

    def _retry_woken(self) -> None:
        turn_ends_s = time.monotonic() + self._turn_s
        self._is_retrying = False
        while self._woken:
            host = next(iter(self._woken))
            of_host = self._woken.pop(host)
            request = of_host.popleft()
            if of_host:
                self._woken[host] = of_host  # behind the other hosts
            if request in self._waiting.get(request.queue, ()) and request.resume(request, False):
                self._forget(request)
                self._measure(request, is_over=False)
            if self._woken and time.monotonic() > turn_ends_s:
                self._loop.call_soon(self._retry_woken)
                self._is_retrying = True
                return

    def _measure(self, request: ParkedRequest, *, is_over: bool) -> None:
        key = request.code, is_over
        if key not in self.durations:
            self.durations[key] = DurationHistogram(RPC_BOUNDS_MS)
        self.durations[key].add((self._loop.time() - request.parked_s) * 1000)

    def queues(self) -> list[Queue]:
        """Return the queues with parked requests; `ANY_QUEUE` stands for all queues of a topic."""
        return list(self._waiting)

    def is_awaited(self, queue: Queue) -> bool:
        """Return whether requests wait for this queue."""
        return queue in self._waiting or Queue(queue.topic, ANY_QUEUE) in self._waiting

    def parked_on(self, queue: Queue) -> list[ParkedRequest]:
        """Return the requests that wait for this queue, or for all queues of its topic."""
        return [*self._waiting.get(queue, ()), *self._waiting.get(Queue(queue.topic, ANY_QUEUE), ())]

    def _forget(self, request: ParkedRequest) -> None:
        waiting = self._waiting.get(request.queue)
        if waiting is None or waiting.pop(request, self) is self:
            return
        self.count -= 1
        if request.gate is not None:
            request.gate.hold_parked(-1)
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
        neighbours = self._of_host[request.host]
        del neighbours[request]
        if not neighbours:
            del self._of_host[request.host]

    def drop_channel(self, channel: object) -> None:
        """Drop the requests of a closed connection."""
        is_dropping = bool(self._dropped)
        self._dropped.extend(self._of_channel.get(channel, ()))
        if self._dropped and not is_dropping:
            self._forget_dropped()

    def _forget_dropped(self) -> None:
        turn_ends_s = time.monotonic() + self._turn_s
        while self._dropped:
            self._forget(self._dropped.popleft())
            if self._dropped and time.monotonic() > turn_ends_s:
                self._loop.call_soon(self._forget_dropped)
                return

    def _watch(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot / _SLOTS_A_SECOND, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now, turn_ends_s = self._loop.time() * _SLOTS_A_SECOND, time.monotonic() + self._turn_s
        while self._slot_order and self._slot_order[0] <= now:
            due = self._slots.get(self._slot_order[0])
            while due:
                request = due.pop()
                request.resume(request, True)
                self._forget(request)
                self._measure(request, is_over=True)
                if due and time.monotonic() > turn_ends_s:
                    self._timer = self._loop.call_later(0, self._expire)
                    self._timer_slot = 0
                    return
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

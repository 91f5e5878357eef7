"""A broker inside this process, for tests and for applications whose parts only talk to each other.

1. Events live as long as the broker object. A new group receives the last `retained_max` events of a name.
2. Unacknowledged events are delivered again, in their old order, when the consumer releases them or leaves.
3. Buses in several threads, each with its own event loop, may share a broker.
4. Failures can be simulated: `down`, `withhold_acknowledgements`, `refusal`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import count, islice
from operator import itemgetter
from typing import Self

from sparrow.bus.names import checked_event_name, matches
from sparrow.bus.transports.spi import BrokerDelivery, Envelope
from sparrow.model.errors import Closed, ConnectionLost

RETAINED_EVENTS_MAX = 100_000

_Kept = tuple[int, Envelope]
"""Its sequence number and the envelope."""
_number = itemgetter(0)
_named: dict[str, MemoryBroker] = {}
_naming = threading.Lock()


class _Group:
    """The events that wait for the consumers of a group, by name."""

    def __init__(self) -> None:
        self.patterns: set[str] = set()
        self.queues: dict[str, deque[_Kept]] = {}

    def wants(self, name: str) -> bool:
        return name in self.queues or any(matches(pattern, name) for pattern in self.patterns)

    def put_back(self, items: Sequence[_Kept]) -> None:
        for name in {envelope.name for _, envelope in items}:
            mine = [item for item in items if item[1].name == name]
            self.queues[name] = deque(sorted([*mine, *self.queues[name]], key=_number))


class MemoryBroker:
    def __init__(self, *, retained_max: int = RETAINED_EVENTS_MAX) -> None:
        """Create a broker; `retained_max` bounds the retained events of a name and the length of `sent`."""
        self.sent: list[Envelope] = []
        """The acknowledged envelopes, in order."""
        self.refusal: Callable[[Envelope], Exception | None] | None = None
        """Called for each envelope; returns why it is refused, or None."""
        self._kept_max = retained_max
        self._lock = threading.RLock()
        self._numbers = count()
        self._kept: dict[str, deque[_Kept]] = {}
        self._groups: dict[str, _Group] = {}
        self._wake_events: set[_WakeEvent] = set()
        self._listenings: set[MemoryConsumer] = set()
        self._is_down = False
        self._withholds = False

    @classmethod
    def named(cls, name: str) -> MemoryBroker:
        """Return the broker of that name, and create it if needed."""
        with _naming:
            return _named.setdefault(name, cls())

    # -- making it fail -----------------------------------------------------------------------------------------------

    @property
    def down(self) -> bool:
        """While true, every call raises `ConnectionLost`. Stored events are kept."""
        return self._is_down

    @down.setter
    def down(self, is_down: bool) -> None:
        with self._lock:
            self._is_down = is_down
            self._wake_all()

    @property
    def withhold_acknowledgements(self) -> bool:
        """While true, groups receive what is sent, but `send` does not return."""
        return self._withholds

    @withhold_acknowledgements.setter
    def withhold_acknowledgements(self, withholds: bool) -> None:
        with self._lock:
            self._withholds = withholds
            self._wake_all()

    # -- what transports do -------------------------------------------------------------------------------------------

    def check_up(self) -> None:
        if self._is_down:
            raise ConnectionLost("memory", "the broker is down")

    def take(self, envelopes: Sequence[Envelope]) -> list[Exception | None]:
        with self._lock:
            self.check_up()
            refusals = [None if self.refusal is None else self.refusal(envelope) for envelope in envelopes]
            for envelope, refusal in zip(envelopes, refusals, strict=True):
                if refusal is None:
                    self._store(envelope)
            self._wake_all()
            return refusals

    def _store(self, envelope: Envelope) -> None:
        item = next(self._numbers), envelope
        name = envelope.name
        if name not in self._kept:
            self._kept[name] = deque(maxlen=self._kept_max)
        self._kept[name].append(item)
        for group in self._groups.values():
            if group.wants(name):
                group.queues.setdefault(name, deque()).append(item)

    async def released(self) -> None:
        """Wait until acknowledgements are not withheld."""
        wake_event = self.wake_event()
        try:
            while True:
                wake_event.clear()
                self.check_up()
                if not self._withholds:
                    return
                await wake_event.wait()
        finally:
            self.remove_wake_event(wake_event)

    def acknowledged(self, envelopes: Sequence[Envelope]) -> None:
        with self._lock:
            self.sent += envelopes
            if len(self.sent) > 2 * self._kept_max:
                del self.sent[: -self._kept_max]

    def join(self, group_name: str, names: Sequence[str]) -> _Group:
        with self._lock:
            self.check_up()
            group = self._groups.setdefault(group_name, _Group())
            group.patterns.update(names)
            for name, kept in self._kept.items():
                if name not in group.queues and group.wants(name):
                    group.queues[name] = deque(kept)
            return group

    def take_waiting(self, group: _Group, names: Sequence[str], count_max: int) -> list[_Kept]:
        """Remove and return the oldest waiting events of the group under these names."""
        with self._lock:
            self.check_up()
            queues = [
                queue for name, queue in group.queues.items() if queue and any(matches(own, name) for own in names)
            ]
            handed = list(islice(merge(*(islice(queue, count_max) for queue in queues), key=_number), count_max))
            for _, envelope in handed:
                group.queues[envelope.name].popleft()
            return handed

    def put_back(self, group: _Group, items: Sequence[_Kept]) -> None:
        with self._lock:
            group.put_back(items)
            self._wake_all()

    def enter(self, listening: MemoryConsumer) -> None:
        with self._lock:
            self._listenings.add(listening)

    def leave(self, listening: MemoryConsumer) -> None:
        with self._lock:
            self._listenings.discard(listening)

    def is_idle(self) -> bool:
        """Return whether no event waits for a current consumer."""
        with self._lock:
            return not any(listening.has_pending for listening in self._listenings)

    # -- waking who waits ---------------------------------------------------------------------------------------------

    def wake_event(self) -> _WakeEvent:
        with self._lock:
            wake_event = _WakeEvent()
            self._wake_events.add(wake_event)
            return wake_event

    def remove_wake_event(self, wake_event: _WakeEvent) -> None:
        with self._lock:
            self._wake_events.discard(wake_event)

    def _wake_all(self) -> None:
        for wake_event in self._wake_events:
            wake_event.wake()


class _WakeEvent:
    """Wakes a waiting task on its own event loop, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        if not self._loop.is_closed():  # its owner ended without closing
            self._loop.call_soon_threadsafe(self._woken.set)

    def clear(self) -> None:
        """Clear the signal before checking the condition: a change in between sets it again."""
        self._woken.clear()

    async def wait(self) -> None:
        await self._woken.wait()


class MemoryConsumer:
    def __init__(self, broker: MemoryBroker, group: _Group, names: Sequence[str], *, prefetch: int) -> None:
        self._broker, self._group, self._names, self._prefetch = broker, group, names, prefetch
        self._unacknowledged: dict[int, Envelope] = {}
        self._wake_event = broker.wake_event()
        self._is_closed = False
        broker.enter(self)

    @property
    def has_pending(self) -> bool:
        """Whether events wait for this consumer, or are unacknowledged."""
        if self._unacknowledged:
            return True
        queues = self._group.queues.items()
        return any(queue and any(matches(own, name) for own in self._names) for name, queue in queues)

    async def receive(self, count_max: int) -> list[BrokerDelivery]:
        """Return waiting events; at most `prefetch` are unacknowledged at any time."""
        while True:
            self._wake_event.clear()
            if self._is_closed:
                raise Closed("the consumer")
            room = max(0, min(count_max, self._prefetch - len(self._unacknowledged)))
            handed = self._broker.take_waiting(self._group, self._names, room)
            if handed:
                break
            await self._wake_event.wait()
        self._unacknowledged.update(handed)
        return [
            BrokerDelivery(name=envelope.name, headers=dict(envelope.headers), body=envelope.body, ack_handle=number)
            for number, envelope in handed
        ]

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        self._broker.check_up()
        for delivery in deliveries:
            self._unacknowledged.pop(delivery.ack_handle, None)
        self._wake_event.wake()

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        self._broker.check_up()
        self._put_back([delivery.ack_handle for delivery in deliveries if delivery.ack_handle in self._unacknowledged])

    def _put_back(self, numbers: Sequence[int]) -> None:
        self._broker.put_back(self._group, [(number, self._unacknowledged.pop(number)) for number in numbers])

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._wake_event.wake()
        self._broker.remove_wake_event(self._wake_event)
        self._broker.leave(self)
        self._put_back(list(self._unacknowledged))


class MemoryTransport:
    """A transport on a `MemoryBroker`.

    ```python
    broker = MemoryBroker()
    orders = EventBus("sqlite:///orders.db", MemoryTransport(broker))
    billing = EventBus("sqlite:///billing.db", MemoryTransport(broker))
    ```
    """

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        """Create a transport; without a broker it gets its own."""
        self.broker = broker or MemoryBroker()

    @classmethod
    def at(cls, name: str) -> Self:
        """Return the transport of `memory://name`: equal names in this process share a broker."""
        return cls(MemoryBroker.named(name) if name else None)

    def check_name(self, name: str) -> None:
        checked_event_name(name)

    async def open(self) -> None:
        self.broker.check_up()

    async def send(self, envelopes: Sequence[Envelope]) -> list[Exception | None]:
        broker = self.broker
        refusals = broker.take(envelopes)
        if broker.withhold_acknowledgements:
            await broker.released()
        broker.acknowledged([one for one, refusal in zip(envelopes, refusals, strict=True) if refusal is None])
        return refusals

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> MemoryConsumer:
        return MemoryConsumer(self.broker, self.broker.join(group, names), names, prefetch=prefetch)

    def is_idle(self) -> bool:
        return self.broker.is_idle()

    async def close(self) -> None:
        """Do nothing: others may use the broker."""

"""A broker inside this process: for tests, and for an application whose parts talk only to each other.

1. Events live as long as the broker object. A group that comes late gets what is kept: the last `retained_max` of a
name.
2. What a member took and did not acknowledge comes again, in its old place, when the member gives it back or leaves.
3. Buses in several threads, each with a loop of its own, may share a broker.
4. It can be made to fail: `down`, `withhold_acknowledgements`, `refusal`.
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
"""Its number, which says what came first, and itself."""
_number = itemgetter(0)
_named: dict[str, MemoryBroker] = {}
_naming = threading.Lock()


class _Group:
    """What waits for the members of a group, a line for each name."""

    def __init__(self) -> None:
        self.patterns: set[str] = set()
        self.lines: dict[str, deque[_Kept]] = {}

    def wants(self, name: str) -> bool:
        return name in self.lines or any(matches(pattern, name) for pattern in self.patterns)

    def put_back(self, items: Sequence[_Kept]) -> None:
        for name in {envelope.name for _, envelope in items}:
            mine = [item for item in items if item[1].name == name]
            self.lines[name] = deque(sorted([*mine, *self.lines[name]], key=_number))


class MemoryBroker:
    def __init__(self, *, retained_max: int = RETAINED_EVENTS_MAX) -> None:
        """`retained_max`: events of a name that are kept for groups to come, and entries of `sent`."""
        self.sent: list[Envelope] = []
        """What was acknowledged, in order."""
        self.refusal: Callable[[Envelope], Exception | None] | None = None
        """Asked before an envelope is taken: why it is not, if it is not."""
        self._kept_max = retained_max
        self._lock = threading.RLock()
        self._numbers = count()
        self._kept: dict[str, deque[_Kept]] = {}
        self._groups: dict[str, _Group] = {}
        self._bells: set[_Bell] = set()
        self._listenings: set[MemoryConsumer] = set()
        self._is_down = False
        self._withholds = False

    @classmethod
    def named(cls, name: str) -> MemoryBroker:
        """The broker of that name; the first who asks makes it."""
        with _naming:
            return _named.setdefault(name, cls())

    # -- making it fail -----------------------------------------------------------------------------------------------

    @property
    def down(self) -> bool:
        """While it is, whatever is asked of it raises `ConnectionLost`. What it has it keeps."""
        return self._is_down

    @down.setter
    def down(self, is_down: bool) -> None:
        with self._lock:
            self._is_down = is_down
            self._ring()

    @property
    def withhold_acknowledgements(self) -> bool:
        """While it does, groups get what is sent, but `send` does not return."""
        return self._withholds

    @withhold_acknowledgements.setter
    def withhold_acknowledgements(self, withholds: bool) -> None:
        with self._lock:
            self._withholds = withholds
            self._ring()

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
            self._ring()
            return refusals

    def _store(self, envelope: Envelope) -> None:
        item = next(self._numbers), envelope
        name = envelope.name
        if name not in self._kept:
            self._kept[name] = deque(maxlen=self._kept_max)
        self._kept[name].append(item)
        for group in self._groups.values():
            if group.wants(name):
                group.lines.setdefault(name, deque()).append(item)

    async def released(self) -> None:
        """Returns when acknowledgements are not withheld, or not any more."""
        bell = self.bell()
        try:
            while True:
                bell.still()
                self.check_up()
                if not self._withholds:
                    return
                await bell.wait()
        finally:
            self.take_down(bell)

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
                if name not in group.lines and group.wants(name):
                    group.lines[name] = deque(kept)
            return group

    def hand_out(self, group: _Group, names: Sequence[str], count_max: int) -> list[_Kept]:
        """The oldest of what waits for the group under these names."""
        with self._lock:
            self.check_up()
            lines = [line for name, line in group.lines.items() if line and any(matches(own, name) for own in names)]
            handed = list(islice(merge(*(islice(line, count_max) for line in lines), key=_number), count_max))
            for _, envelope in handed:
                group.lines[envelope.name].popleft()
            return handed

    def put_back(self, group: _Group, items: Sequence[_Kept]) -> None:
        with self._lock:
            group.put_back(items)
            self._ring()

    def enter(self, listening: MemoryConsumer) -> None:
        with self._lock:
            self._listenings.add(listening)

    def leave(self, listening: MemoryConsumer) -> None:
        with self._lock:
            self._listenings.discard(listening)

    def is_idle(self) -> bool:
        """Whether nothing is on its way to those who listen just now."""
        with self._lock:
            return not any(listening.has_pending for listening in self._listenings)

    # -- waking who waits ---------------------------------------------------------------------------------------------

    def bell(self) -> _Bell:
        with self._lock:
            bell = _Bell()
            self._bells.add(bell)
            return bell

    def take_down(self, bell: _Bell) -> None:
        with self._lock:
            self._bells.discard(bell)

    def _ring(self) -> None:
        for bell in self._bells:
            bell.ring()


class _Bell:
    """Wakes one who waits in his own loop, whatever thread it is rung from."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        if not self._loop.is_closed():  # of somebody who went without a word
            self._loop.call_soon_threadsafe(self._rung.set)

    def still(self) -> None:
        """Before looking at what one waits for, or a change in between would go unheard."""
        self._rung.clear()

    async def wait(self) -> None:
        await self._rung.wait()


class MemoryConsumer:
    def __init__(self, broker: MemoryBroker, group: _Group, names: Sequence[str], *, prefetch: int) -> None:
        self._broker, self._group, self._names, self._prefetch = broker, group, names, prefetch
        self._in_hand: dict[int, Envelope] = {}
        self._bell = broker.bell()
        self._is_closed = False
        broker.enter(self)

    @property
    def has_pending(self) -> bool:
        """Whether something waits for it, or is in its hand."""
        if self._in_hand:
            return True
        lines = self._group.lines.items()
        return any(line and any(matches(own, name) for own in self._names) for name, line in lines)

    async def receive(self, count_max: int) -> list[BrokerDelivery]:
        """No more than `prefetch` are in hand at any time: with so many it waits for an acknowledgement."""
        while True:
            self._bell.still()
            if self._is_closed:
                raise Closed("the listening")
            room = max(0, min(count_max, self._prefetch - len(self._in_hand)))
            handed = self._broker.hand_out(self._group, self._names, room)
            if handed:
                break
            await self._bell.wait()
        self._in_hand.update(handed)
        return [
            BrokerDelivery(name=envelope.name, headers=dict(envelope.headers), body=envelope.body, ack_handle=number)
            for number, envelope in handed
        ]

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        self._broker.check_up()
        for delivery in deliveries:
            self._in_hand.pop(delivery.ack_handle, None)
        self._bell.ring()

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        self._broker.check_up()
        self._put_back([delivery.ack_handle for delivery in deliveries if delivery.ack_handle in self._in_hand])

    def _put_back(self, numbers: Sequence[int]) -> None:
        self._broker.put_back(self._group, [(number, self._in_hand.pop(number)) for number in numbers])

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._bell.ring()
        self._broker.take_down(self._bell)
        self._broker.leave(self)
        self._put_back(list(self._in_hand))


class MemoryTransport:
    """
    ```python
    broker = MemoryBroker()
    orders = EventBus("sqlite:///orders.db", MemoryTransport(broker))
    billing = EventBus("sqlite:///billing.db", MemoryTransport(broker))
    ```
    """

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        """Without a broker it gets one of its own."""
        self.broker = broker or MemoryBroker()

    @classmethod
    def at(cls, name: str) -> Self:
        """What `memory://name` means: all of one name in this process share a broker; without a name none is shared."""
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
        """Nothing: the broker stays for others."""

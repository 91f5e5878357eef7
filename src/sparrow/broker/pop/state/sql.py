"""What is in flight on a database: in the memory of the broker that leads, and nowhere else.

1. The stored offset of a group in a queue is that of the first message not settled. What a crash, or another leader,
   finds there is handed out again: at least once, and nothing is lost.
2. How far messages were handed out is loaded from there when a group first pops a queue, and is forgotten when this
   broker no longer leads, or the database's server was started anew.
3. Whoever commits an offset of such a group sends it there: the next pop asks the database where that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.pop.state.ack_floor import AckFloor
from sparrow.broker.pop.state.fifo import FifoBatch, FifoTable
from sparrow.broker.pop.state.in_flight import IN_FLIGHT_BATCHES_MAX, InFlightBatch, InFlightTable
from sparrow.model.errors import Busy, SparrowError, Unavailable
from sparrow.model.priority import LANE_COUNT
from sparrow.model.queue import Queue
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.engine import SqlStore

log = logging.getLogger(__name__)

AHEAD_OF_ACK_FLOOR_MAX = 100_000
"""How far a group is handed messages out behind one that is not settled: at most so many come again by rule 1."""
_LAST_WORDS_S = 2.0

_Key = tuple[str, Queue]


class NotLeader(Unavailable):
    def __str__(self) -> str:
        return "this broker does not lead, and only the leader hands messages out: ask the name server for broker 0"


class SqlPopState:
    """Everything in flight, while this broker leads."""

    cold_reads_max = LANE_COUNT + 1
    """What other brokers have stored is often not at hand: the lanes of a part, and retries."""

    def __init__(self, store: SqlStore, long_polls: LongPollTable, *, now_ms: Callable[[], int]) -> None:
        self._store, self._long_polls, self._now_ms = store, long_polls, now_ms
        self.in_flight, self.fifo = InFlightTable(), FifoTable()
        self.earlier_due = asyncio.Event()
        self._leads = self._knows_topics = False
        self._term = 0
        """Counts how often everything was forgotten: what was asked before that is of no use."""
        self._numbers = count()
        self._places: dict[_Key, AckFloor] = {}
        self._loading: dict[_Key, asyncio.Task[None]] = {}
        self._marking: set[asyncio.Task[None]] = set()

    # -- leading ------------------------------------------------------------------------------------------------------

    async def run_as_leader(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Serve pops, and do this work, until cancelled."""
        self.forget()
        self._leads = True
        try:
            await work()
        finally:
            self._leads = self._knows_topics = False
            self.forget()
            # Whoever leads next is to find what was acknowledged here.
            with contextlib.suppress(SparrowError, LockConflict, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._store.offsets.flush()

    def forget(self) -> None:
        """What was in flight is handed out again, by whoever leads, from the stored offsets on."""
        self.in_flight, self.fifo = InFlightTable(), FifoTable()
        self._places.clear()
        self._loading.clear()
        self._term += 1
        self.earlier_due.set()
        for queue in self._long_polls.queues():
            self._long_polls.wake(queue)

    def check_available(self) -> None:
        if not self._leads:
            raise NotLeader

    # -- how far groups are -------------------------------------------------------------------------------------------

    def is_ready(self, group: str, queue: Queue) -> bool:
        if self._is_unknown(group, queue):
            self._load([(group, queue)])
            return False
        place = self._places.get((group, queue))
        return place is not None and not _is_far_ahead(place)

    def load_positions(self, group: str, queues: Iterable[Queue]) -> Awaitable[None] | None:
        if not self._knows_topics:
            return self._loaded(group, queues)
        unknown = [queue for queue in queues if self._is_unknown(group, queue)]
        return self._loaded(group, unknown) if unknown else None

    def _is_unknown(self, group: str, queue: Queue) -> bool:
        """Whether the database has to be asked how far the group is."""
        place = self._places.get((group, queue))
        if place is None:
            return queue in self._store.catalog.lanes
        return not self._is_certain(place, group, queue)

    def _is_certain(self, place: AckFloor, group: str, queue: Queue) -> bool:
        """Nobody else has committed since, and the topic is still the same."""
        lane = self._store.catalog.lanes.get(queue)
        return (
            lane is not None
            and lane.number == place.lane
            and self._store.offsets.committed_nowait(group, queue) == place.observed_offset
        )

    async def _loaded(self, group: str, queues: Iterable[Queue]) -> None:
        """`queues` may look at what topics there are: that is asked first."""
        if not self._knows_topics:
            with _as_busy():
                await self._store.catalog.list_topics()  # whoever led before may just have made a retry topic
            self._knows_topics = self._leads
        keys = [(group, queue) for queue in queues if self._is_unknown(group, queue)]
        self._load(keys)
        tasks = {self._loading[key] for key in keys if key in self._loading}
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        self.check_available()

    def _load(self, keys: Sequence[_Key]) -> None:
        """Ask how far these groups are, unless that is being asked."""
        new = [key for key in keys if key not in self._loading]
        if not new or not self._leads:
            return
        task = asyncio.get_running_loop().create_task(self._ask(new, self._term))
        self._loading |= dict.fromkeys(new, task)

        def done(task: asyncio.Task[None]) -> None:
            for key in new:
                if self._loading.get(key) is task:
                    del self._loading[key]
            if task.cancelled():  # with the whole loop
                return
            if (error := task.exception()) is not None:  # whoever waits asks again when its time is over
                log.warning("it is not known how far a group is", extra={"group": new[0][0], "why": str(error)})
                return
            for _, queue in new:
                self._long_polls.wake(queue)

        task.add_done_callback(done)

    async def _ask(self, keys: Sequence[_Key], term: int) -> None:
        with _as_busy():
            # What we have said ourselves must be there, or it would look as if the group had been sent back.
            await self._store.offsets.flush()
            for group, queue in keys:
                await self._store.bounds(queue)  # others may have stored something a moment ago
                stored = await self._store.offsets.committed(group, queue)
                if term != self._term:
                    return
                self._take_over(group, queue, stored)

    def _take_over(self, group: str, queue: Queue, stored: int | None) -> None:
        lane = self._store.catalog.lanes.get(queue)
        if lane is None:
            self._places.pop((group, queue), None)
            return
        place = self._places.get((group, queue))
        if place is None or place.lane != lane.number or place.stored_offset != stored:
            # New here, or sent elsewhere: what the group had in flight before holds up nothing any more.
            place = self._places[group, queue] = AckFloor(lane.number, stored)
        place.observed_offset = self._store.offsets.committed_nowait(group, queue)
        self._say(group, queue, place)

    def position(self, group: str, queue: Queue) -> int | None:
        place = self._places.get((group, queue))
        return place.position if place is not None else None

    def advance(self, group: str, queue: Queue, offset: int) -> None:
        self.check_available()
        place = self._places.get((group, queue))
        if place is not None:
            place.position = offset
            self._say(group, queue, place)

    def _say(self, group: str, queue: Queue, place: AckFloor) -> None:
        """Store how far everything is settled, unless somebody else has said something: then it is asked what."""
        floor = place.floor
        if floor is None or floor == place.stored_offset:
            return
        if not self._is_certain(place, group, queue):
            if queue in self._store.catalog.lanes:
                self._load([(group, queue)])
            return
        was_far_ahead = _is_ahead(place.position, place.stored_offset)
        self._store.offsets.commit_nowait(group, queue, floor)
        place.stored_offset = place.observed_offset = floor
        if was_far_ahead:
            self._long_polls.wake(queue)

    # -- what is in flight --------------------------------------------------------------------------------------------

    def add(self, batches: Sequence[InFlightBatch]) -> None:
        self.check_available()
        self.in_flight.check_capacity(batches, batches_max=IN_FLIGHT_BATCHES_MAX)
        for batch in batches:
            same = self.in_flight.find(*batch.key)
            self._put(batch)
            if same is not None:  # it is in the new one
                same.mask = 0

    def _put(self, batch: InFlightBatch) -> None:
        batch.number = next(self._numbers)
        next_ms = self.in_flight.next_due_ms()
        self.in_flight.add(batch)
        place = self._places.get((batch.group, batch.queue))
        if place is not None:
            place.track(batch)
        if next_ms is None or batch.due_ms < next_ms:
            self.earlier_due.set()

    def settle(self, batch: InFlightBatch, mask: int) -> int:
        settled = self.in_flight.settle(batch, mask)
        if settled:
            self._settled(batch)
        return settled

    def _settled(self, batch: InFlightBatch) -> None:
        place = self._places.get((batch.group, batch.queue))
        if place is not None:
            self._say(batch.group, batch.queue, place)

    def change_invisible_time(self, batch: InFlightBatch, offset: int, invisible_ms: int) -> InFlightBatch:
        moved = self.in_flight.split_off(batch, offset, invisible_ms=invisible_ms, now_ms=self._now_ms())
        self._put(moved)
        self.in_flight.settle(batch, batch.bit(offset))
        return moved

    def withdraw(self, batch: InFlightBatch) -> int:
        return self.in_flight.withdraw(batch)

    def confirm_stored(self, batch: InFlightBatch, mask: int) -> None:
        self.in_flight.restore(batch, batch.withdrawn & ~mask)
        self._settled(batch)

    def fifo_changed(self, fifo_batch: FifoBatch) -> None:
        """Its offset says it all; what it waits for may be over sooner."""
        self.earlier_due.set()

    def put_mark(self, name: str, value: int) -> None:
        """A moment later: nobody waits for it."""
        task = asyncio.get_running_loop().create_task(self._mark(name, value))
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)

    async def _mark(self, name: str, value: int) -> None:
        try:
            await self._store.marks.put(name, value)
        except (SparrowError, LockConflict) as error:
            log.warning("a mark of pops is not stored", extra={"name": name, "why": str(error)})


def _is_far_ahead(place: AckFloor) -> bool:
    return _is_ahead(place.position, place.floor)


def _is_ahead(position: int | None, floor: int | None) -> bool:
    return position is not None and floor is not None and position - floor >= AHEAD_OF_ACK_FLOOR_MAX


@contextlib.contextmanager
def _as_busy() -> Iterator[None]:
    """A transaction that lost against another is no mistake of ours, and not the caller's either."""
    try:
        yield
    except LockConflict as cause:
        raise Busy(str(cause)) from cause

"""Pop state on a database: in-flight messages, held only in the memory of the leader.

1. The stored offset of a group in a queue is that of the first unsettled message. After a crash or a change of the
   leader, messages are delivered again from there: at least once, and none is lost.
2. The position of a group is loaded from there when it first pops a queue, and forgotten when this broker no longer
   leads or the database server was restarted.
3. If a client commits an offset for such a group, the next pop reads it from the database and continues there.
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
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Busy, NotLeader, SparrowError
from sparrow.model.priority import LANE_COUNT
from sparrow.model.queue import Queue
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.engine import SqlStore

log = logging.getLogger(__name__)

AHEAD_OF_ACK_FLOOR_MAX = 100_000
"""How many messages after its first unsettled one a group may get. No more than these are redelivered by rule 1."""
_FINAL_FLUSH_S = 2.0

_Key = tuple[str, Queue]


class SqlPopState:
    """The in-flight messages and positions of all groups, while this broker leads."""

    cold_reads_max = LANE_COUNT + 1
    """One read for each lane of a part and one for retries: messages of other brokers are often not in memory."""

    def __init__(self, store: SqlStore, long_polls: LongPollTable, *, now_ms: Callable[[], int]) -> None:
        self._store, self._long_polls, self._now_ms = store, long_polls, now_ms
        self.in_flight, self.fifo = InFlightTable(), FifoTable()
        self.earlier_due = asyncio.Event()
        self._leads = self._knows_topics = False
        self._term = 0
        """Counts how often everything was forgotten: the result of an older query is ignored."""
        self._numbers = count()
        self._ack_floors: dict[_Key, AckFloor] = {}
        self._loading: dict[_Key, asyncio.Task[None]] = {}
        self._marking: set[asyncio.Task[None]] = set()
        self._failures = LogIntervals()

    # -- leadership ---------------------------------------------------------------------------------------------------

    async def run_as_leader(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Serve pops and run `work` until cancelled."""
        self.forget()
        self._leads = True
        try:
            await work()
        finally:
            self._leads = self._knows_topics = False
            self.forget()
            # The next leader must see the acknowledgements that this broker has answered.
            with contextlib.suppress(SparrowError, LockConflict, TimeoutError):
                async with asyncio.timeout(_FINAL_FLUSH_S):
                    await self._store.offsets.flush()

    def forget(self) -> None:
        """Forget everything: the leader delivers again from the stored offsets on."""
        self.in_flight, self.fifo = InFlightTable(), FifoTable()
        self._ack_floors.clear()
        self._loading.clear()
        self._term += 1
        self.earlier_due.set()
        for queue in self._long_polls.queues():
            self._long_polls.wake(queue)

    def check_available(self) -> None:
        if not self._leads:
            raise NotLeader("this broker is not the leader, and only the leader serves pops: pop from broker 0")

    # -- positions of groups ------------------------------------------------------------------------------------------

    def is_ready(self, group: str, queue: Queue) -> bool:
        if self._is_unknown(group, queue):
            self._load([(group, queue)])
            return False
        ack_floor = self._ack_floors.get((group, queue))
        return ack_floor is not None and not _is_far_ahead(ack_floor)

    def load_positions(self, group: str, queues: Iterable[Queue]) -> Awaitable[None] | None:
        if not self._knows_topics:
            return self._load_and_wait(group, queues)
        unknown = [queue for queue in queues if self._is_unknown(group, queue)]
        return self._load_and_wait(group, unknown) if unknown else None

    def _is_unknown(self, group: str, queue: Queue) -> bool:
        """Return whether the position must be read from the database."""
        ack_floor = self._ack_floors.get((group, queue))
        if ack_floor is None:
            return queue in self._store.catalog.lanes
        return not self._is_certain(ack_floor, group, queue)

    def _is_certain(self, ack_floor: AckFloor, group: str, queue: Queue) -> bool:
        """Return whether no client has committed since, and the topic was not created again."""
        lane = self._store.catalog.lanes.get(queue)
        return (
            lane is not None
            and lane.number == ack_floor.lane
            and self._store.offsets.committed_nowait(group, queue) == ack_floor.observed_offset
        )

    async def _load_and_wait(self, group: str, queues: Iterable[Queue]) -> None:
        """Load positions. Topics are refreshed first, because `queues` may depend on them."""
        if not self._knows_topics:
            with _as_busy():
                await self._store.catalog.list_topics()  # the previous leader may have just created a retry topic
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
        """Start to load positions, unless they are being loaded."""
        new = [key for key in keys if key not in self._loading]
        if not new or not self._leads:
            return
        task = asyncio.get_running_loop().create_task(self._query(new, self._term))
        self._loading |= dict.fromkeys(new, task)

        def done(task: asyncio.Task[None]) -> None:
            for key in new:
                if self._loading.get(key) is task:
                    del self._loading[key]
            if task.cancelled():  # the event loop is shutting down
                return
            if (error := task.exception()) is not None:  # a waiting pop tries again when it times out
                if self._failures.is_due(new[0][0], type(error)):
                    log.warning(
                        "the position of group %(group)s cannot be loaded: %(error)s; the next pop retries",
                        {"group": new[0][0], "error": error},
                    )
                return
            self._failures.end(new[0][0])
            for _, queue in new:
                self._long_polls.wake(queue)

        task.add_done_callback(done)

    async def _query(self, keys: Sequence[_Key], term: int) -> None:
        with _as_busy():
            # Unsaved commits of this broker must be stored first, or the older offset would look like a rewind.
            await self._store.offsets.flush()
            for group, queue in keys:
                await self._store.bounds(queue)  # other brokers may have just appended
                stored = await self._store.offsets.committed(group, queue)
                if term != self._term:
                    return
                self._set_position(group, queue, stored)

    def _set_position(self, group: str, queue: Queue, stored: int | None) -> None:
        lane = self._store.catalog.lanes.get(queue)
        if lane is None:
            self._ack_floors.pop((group, queue), None)
            return
        ack_floor = self._ack_floors.get((group, queue))
        if ack_floor is None or ack_floor.lane != lane.number or ack_floor.stored_offset != stored:
            # A new group, or one that a client has moved: its earlier in-flight messages no longer hold back the floor.
            ack_floor = self._ack_floors[group, queue] = AckFloor(lane.number, stored)
        ack_floor.observed_offset = self._store.offsets.committed_nowait(group, queue)
        self._store_floor(group, queue, ack_floor)

    def position(self, group: str, queue: Queue) -> int | None:
        ack_floor = self._ack_floors.get((group, queue))
        return ack_floor.position if ack_floor is not None else None

    def advance(self, group: str, queue: Queue, offset: int) -> None:
        self.check_available()
        ack_floor = self._ack_floors.get((group, queue))
        if ack_floor is not None:
            ack_floor.position = offset
            self._store_floor(group, queue, ack_floor)

    def _store_floor(self, group: str, queue: Queue, ack_floor: AckFloor) -> None:
        """Commit the floor, unless a client has committed another offset: then load that."""
        floor = ack_floor.floor
        if floor is None or floor == ack_floor.stored_offset:
            return
        if not self._is_certain(ack_floor, group, queue):
            if queue in self._store.catalog.lanes:
                self._load([(group, queue)])
            return
        was_far_ahead = _is_ahead(ack_floor.position, ack_floor.stored_offset)
        self._store.offsets.commit_nowait(group, queue, floor)
        ack_floor.stored_offset = ack_floor.observed_offset = floor
        if was_far_ahead:
            self._long_polls.wake(queue)

    # -- in-flight messages -------------------------------------------------------------------------------------------

    def add(self, batches: Sequence[InFlightBatch]) -> None:
        self.check_available()
        self.in_flight.check_capacity(batches, batches_max=IN_FLIGHT_BATCHES_MAX)
        for batch in batches:
            same = self.in_flight.find(*batch.key)
            self._put(batch)
            if same is not None:  # the new batch holds the same messages
                same.mask = 0

    def _put(self, batch: InFlightBatch) -> None:
        batch.number = next(self._numbers)
        next_ms = self.in_flight.next_due_ms()
        self.in_flight.add(batch)
        ack_floor = self._ack_floors.get((batch.group, batch.queue))
        if ack_floor is not None:
            ack_floor.track(batch)
        if next_ms is None or batch.due_ms < next_ms:
            self.earlier_due.set()

    def settle(self, batch: InFlightBatch, mask: int) -> int:
        settled = self.in_flight.settle(batch, mask)
        if settled:
            self._batch_settled(batch)
        return settled

    def _batch_settled(self, batch: InFlightBatch) -> None:
        ack_floor = self._ack_floors.get((batch.group, batch.queue))
        if ack_floor is not None:
            self._store_floor(batch.group, batch.queue, ack_floor)

    def change_invisible_time(self, batch: InFlightBatch, offset: int, invisible_ms: int) -> InFlightBatch:
        moved = self.in_flight.split_off(batch, offset, invisible_ms=invisible_ms, now_ms=self._now_ms())
        self._put(moved)
        self.in_flight.settle(batch, batch.bit(offset))
        return moved

    def withdraw(self, batch: InFlightBatch) -> int:
        return self.in_flight.withdraw(batch)

    def confirm_stored(self, batch: InFlightBatch, mask: int) -> None:
        self.in_flight.restore(batch, batch.withdrawn & ~mask)
        self._batch_settled(batch)

    def fifo_changed(self, fifo_batch: FifoBatch) -> None:
        """Wake the reviver: an invisible time may end earlier. Nothing is stored: the group's offset is enough."""
        self.earlier_due.set()

    def put_mark(self, name: str, value: int) -> None:
        """Store a mark in the background."""
        task = asyncio.get_running_loop().create_task(self._mark(name, value))
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)

    async def _mark(self, name: str, value: int) -> None:
        try:
            await self._store.marks.put(name, value)
            self._failures.end("mark")
        except (SparrowError, LockConflict) as error:
            if self._failures.is_due("mark", type(error)):
                log.warning("mark %(mark)s of pops cannot be stored: %(error)s", {"mark": name, "error": error})


def _is_far_ahead(ack_floor: AckFloor) -> bool:
    return _is_ahead(ack_floor.position, ack_floor.floor)


def _is_ahead(position: int | None, floor: int | None) -> bool:
    return position is not None and floor is not None and position - floor >= AHEAD_OF_ACK_FLOOR_MAX


@contextlib.contextmanager
def _as_busy() -> Iterator[None]:
    """Raise `Busy` for a lock conflict: the caller may retry."""
    try:
        yield
    except LockConflict as cause:
        raise Busy(str(cause)) from cause

"""Reads messages for a pop from the queues of its topic.

1. A queue is read from the group's position. The position moves past what is fetched and what the filter rejects; for
   FIFO queues it moves with acknowledgements.
2. Queues are read in random rotation, within their lane if the topic has lanes (see `lane_fairness`). The retry topic
   is last, and first in one pop of five, so that neither old nor new messages starve.
3. Nothing changes before `mark_in_flight`: it puts the messages in flight, and then moves the positions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import islice
from random import randrange

from sparrow.broker.consume.filtering import apply_selector, filter_work, messages_to_examine
from sparrow.broker.consume.grown_queues import GrownQueues
from sparrow.broker.consume.references import may_contain_references, may_hold_references, resolve_references
from sparrow.broker.context import Broker
from sparrow.broker.pop import receipt_handles
from sparrow.broker.pop.lane_deficits import STRICT_PRIORITY
from sparrow.broker.pop.lane_fairness import LaneFairness
from sparrow.broker.pop.response import REVIVE_QUEUE, PopResponse, PopSource
from sparrow.broker.pop.state.in_flight import InFlightBatch
from sparrow.broker.produce.lanes import has_lanes
from sparrow.model.priority import Priority, priority_of_queue, read_queue_id, write_queue_id
from sparrow.model.protocol import PROPERTY_POP_CHECKPOINT, PROPERTY_RETRY_TOPIC, RETRY_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.store.spi import AtEnd, Moved, ReadLimits, ReadResult, Slice
from sparrow.wire import record
from sparrow.wire.headers import NotificationRequest, PopMessage

_RETRY_FIRST = 5
_LOOKS_MAX = 32
"""Reads of one queue without a match, before other queues are read."""
_FROM_NEWEST = 1
QUEUES_A_STEP = 256
"""Queues that a pop examines before others have a turn; a queue takes about 5 µs. A topic with more is wide."""
_NEWEST_FIRST = 2


class PopFetcher:
    """Fetches messages for pops."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._store, self._topics, self._pop_state = broker, broker.store, broker.topics, broker.pop_state
        self.reading: set[tuple[str, Queue]] = set()
        """(group, queue) pairs that are being read from disk for a pop. Other pops skip them meanwhile."""
        self._popped: set[tuple[str, str]] = set()
        self._fairness = LaneFairness(broker)
        self._handed_out = broker.positions.handed_out

    def queues(self, topic: str, queue_id: int, lanes: Iterable[Priority] = Priority) -> list[Queue]:
        """Return the queues of a topic in the order for this pop; `lanes` is the order of its lanes."""
        if queue_id >= 0:
            return [Queue(topic, queue_id)]
        count, in_lanes = self._topics[topic].read_queues, has_lanes(self._topics[topic])
        if in_lanes:
            count = write_queue_id(count)
        first = randrange(count) if count > 1 else 0
        numbers = [(first + number) % count for number in range(count)]
        if in_lanes:
            return [Queue(topic, read_queue_id(part, lane)) for lane in lanes for part in numbers]
        return [Queue(topic, number) for number in numbers]

    def is_wide(self, topic: str, queue_id: int) -> bool:
        """Return whether a pop has so many queues to examine that it must do so in steps."""
        return queue_id < 0 and self._topics[topic].read_queues > QUEUES_A_STEP

    def steps(self, request: PopMessage | NotificationRequest, grown: GrownQueues) -> Iterator[list[PopSource]]:
        """Yield the sources of a pop from a wide topic, some at a time.

        Every second pop begins with the queues that have grown last, unless lanes have an order. The retry topic is
        last, or first in one pop of five.
        """
        topic = self._topics[request.topic]
        lanes: Sequence[Priority | None] = list(Priority) if has_lanes(topic) else [None]
        count = topic.read_queues if lanes == [None] else write_queue_id(topic.read_queues)
        retries = self._retry_sources(request)
        is_retry_first = not randrange(_RETRY_FIRST)
        if is_retry_first and retries:
            yield retries
        if lanes == [None] and not randrange(_NEWEST_FIRST):
            yield self.newest(request, grown, 0)[0]
        first = randrange(count)
        for lane in lanes:
            for begin in range(0, count, QUEUES_A_STEP):
                parts = ((first + number) % count for number in range(begin, min(begin + QUEUES_A_STEP, count)))
                yield [(Queue(topic.name, part if lane is None else read_queue_id(part, lane)), 0) for part in parts]
        if retries and not is_retry_first:
            yield retries

    def newest(
        self, request: PopMessage | NotificationRequest, grown: GrownQueues, number: int
    ) -> tuple[list[PopSource], bool]:
        """Return the queues that have grown after this growth, with the retry topic, and whether these are all."""
        ids = list(islice(grown.since(number), QUEUES_A_STEP + 1))
        newest: list[PopSource] = [(Queue(request.topic, queue_id), 0) for queue_id in ids[:QUEUES_A_STEP]]
        if has_lanes(self._topics[request.topic]):
            newest.sort(key=lambda source: priority_of_queue(source[0].id))
        return newest + self._retry_sources(request), len(ids) <= QUEUES_A_STEP

    def _retry_sources(self, request: PopMessage | NotificationRequest) -> list[PopSource]:
        retries = None if request.in_order else self.retry_queue(request.group, request.topic)
        return [] if retries is None or retries.topic not in self._topics else [(retries, 0)]

    def retry_queue(self, group: str, topic: str) -> Queue | None:
        """Return the retry queue of a group. It may not exist yet."""
        return None if topic.startswith(RETRY_TOPIC_PREFIX) else Queue(receipt_handles.pop_retry_topic(group, topic), 0)

    def fill(self, response: PopResponse) -> Queue | None:
        """Fetch what is in memory. Return the first queue whose messages must be read from disk, if any.

        If nothing was fetched before it, later queues in memory are not read instead: that might starve it. If the
        state allows more than one cold read for a pop, a queue on disk is never skipped in favour of a lower lane.
        """
        request = response.request
        self._pop_state.check_available()
        if response.sources is None:
            response.sources = self._sources(response)
        is_strict = (
            self._pop_state.cold_reads_max > 1 and request.queue_id < 0 and has_lanes(self._topics[request.topic])
        )
        for queue, reserved in response.sources:
            if response.filter_work_left <= 0:
                response.is_cut_short = True
                break
            response.reserved_slots = reserved
            if not self._may_take(response, queue):
                continue
            if response.is_full:
                response.remaining += self._remaining(request.group, queue)
            elif not self._take(response, queue) and (is_strict or not response.count):
                return queue
        return None

    def _sources(self, response: PopResponse) -> list[PopSource]:
        """Return the queues, and how many slots each must leave for those that follow."""
        request = response.request
        plan = STRICT_PRIORITY
        if request.queue_id < 0 and has_lanes(self._topics[request.topic]):
            plan = self._fairness.next_plan(
                request.group, request.topic, slots=response.slots_left, now_ms=response.now_ms
            )
        reserved = {lane: plan.reserved_after(lane) for lane in Priority} if plan.reserved else {}
        queues: list[PopSource] = [
            (queue, reserved[priority_of_queue(queue.id)] if reserved else 0)
            for queue in self.queues(request.topic, request.queue_id, plan.order)
        ]
        retries = self._retry_sources(request)
        if retries and not randrange(_RETRY_FIRST):
            return [(retries[0][0], plan.reserved_after(None)), *queues]
        return queues + retries

    def _may_take(self, response: PopResponse, queue: Queue) -> bool:
        request = response.request
        if (request.group, queue) in self.reading and queue not in response.fetched:
            return False
        if not self._pop_state.is_ready(request.group, queue):
            return False
        if not request.in_order:
            return True
        return not self.is_blocked(request.group, queue, response.now_ms, request.attempt_id)

    def is_blocked(self, group: str, queue: Queue, now_ms: int, attempt: str | None) -> bool:
        """Return whether a FIFO queue is blocked. A group that was rewound meanwhile is not."""
        fifo_batch = self._pop_state.fifo.of(group, queue)
        if fifo_batch is None or fifo_batch.committed != self._pop_state.position(group, queue):
            return False
        return self._pop_state.fifo.is_blocked(group, queue, now_ms, attempt)

    def _remaining(self, group: str, queue: Queue) -> int:
        first, end = self._store.bounds_nowait(queue)
        return max(0, int(end) - max(self._pop_state.position(group, queue) or 0, first))

    def _take(self, response: PopResponse, queue: Queue) -> bool:
        """Fetch from one queue. Return False if its messages are not in memory."""
        at = self.position(response, queue)
        fetched = response.fetched.get(queue)
        if fetched is not None and fetched[0] == at:  # otherwise the group was rewound meanwhile
            fitting = response.cut_to_fit(self.apply_filter(response, queue, fetched[1]))
            examined_to = self.add_found(response, queue, at, fitting)
            response.is_cut_short |= examined_to is not None
            return True
        for _ in range(_LOOKS_MAX):
            found = self._store.read_nowait(queue, at, **self.limits(response, queue))
            if found is None or (may_hold_references(queue.topic) and may_contain_references(found)):
                return False
            examined_to = self.add_found(response, queue, at, self.apply_filter(response, queue, found))
            if examined_to is None:
                return True
            at = examined_to
            if response.filter_work_left <= 0:
                break
        response.is_cut_short = True
        return True

    def limits(self, response: PopResponse, queue: Queue) -> ReadLimits:
        is_retried = queue.topic != response.request.topic  # retries matched the filter at their first delivery
        return {
            "count_max": messages_to_examine(response.free, None if is_retried else response.wanted.selector),
            "bytes_max": response.bytes_left,
            "tags_codes": None if is_retried else response.wanted.tags_codes,
        }

    async def fetch(self, response: PopResponse, queue: Queue) -> tuple[int, ReadResult]:
        """Read a queue from disk. Return the offset and the result."""
        at = self.position(response, queue)
        found = await self._store.read(queue, at, **self.limits(response, queue))
        if may_hold_references(queue.topic):
            found = await resolve_references(self._store, found, bytes_max=response.bytes_left)
        return at, found

    def apply_filter(self, response: PopResponse, queue: Queue, found: ReadResult) -> ReadResult:
        """Return the records that match the group's SQL92 condition."""
        if queue.topic != response.request.topic:  # retries matched the filter at their first delivery
            return found
        response.filter_work_left -= filter_work(found, response.wanted.selector)
        return apply_selector(found, response.wanted.selector, response.free)

    def position(self, response: PopResponse, queue: Queue) -> int:
        """Return the group's position. The first pop of a new group sets it."""
        request = response.request
        at = response.offsets.get(queue)
        if at is None:
            at = self._pop_state.position(request.group, queue)
        if at is not None:
            return at
        first, end = self._store.bounds_nowait(queue)
        at = int(first)
        if request.init_mode == _FROM_NEWEST and queue.topic == request.topic and first > 0:
            at = max(at, end - 1)  # as in RocketMQ, the newest message itself is included
        if end:  # an empty queue needs no position: its first message is the next one in any case
            response.offsets[queue] = at
        return at

    def add_found(self, response: PopResponse, queue: Queue, at: int, found: ReadResult) -> int | None:
        """Add the result of a read. Return the next offset to read if it had no match and there may be more."""
        if isinstance(found, AtEnd):
            return None
        if isinstance(found, Moved):
            response.offsets[queue] = found.to
            return found.to
        offsets: Sequence[int] = range(at, at + len(found.sizes))
        if len(found.sizes) != found.next_offset - at:  # some were rejected or deleted
            offsets = [record.queue_offset_of(raw) for raw in found.records()]
        if not response.request.in_order or not offsets:
            response.offsets[queue] = found.next_offset
        if queue.topic != response.request.topic:
            offsets = self._add_retries(response, queue, offsets, found)
        else:
            response.records += found.buffers
        if not offsets:
            return found.next_offset
        response.slots_left -= len(offsets)
        response.bytes_left -= sum(found.sizes)
        response.remaining += found.bounds.end - found.next_offset
        self._record_batch(response, queue, offsets, found.next_offset)
        return None

    def _record_batch(self, response: PopResponse, queue: Queue, offsets: Sequence[int], next_offset: int) -> None:
        request = response.request
        retry = receipt_handles.FROM_TOPIC if queue.topic == request.topic else receipt_handles.FROM_RETRY_TOPIC
        start = offsets[0]
        if request.in_order:
            response.fifo_batches.append((queue, offsets, next_offset))
        else:
            mask = 0
            if isinstance(offsets, range):
                mask = (1 << len(offsets)) - 1
            else:
                for offset in offsets:
                    mask |= 1 << offset - start
            response.batches.append(
                InFlightBatch(
                    request.group, queue, start, pop_ms=response.now_ms, invisible_ms=request.invisible_ms, mask=mask
                )
            )
        response.starts.append(receipt_handles.start_entry(retry, queue.id, start))
        response.taken.append(receipt_handles.offsets_entry(retry, queue.id, offsets))

    def _add_retries(self, response: PopResponse, queue: Queue, offsets: Sequence[int], found: Slice) -> list[int]:
        """Add retries as messages of their original topic, each with its handle: clients do not know retry topics."""
        request = response.request
        messages = [record.decode(raw, verify_crc=False, expand=False) for raw in found.records()]
        # Two pairs of group and topic may have the same retry topic name: skip retries of other topics.
        ours = [each for each in messages if each.properties.get(PROPERTY_RETRY_TOPIC, request.topic) == request.topic]
        for message in ours:
            message.topic = request.topic
            message.properties[PROPERTY_POP_CHECKPOINT] = receipt_handles.format_handle(
                start=ours[0].queue_offset,
                pop_ms=response.now_ms,
                invisible_ms=request.invisible_ms,
                revive_queue=REVIVE_QUEUE,
                retry=receipt_handles.FROM_RETRY_TOPIC,
                broker=self._broker.name,
                queue_id=queue.id,
                offset=message.queue_offset,
            )
            response.records.append(record.encode_message(message))
        return [message.queue_offset for message in ours]

    def mark_in_flight(self, response: PopResponse) -> None:
        """Put the fetched messages in flight, and move the positions."""
        request = response.request
        if response.batches:
            self._pop_state.add(response.batches)
            for batch in response.batches:
                self._fairness.record_taken(batch.group, batch.queue, batch.mask.bit_count())
            if (request.group, request.topic) not in self._popped:
                self._popped.add((request.group, request.topic))
                self._pop_state.put_mark(receipt_handles.pop_begun_mark(request.group, request.topic), response.now_ms)
        for queue, offset in response.offsets.items():
            self._pop_state.advance(request.group, queue, offset)
            self._handed_out[request.group, queue] = offset
        for queue, offsets, next_offset in response.fifo_batches:
            fifo_batch = self._pop_state.fifo.take(
                request.group,
                queue,
                offsets,
                next_offset=next_offset,
                pop_ms=response.now_ms,
                invisible_ms=request.invisible_ms,
                attempt=request.attempt_id,
            )
            self._fairness.record_taken(request.group, queue, len(offsets))
            self._pop_state.advance(request.group, queue, fifo_batch.committed)
            self._handed_out[request.group, queue] = next_offset
            self._pop_state.fifo_changed(fifo_batch)
            response.counts += receipt_handles.count_entries(queue.id, fifo_batch.counts)

    def has_more(self, group: str, queue: Queue) -> bool:
        """Return whether there are messages at or after the group's position."""
        return (
            queue.topic in self._topics and self._pop_state.is_ready(group, queue) and self._remaining(group, queue) > 0
        )

    def load_positions(self, request: PopMessage | NotificationRequest) -> Awaitable[None] | None:
        """Return an awaitable that loads the group's positions; None if they are loaded."""
        return self._pop_state.load_positions(request.group, self._all_sources(request))

    def load_positions_of(self, group: str, sources: Iterable[PopSource]) -> Awaitable[None] | None:
        """Return an awaitable that loads the group's positions in these queues; None if they are loaded."""
        return self._pop_state.load_positions(group, [queue for queue, _ in sources])

    def _all_sources(self, request: PopMessage | NotificationRequest) -> Iterator[Queue]:
        yield from self.queues(request.topic, request.queue_id)
        yield from (queue for queue, _ in self._retry_sources(request))

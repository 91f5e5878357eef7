"""The response of one pop while it is being filled, and responses without messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

from sparrow.broker.clients.subscriptions import SubscriptionFilter
from sparrow.broker.consume.filtering import FILTER_WORK_MAX
from sparrow.broker.pop import receipt_handles
from sparrow.broker.pop.state.in_flight import InFlightBatch
from sparrow.model.queue import Queue, QueueOffset
from sparrow.net.dispatcher import HandlerResponse, encode_response
from sparrow.store.spi import ReadResult, Slice
from sparrow.wire import record
from sparrow.wire.codes import ADVERTISED_VERSION, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, Serialization
from sparrow.wire.headers import PopMessage, PopMessageResponse

ANSWER_BYTES_MAX = 256 * 1024
"""More only if a single message is larger."""
REVIVE_QUEUE = 0
"""Sparrow has one revive queue. RocketMQ has eight; handles contain its number."""


PopSource = tuple[Queue, int]
"""A queue to read, and how many slots it must leave for those that follow."""

_JSON = Serialization.JSON
_START = Struct(">II")
_DONE = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":' + str(ADVERTISED_VERSION).encode() + b"}"


class PopResponse:
    """The messages of one pop, and their batches. `now_ms` is the pop time in their handles."""

    def __init__(self, request: PopMessage, wanted: SubscriptionFilter, now_ms: int) -> None:
        self.request, self.wanted, self.now_ms = request, wanted, now_ms
        self.sources: Sequence[PopSource] | None = None
        """The queues to read; None: not determined yet."""
        self.is_partial = False
        """The sources are only some of the topic's queues."""
        self.fetched: Mapping[Queue, tuple[int, ReadResult]] = {}
        """Results that were read from disk for this pop, with their offsets."""
        self.slots_left, self.bytes_left = request.messages_max, ANSWER_BYTES_MAX
        self.reserved_slots = 0
        """Slots that the next queue must leave for later lanes."""
        self.records: list[bytes | memoryview] = []
        self.remaining = 0
        """Messages left in the queues."""
        self.is_cut_short = False
        """There is more to examine, though nothing was found yet."""
        self.filter_work_left = FILTER_WORK_MAX
        """How much filtering this pop may still do."""
        self.batches: list[InFlightBatch] = []
        self.fifo_batches: list[tuple[Queue, Sequence[int], int]] = []
        self.offsets: dict[Queue, int] = {}
        """The group's next position in each queue."""
        self.starts: list[str] = []
        self.taken: list[str] = []
        self.counts: list[str] = []

    def restarted(self, now_ms: int, fetched: Mapping[Queue, tuple[int, ReadResult]]) -> PopResponse:
        """Return an empty response with the same order of queues, and with results from disk."""
        other = PopResponse(self.request, self.wanted, now_ms)
        other.sources, other.fetched, other.is_partial = self.sources, fetched, self.is_partial
        return other

    @property
    def count(self) -> int:
        return self.request.messages_max - self.slots_left

    @property
    def free(self) -> int:
        """The slots that the next queue may fill."""
        return self.slots_left - self.reserved_slots

    @property
    def is_full(self) -> bool:
        return self.free <= 0 or self.bytes_left <= 0

    def cut_to_fit(self, found: ReadResult) -> ReadResult:
        """Cut an earlier result to the free slots and bytes; keep at least one record."""
        if not isinstance(found, Slice) or (len(found.sizes) <= self.free and sum(found.sizes) <= self.bytes_left):
            return found
        fitting: list[memoryview] = []
        size = 0
        for raw in found.records():
            if fitting and (len(fitting) >= self.free or size + len(raw) > self.bytes_left):
                next_offset = QueueOffset(record.queue_offset_of(raw))
                return Slice(fitting, [len(each) for each in fitting], next_offset, found.bounds)
            fitting.append(raw)
            size += len(raw)
        return found

    def header(self) -> PopMessageResponse:
        return PopMessageResponse(
            pop_ms=self.now_ms,
            invisible_ms=self.request.invisible_ms,
            revive_queue=receipt_handles.FIFO_REVIVE_QUEUE if self.request.in_order else REVIVE_QUEUE,
            rest=self.remaining,
            start_offsets=";".join(self.starts),
            message_offsets=";".join(self.taken),
            order_counts=";".join(self.counts) or None,
        )


def success_frame(command: RemotingCommand) -> bytes | None:
    """Return a success frame without fields, from a template: acknowledgements are frequent."""
    if command.serialization is not _JSON or command.flag & ONE_WAY_FLAG:
        return encode_response(command, HandlerResponse())
    header = _DONE % command.opaque
    return b"%b%b" % (_START.pack(len(header) + 4, len(header)), header)


def no_message_frame(command: RemotingCommand) -> bytes | None:
    return encode_response(
        command, HandlerResponse(code=ResponseCode.POLLING_TIMEOUT, remark="there was no message for the group")
    )


def stale_handle(why: str) -> HandlerResponse:
    return HandlerResponse(code=ResponseCode.NO_MESSAGE, remark=why)

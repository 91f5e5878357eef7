"""What one pop takes with it, and how the answer speaks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

from sparrow.broker.clients.subscriptions import SubscriptionFilter
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
"""What an answer holds; more only if a single message is larger."""
REVIVE_QUEUE = 0
"""Ours has one queue; RocketMQ's has eight, and handles say which."""


_JSON = Serialization.JSON
_START = Struct(">II")
_DONE = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":' + str(ADVERTISED_VERSION).encode() + b"}"


class PopResponse:
    """Empty at first. `now_ms` becomes the time in its handles."""

    def __init__(self, request: PopMessage, wanted: SubscriptionFilter, now_ms: int) -> None:
        self.request, self.wanted, self.now_ms = request, wanted, now_ms
        self.sources: Sequence[tuple[Queue, int]] | None = None
        """Queues to take from, and how many places each must leave to those that follow; None: not decided yet."""
        self.fetched: Mapping[Queue, tuple[int, ReadResult]] = {}
        """What was read for this pop already: from which offset on, and what there was."""
        self.slots_left, self.bytes_left = request.messages_max, ANSWER_BYTES_MAX
        self.reserved_slots = 0
        """Places that the next queue must leave to lanes behind it."""
        self.records: list[bytes | memoryview] = []
        self.remaining = 0
        """Messages left in the queues."""
        self.is_cut_short = False
        """There is more to look at, though nothing was found yet."""
        self.batches: list[InFlightBatch] = []
        self.fifo_batches: list[tuple[Queue, Sequence[int], int]] = []
        self.offsets: dict[Queue, int] = {}
        """How far the group gets in each queue."""
        self.starts: list[str] = []
        self.taken: list[str] = []
        self.counts: list[str] = []

    def restarted(self, now_ms: int, fetched: Mapping[Queue, tuple[int, ReadResult]]) -> PopResponse:
        """To be filled anew, in the same order, now that more is at hand."""
        other = PopResponse(self.request, self.wanted, now_ms)
        other.sources, other.fetched = self.sources, fetched
        return other

    @property
    def count(self) -> int:
        return self.request.messages_max - self.slots_left

    @property
    def free(self) -> int:
        """Places that the next queue may fill."""
        return self.slots_left - self.reserved_slots

    @property
    def is_full(self) -> bool:
        return self.free <= 0 or self.bytes_left <= 0

    def cut_to_fit(self, found: ReadResult) -> ReadResult:
        """As much of what was read a while ago as there is room for by now, and one at least."""
        if not isinstance(found, Slice) or (len(found.sizes) <= self.free and sum(found.sizes) <= self.bytes_left):
            return found
        kept: list[memoryview] = []
        size = 0
        for raw in found.records():
            if kept and (len(kept) >= self.free or size + len(raw) > self.bytes_left):
                next_offset = QueueOffset(record.queue_offset_of(raw))
                return Slice(kept, [len(each) for each in kept], next_offset, found.bounds)
            kept.append(raw)
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
    """Success with nothing more to say, filled into a form: acknowledgements come by the ten thousand."""
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

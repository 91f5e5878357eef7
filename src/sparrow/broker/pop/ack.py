"""Handlers of acknowledgements and of changed invisible times.

A receipt handle that is no longer valid is answered with code 208: its message was acknowledged, got another handle, or
its invisible time has expired and it will be redelivered.
"""

from __future__ import annotations

from sparrow.broker.context import Broker
from sparrow.broker.pop import receipt_handles
from sparrow.broker.pop.response import REVIVE_QUEUE, stale_handle, success_frame
from sparrow.broker.pop.state.fifo import FifoBatch
from sparrow.broker.pop.state.in_flight import InFlightBatch
from sparrow.broker.pop.validation import check_invisible_time
from sparrow.model.queue import Queue
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineHandler, RequestContext, RequestHandler, encode_response
from sparrow.wire import bodies, headers
from sparrow.wire.bodies.pop import Ack, BatchAck
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeResponse


class AckHandler:
    """Handles acknowledgements, single (200051) and in batches (200151)."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._pop_state = broker, broker.pop_state

    def handlers(self) -> dict[int, InlineHandler]:
        return {RequestCode.ACK_MESSAGE: self.ack, RequestCode.BATCH_ACK_MESSAGE: self.batch_ack}

    def ack(self, command: RemotingCommand, _: Channel) -> bytes | None:
        self._pop_state.check_available()
        request = headers.read(AckMessage, command.ext)
        handle = receipt_handles.parse_handle(request.handle)
        queue = Queue(receipt_handles.stored_topic_name(request.topic), request.queue_id)
        if handle.is_in_order:
            is_settled = _ack_in_order(self._broker, request.group, queue, handle.pop_ms, [request.offset]) == 1
        else:
            batch = self._pop_state.in_flight.find(request.group, queue, handle.start, handle.pop_ms)
            bit = batch.bit(request.offset) if batch is not None else 0
            is_settled = batch is not None and bit != 0 and self._pop_state.settle(batch, bit) != 0
        return (
            success_frame(command)
            if is_settled
            else encode_response(command, _why(self._broker, queue, request.offset))
        )

    def batch_ack(self, command: RemotingCommand, _: Channel) -> bytes | None:
        self._pop_state.check_available()
        acks = bodies.read_request(BatchAck, command.body).acks
        requested = settled = 0
        for ack in acks:
            offsets = ack.offsets
            requested += len(offsets)
            settled += self._settle(ack, offsets)
        if settled == requested:
            return success_frame(command)
        stale = requested - settled
        why = f"{stale} of {requested} messages are not in flight by these handles; the others are acknowledged"
        return encode_response(command, stale_handle(why))

    def _settle(self, ack: Ack, offsets: list[int]) -> int:
        queue = Queue(receipt_handles.popped_topic(ack.group, ack.topic, ack.retry), ack.queue_id)
        if ack.revive_queue == receipt_handles.FIFO_REVIVE_QUEUE:
            return _ack_in_order(self._broker, ack.group, queue, ack.pop_ms, offsets)
        batch = self._pop_state.in_flight.find(ack.group, queue, ack.start_offset, ack.pop_ms)
        if batch is None:
            return 0
        mask = 0
        for offset in offsets:
            mask |= 1 << offset - ack.start_offset
        return self._pop_state.settle(batch, mask).bit_count()


def _ack_in_order(broker: Broker, group: str, queue: Queue, pop_ms: int, offsets: list[int]) -> int:
    """Acknowledge messages of a FIFO queue. Return how many were still in flight."""
    fifo_batch = _fifo_batch(broker, group, queue, pop_ms)
    if fifo_batch is None:
        return 0
    before = fifo_batch.committed
    settled = sum(broker.pop_state.fifo.ack(fifo_batch, offset) for offset in offsets)
    if settled:
        _moved(broker, fifo_batch, before)
    return settled


def _fifo_batch(broker: Broker, group: str, queue: Queue, pop_ms: int) -> FifoBatch | None:
    fifo_batch = broker.pop_state.fifo.of(group, queue)
    return fifo_batch if fifo_batch is not None and fifo_batch.pop_ms == pop_ms else None


def _moved(broker: Broker, fifo_batch: FifoBatch, before: int) -> None:
    """Store the change and wake parked pops of the queue. A group that was rewound meanwhile keeps its new position."""
    broker.pop_state.fifo_changed(fifo_batch)
    if fifo_batch.queue.topic in broker.topics:
        if broker.pop_state.position(fifo_batch.group, fifo_batch.queue) == before:
            broker.pop_state.advance(fifo_batch.group, fifo_batch.queue, fifo_batch.committed)
        broker.long_polls.wake(fifo_batch.queue)


def _why(broker: Broker, queue: Queue, offset: int) -> HandlerResponse:
    """Return why a handle is not valid."""
    topic = broker.topics[queue.topic]
    if not 0 <= queue.id < topic.read_queues:
        return HandlerResponse(
            code=ResponseCode.MESSAGE_ILLEGAL, remark=f"topic {topic.name!r} has no queue {queue.id}"
        )
    first, end = broker.store.bounds_nowait(queue)
    if not first <= offset < end:
        return stale_handle(f"offset {offset} is not in queue {queue}, which has offsets {first} to {end}")
    return stale_handle(
        f"the handle of offset {offset} in queue {queue} is not valid any more: the message was "
        "acknowledged, got another handle, or its invisible time has expired"
    )


async def change_invisible_time(
    request: ChangeInvisibleTime, broker: Broker, _call: RequestContext
) -> ChangeInvisibleTimeResponse | HandlerResponse:
    """Change the invisible time of a message. Return its new handle."""
    broker.pop_state.check_available()
    check_invisible_time(request.invisible_ms, least=0)
    handle = receipt_handles.parse_handle(request.handle)
    queue = Queue(receipt_handles.stored_topic_name(request.topic), request.queue_id)
    if handle.is_in_order:
        return _change_in_order(request, broker, queue, handle.pop_ms)
    batch = broker.pop_state.in_flight.find(request.group, queue, handle.start, handle.pop_ms)
    if batch is None or not batch.bit(request.offset):
        return _why(broker, queue, request.offset)
    moved: InFlightBatch = broker.pop_state.change_invisible_time(batch, request.offset, request.invisible_ms)
    return ChangeInvisibleTimeResponse(moved.pop_ms, moved.invisible_ms, REVIVE_QUEUE)


def _change_in_order(
    request: ChangeInvisibleTime, broker: Broker, queue: Queue, pop_ms: int
) -> ChangeInvisibleTimeResponse | HandlerResponse:
    """Change the invisible time of a FIFO message.

    Its handle keeps the pop time, which it shares with the other messages of the batch.
    """
    fifo_batch = _fifo_batch(broker, request.group, queue, pop_ms)
    due_ms = broker.now_ms() + request.invisible_ms
    if fifo_batch is None or not broker.pop_state.fifo.change(fifo_batch, request.offset, due_ms):
        return _why(broker, queue, request.offset)
    broker.pop_state.fifo_changed(fifo_batch)
    return ChangeInvisibleTimeResponse(pop_ms, due_ms - pop_ms, receipt_handles.FIFO_REVIVE_QUEUE)


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible_time}

"""Batch sends (320): several messages of one queue in one request, appended together or not at all.

1. A batch is appended as it was sent, unless its messages must be looked at one by one: if the store takes drafts, or
   if they may have a priority, a delay or a reference.
2. No batch holds the event loop for long: the number of its messages has a limit, and many are looked at in a thread.
   Another send of the same connection may overtake such a batch, as in RocketMQ, where threads share the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from sparrow.broker.consume.references import strip_references
from sparrow.broker.context import Broker
from sparrow.broker.produce.lanes import has_lanes, lane_queue_for_batch
from sparrow.broker.produce.send_properties import is_delayed, terminated
from sparrow.model.errors import IllegalMessage, ProtocolError, Refused, SparrowError, TooLarge
from sparrow.model.message import Draft
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.net.channel import Channel
from sparrow.store.spi import AppendResult, BatchFields
from sparrow.wire import batch
from sparrow.wire.batch import BatchMessage
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import SendMessage
from sparrow.wire.record import HIDDEN_FLAG

_EXAMINED_BYTES_MAX = 128 * 1024
"""Of a batch whose messages are looked at one by one on the event loop: some 6,000 of the smallest."""
_DELAY_MARKS = (b"DELAY", b"TIMER_D")
_REFERENCE_MARK = b"__REF"

PendingBatch = AppendResult | Awaitable[AppendResult]


class BatchSends:
    """Appends the batches of one broker."""

    def __init__(self, broker: Broker, stamp: bytes) -> None:
        """`stamp` are the properties that the broker adds to each message."""
        self._broker, self._store, self._topics, self._stamp = broker, broker.store, broker.topics, stamp
        self._appender = broker.store.batch_appender
        self._message_bytes_max = broker.store.message_bytes_max
        self._messages_max = broker.settings.batch_messages_max

    def append(self, request: SendMessage, command: RemotingCommand, channel: Channel, queue: Queue) -> PendingBatch:
        """Append the messages of a batch, or refuse it."""
        body = command.body
        self._check(request, body)
        appender = self._appender
        has_priorities = has_lanes(self._topics[request.topic]) and b"PRIORITY" in body
        is_as_sent = not (has_priorities or _REFERENCE_MARK in body or any(mark in body for mark in _DELAY_MARKS))
        if appender is None or not is_as_sent:
            if len(body) > _EXAMINED_BYTES_MAX:
                return self._append_in_thread(request, command, channel, queue, has_priorities=has_priorities)
            try:
                queue, members = self._examine(queue, body, has_priorities=has_priorities)
            except SparrowError as cause:
                raise self._refusal(cause) from cause
            if appender is None:
                return self._store.append_nowait(queue, self._drafts(members, request, command, channel))
            body = _without_references(body, members)
        return self._append_as_sent(request, channel, queue, body)

    async def _append_in_thread(
        self, request: SendMessage, command: RemotingCommand, channel: Channel, queue: Queue, *, has_priorities: bool
    ) -> AppendResult:
        def prepare() -> tuple[Queue, list[Draft] | bytes | memoryview]:
            lane, members = self._examine(queue, command.body, has_priorities=has_priorities)
            if self._appender is None:
                return lane, self._drafts(members, request, command, channel)
            return lane, _without_references(command.body, members)

        try:
            queue, prepared = await asyncio.to_thread(prepare)
        except SparrowError as cause:
            raise self._refusal(cause) from cause
        if isinstance(prepared, list):
            return await self._store.append(queue, prepared)
        return self._append_as_sent(request, channel, queue, prepared)

    def _append_as_sent(
        self, request: SendMessage, channel: Channel, queue: Queue, body: bytes | memoryview
    ) -> AppendResult:
        assert self._appender is not None, "the store takes drafts"
        common = BatchFields(
            request.sys_flag, request.born_ms, channel.packed_host, request.reconsume_times, self._stamp
        )
        try:
            return self._appender.append_batch_nowait(queue, body, common, messages_max=self._messages_max)
        except SparrowError as cause:
            raise self._refusal(cause) from cause

    def _check(self, request: SendMessage, body: bytes | memoryview) -> None:
        """Refuse what no batch may be."""
        if request.topic.startswith(RETRY_TOPIC_PREFIX):
            raise IllegalMessage("a batch cannot go to a retry topic: send the messages one by one")
        if request.sys_flag & HIDDEN_FLAG:
            raise IllegalMessage("a batch cannot be part of a transaction")
        if len(body) > self._message_bytes_max:
            raise TooLarge("the batch", len(body), self._message_bytes_max)
        if len(body) < batch.BATCH_MESSAGE_BYTES_MIN:
            raise Refused("the batch has no message")
        if is_delayed(request.properties.encode()):
            raise IllegalMessage("a batch cannot be delayed: send its messages one by one")

    # -- one by one, on the event loop or in a thread -----------------------------------------------------------------

    def _examine(
        self, queue: Queue, body: bytes | memoryview, *, has_priorities: bool
    ) -> tuple[Queue, list[BatchMessage]]:
        """Return the queue of the batch's lane, and its messages without references."""
        members = batch.decode(body, messages_max=self._messages_max)
        # Searching the whole batch once is cheaper than searching each message.
        if any(mark in body for mark in _DELAY_MARKS) and any(is_delayed(properties) for _, _, properties in members):
            raise IllegalMessage("a message of a batch cannot be delayed: send it by itself")
        if _REFERENCE_MARK in body:
            members = [BatchMessage(flag, body, strip_references(properties)) for flag, body, properties in members]
        return lane_queue_for_batch(queue, members) if has_priorities else queue, members

    def _drafts(
        self, members: Sequence[BatchMessage], request: SendMessage, command: RemotingCommand, channel: Channel
    ) -> list[Draft]:
        token, stamp, born_host = self._broker.token_of(command), self._stamp, channel.packed_host
        return [
            Draft(
                body=body,
                properties=terminated(properties) + stamp,
                flag=flag,
                sys_flag=request.sys_flag,
                born_ms=request.born_ms,
                born_host=born_host,
                reconsume_times=request.reconsume_times,
                token=token,
            )
            for flag, body, properties in members
        ]

    def _refusal(self, cause: SparrowError) -> SparrowError:
        """Return the error that the sender gets."""
        if isinstance(cause, ProtocolError):
            return Refused(f"the batch cannot be decoded: {cause}")
        return cause


def _without_references(body: bytes | memoryview, members: list[BatchMessage]) -> bytes | memoryview:
    """Return a batch that was examined as it is to be appended."""
    return batch.encode(members) if _REFERENCE_MARK in body else body

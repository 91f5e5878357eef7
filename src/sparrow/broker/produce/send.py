"""The send handler: validate a message, choose its queue, append it, and answer when it is as safe as configured.

An inline handler. Only a send that creates its topic, or waits for a database, becomes a task; sends that wait for the
same flush share its future.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from sparrow.broker.catalog.topics import BROKER_ONLY_TOPICS
from sparrow.broker.consume import retry
from sparrow.broker.consume.references import strip_references
from sparrow.broker.context import Broker
from sparrow.broker.metrics.event_counters import SMALL_BYTES
from sparrow.broker.produce.batch_send import BatchSends
from sparrow.broker.produce.dedup import ProducerSequence, SendDeduplicator, producer_sequence_of
from sparrow.broker.produce.queue_choice import broker_only_topic, choose_queue
from sparrow.broker.produce.send_properties import (
    delivery_time_ms,
    numeric_property,
    terminated,
    wants_no_wait,
)
from sparrow.broker.produce.send_response import SendResponseEncoder
from sparrow.broker.produce.send_spans import with_send_spans
from sparrow.model.errors import (
    FlushTimeout,
    IllegalMessage,
    NoFollower,
    ReplicationTimeout,
)
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    DEFAULT_REGION,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_POP_CHECKPOINT,
    PROPERTY_PRODUCER_ID,
    PROPERTY_REGION,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    RETRY_TOPIC_PREFIX,
)
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import DeferredResponse, InlineHandler, InlineResult, encode_error
from sparrow.store.spi import AppendResult, PendingAppend
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.error_codes import response_for_error
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import SendMessage, SendMessageV2
from sparrow.wire.message_ids import UniqueIdGenerator
from sparrow.wire.properties import encode, property_value, set_properties
from sparrow.wire.record import HIDDEN_FLAG

_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_WRITTEN = (FlushTimeout, ReplicationTimeout, NoFollower)
"""The message is written, but is not as safe as the policy demands. RocketMQ's clients get a result, not an error."""


class SendHandler:
    """Handles sends in both header versions (10, 310) and batches (320)."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._store, self._topics = broker, broker.store, broker.topics
        self._counters, self._events = broker.counters, broker.events
        self._deduplicator: SendDeduplicator | None = None
        if not broker.store.deduplicates_sends:
            assert broker.store.assigns_offsets_at_once, "the deduplicator needs the offset of each send"
            self._deduplicator = SendDeduplicator(broker.store, now_ms=broker.now_ms)
        host = broker.address.as_host()
        self._encode_sent = SendResponseEncoder(host, broker.name).encode
        self._unique_ids = UniqueIdGenerator(host.ip, host.port, id(self), broker.now_ms)
        # Replies need the cluster. Clients of 5.x trace only messages with a region.
        stamp = {
            PROPERTY_CLUSTER: broker.settings.cluster,
            PROPERTY_REGION: DEFAULT_REGION,
            PROPERTY_TRACE_SWITCH: "true",
        }
        self._stamp = encode(stamp)
        self._append_batch = BatchSends(broker, self._stamp).append

    def handlers(self) -> dict[int, InlineHandler]:
        return with_send_spans(
            {
                RequestCode.SEND_MESSAGE: self.send,
                RequestCode.SEND_MESSAGE_V2: self.send_v2,
                RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
            }
        )

    def send(self, command: RemotingCommand, channel: Channel) -> InlineResult:
        return self._send(headers.read(SendMessage, command.ext), command, channel)

    def send_v2(self, command: RemotingCommand, channel: Channel) -> InlineResult:
        return self._send(headers.read(SendMessageV2, command.ext), command, channel)

    def _send(self, request: SendMessage, command: RemotingCommand, channel: Channel) -> InlineResult:
        if request.topic in BROKER_ONLY_TOPICS:
            raise broker_only_topic(request.topic)
        topic = self._topics.get(request.topic)
        if topic is None:
            return self._to_new_topic(request, command, channel)
        queue = choose_queue(request, topic)
        if request.batch or command.code == _SEND_BATCH:
            batched = self._append_batch(request, command, channel, queue)
            if not isinstance(batched, AppendResult):
                return self._answer_later(request, command, channel, None, batched)
            return self._answer(request, command, channel, batched.queue, batched)
        draft = self._draft(request, command, channel)
        properties = request.properties
        # a retry has the sequence number of the first send, and is no repeat
        is_retry = topic.name.startswith(RETRY_TOPIC_PREFIX)
        if is_retry and self._is_given_up(request, topic):
            return self._append_dead_letter(request, command, channel, queue, draft)
        deduplicator = self._deduplicator if PROPERTY_PRODUCER_ID in properties and not is_retry else None
        if deduplicator is not None and (send_key := producer_sequence_of(draft.properties)) is not None:
            if deduplicator.find(send_key) is None and deduplicator.must_search_index:
                return self._send_once(request, command, channel, queue, draft, send_key)
            return self._send_new(request, command, channel, queue, draft, send_key)
        pending = self._append(request, queue, draft)
        if isinstance(pending, AppendResult):
            return self._answer(request, command, channel, queue, pending, draft.properties)
        return self._answer_later(request, command, channel, queue, pending, draft.properties)

    async def _to_new_topic(self, request: SendMessage, command: RemotingCommand, channel: Channel) -> bytes | None:
        await self._topics.create_for_send(
            request.topic, template=request.template_topic, queues=request.default_topic_queues
        )
        again = self._send(request, command, channel)
        return again if isinstance(again, bytes) or again is None else await again

    # -- deduplication ------------------------------------------------------------------------------------------------

    async def _send_once(
        self,
        request: SendMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue,
        draft: Draft,
        send_key: ProducerSequence,
    ) -> bytes | None:
        """Send a message that may have been stored before the broker started."""
        assert self._deduplicator is not None, "the store has no deduplicator"
        await self._deduplicator.search_index(
            request.topic, send_key, property_value(draft.properties, PROPERTY_UNIQUE_KEY) or ""
        )
        frame = self._send_new(request, command, channel, queue, draft, send_key)
        return frame if isinstance(frame, bytes) or frame is None else await frame

    def _send_new(
        self,
        request: SendMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue,
        draft: Draft,
        send_key: ProducerSequence,
    ) -> InlineResult:
        assert self._deduplicator is not None, "the store has no deduplicator"
        appended = self._deduplicator.find(send_key)
        if appended is None:
            pending = self._append(request, queue, draft)
            assert isinstance(pending, AppendResult), "the store assigns offsets at once"
            appended = pending
            self._deduplicator.remember(send_key, appended)
        elif appended.queue.topic == queue.topic:
            queue = appended.queue  # the repeat may have chosen another queue
        return self._answer(request, command, channel, queue, appended, draft.properties)

    # -- delayed and transactional messages ---------------------------------------------------------------------------

    def _append(self, request: SendMessage, queue: Queue, draft: Draft) -> PendingAppend:
        """Append a message to its queue, or store it as a delayed or half message."""
        text = request.properties
        if not (
            PROPERTY_DELAY_LEVEL in text
            or "TIMER_D" in text
            or PROPERTY_TRANSACTION_PREPARED in text
            or request.sys_flag & HIDDEN_FLAG
        ):
            return self._store.append_nowait(queue, (draft,))
        properties = draft.properties
        level = numeric_property(properties, PROPERTY_DELAY_LEVEL) or 0
        is_half = property_value(properties, PROPERTY_TRANSACTION_PREPARED) == "true" and not (
            request.reconsume_times > 0 and level > 0
        )
        if is_half:
            return self._broker.transactions.append_half(queue, draft)
        if request.sys_flag & HIDDEN_FLAG:
            raise IllegalMessage("its flags mark a half message, but its properties do not (TRAN_MSG)")
        if level > 0:
            return self._broker.delay.schedule_level(queue, draft, level)
        due_ms = delivery_time_ms(properties, self._broker.now_ms)
        waiting = self._broker.delay.schedule_at(queue, draft, due_ms) if due_ms is not None else None
        return waiting or self._store.append_nowait(queue, (draft,))

    def _is_given_up(self, request: SendMessage, topic: Topic) -> bool:
        """Return whether an ordered consumer gives up a message: once, after all its retries (RocketMQ 5.1.4)."""
        group = self._broker.groups[retry.group_of_retry_topic(topic.name)]
        return retry.has_exhausted_retries(request, group) or (
            request.reconsume_times > 0 and self._broker.queue_locks.holds_any(group.name, self._broker.monotonic_ms())
        )

    async def _append_dead_letter(
        self, request: SendMessage, command: RemotingCommand, channel: Channel, queue: Queue, draft: Draft
    ) -> bytes | None:
        group = self._broker.groups[retry.group_of_retry_topic(queue.topic)]
        appended = await retry.append_dead_letter(self._broker, group, draft)
        frame = self._answer(request, command, channel, queue, appended, draft.properties)
        return frame if isinstance(frame, bytes) or frame is None else await frame

    # -- records ------------------------------------------------------------------------------------------------------

    def _draft(self, request: SendMessage, command: RemotingCommand, channel: Channel) -> Draft:
        properties = terminated(request.properties.encode())
        # Inlined for speed: the property is first, or follows another.
        if b"\x02UNIQ_KEY\x01" not in properties and not properties.startswith(b"UNIQ_KEY\x01"):
            properties += f"UNIQ_KEY\x01{self._unique_ids.make()}\x02".encode()
        if b"\x02CLUSTER\x01" not in properties and not properties.startswith(b"CLUSTER\x01"):
            properties += self._stamp
        if b"POP_CK\x01" in properties:  # only the broker issues receipt handles
            properties = set_properties(properties, {PROPERTY_POP_CHECKPOINT: ""})
        properties = strip_references(properties)
        return Draft(
            body=command.body,
            properties=properties,
            flag=request.flag,
            sys_flag=request.sys_flag,
            born_ms=request.born_ms,
            born_host=channel.packed_host,
            reconsume_times=request.reconsume_times,
            token=self._broker.token_of(command),
        )

    # -- answers ------------------------------------------------------------------------------------------------------

    def _answer(
        self,
        request: SendMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue,
        appended: AppendResult,
        properties: bytes | None = None,
    ) -> InlineResult:
        """Answer at once, or when the message is as safe as the flush policy and the replicas' policy demand.

        `queue` is the destination of the message, even if it is stored elsewhere first.
        """
        count, size_bytes, stored_topic = len(appended.physical_offsets), len(command.body), appended.queue.topic
        self._counters.count_send(request.topic, count, size_bytes)
        if (
            size_bytes > SMALL_BYTES
            or stored_topic != request.topic
            or (PROPERTY_SHARDING_KEY in request.properties and properties is not None)
        ):
            self._events.count_special_send(
                request.topic, stored_topic, request.properties, count=count, size_bytes=size_bytes
            )
        if wants_no_wait(request.properties):
            return self._encode_sent(command, queue, appended, properties)
        durable = self._store.when_durable(appended.end)
        if durable is None:
            return self._encode_sent(command, queue, appended, properties)
        return DeferredResponse(durable, partial(self._encode_answer, command, queue, appended, properties))

    def _encode_answer(
        self,
        command: RemotingCommand,
        queue: Queue,
        appended: AppendResult,
        properties: bytes | None,
        error: BaseException | None,
    ) -> bytes | None:
        """Encode the answer to a message that was waited for."""
        if error is None:
            return self._encode_sent(command, queue, appended, properties)
        if isinstance(error, _WRITTEN):  # the sender gets its offset
            return self._encode_sent(command, queue, appended, properties, *response_for_error(error))
        return encode_error(command, error)

    async def _answer_later(
        self,
        request: SendMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue | None,
        pending: Awaitable[AppendResult],
        properties: bytes | None = None,
    ) -> bytes | None:
        """Answer once the store has appended the message. Without `queue`, the append's queue is the destination."""
        appended = await pending
        if queue is None or appended.queue.topic == queue.topic:  # a repeat may have chosen another queue
            queue = appended.queue
        frame = self._answer(request, command, channel, queue, appended, properties)
        return frame if isinstance(frame, bytes) or frame is None else await frame

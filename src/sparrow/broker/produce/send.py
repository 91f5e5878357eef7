"""Sending: a message is checked, given a queue, appended, and answered once it is as safe as the store's policy says.

A plain function. Only a topic that must be made first, or a disk that must be waited for, puts the answer off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import randrange
from struct import Struct

from sparrow.broker.catalog.topics import BROKER_ONLY_TOPICS
from sparrow.broker.consume import retry
from sparrow.broker.consume.references import strip_references
from sparrow.broker.context import Broker
from sparrow.broker.delay.recall import recall_handle
from sparrow.broker.produce.dedup import ProducerSequence, SendDeduplicator, producer_sequence_of
from sparrow.broker.produce.lanes import has_lanes, lane_queue, lane_queue_for_batch
from sparrow.model.errors import FlushTimeout, IllegalMessage, NotPermitted, ProtocolError, Refused, TooLarge
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    DEFAULT_REGION,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_POP_CHECKPOINT,
    PROPERTY_PRODUCER_ID,
    PROPERTY_REGION,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT_STORED,
    RETRY_TOPIC_PREFIX,
    TIMER_TOPIC,
)
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineHandler, encode_error, encode_response
from sparrow.store.spi import AppendResult, PendingAppend
from sparrow.wire import batch, headers
from sparrow.wire.codes import ADVERTISED_VERSION, RequestCode, ResponseCode
from sparrow.wire.columns import batch as columns_batch
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, Serialization, decode_ext_fields
from sparrow.wire.headers import SendMessage, SendMessageResponse, SendMessageV2
from sparrow.wire.message_ids import UniqueIdGenerator, offset_id_prefix
from sparrow.wire.properties import encode, has_property, property_value, set_properties
from sparrow.wire.record import HIDDEN_FLAG, pack_host

_MANY = 400
"""Messages in a batch from which on columns are quicker than objects."""
_TIMES = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
_JSON = Serialization.JSON
_START = Struct(">II")
_FORM = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":'
    + str(ADVERTISED_VERSION).encode()
    + b',"extFields":{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d","transactionId":"%b",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"}}'
)
"""The answer to a send that succeeded."""

FrameResult = bytes | Awaitable[bytes | None] | None


class SendHandler:
    """Serves sends in both spellings (10, 310) and batches (320)."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._store, self._topics = broker, broker.store, broker.topics
        self._counters = broker.counters
        self._encoded_appender = broker.store.encoded_appender
        self._deduplicator: SendDeduplicator | None = None
        if not broker.store.deduplicates_sends:
            assert broker.store.assigns_offsets_at_once, "the deduplicator needs the offset of each send"
            self._deduplicator = SendDeduplicator(broker.store, now_ms=broker.now_ms)
        self._remembers_tokens = broker.store.remembers_tokens and broker.settings.auth
        host = broker.address.as_host()
        self._id_prefix = offset_id_prefix(host)
        self._id_prefix_bytes = self._id_prefix.encode()
        self._unique_ids = UniqueIdGenerator(host.ip, host.port, id(self), broker.now_ms)
        # Replies need the cluster; consumers of 5.x trace nothing of a message that does not say its region.
        stamp = {
            PROPERTY_CLUSTER: broker.settings.cluster,
            PROPERTY_REGION: DEFAULT_REGION,
            PROPERTY_TRACE_SWITCH: "true",
        }
        self._stamp = encode(stamp)
        self._store_host_bytes = len(pack_host(host))
        self._message_bytes_max = broker.store.message_bytes_max

    def handlers(self) -> dict[int, InlineHandler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def send(self, command: RemotingCommand, channel: Channel) -> FrameResult:
        return self._send(headers.read(SendMessage, command.ext), command, channel)

    def send_v2(self, command: RemotingCommand, channel: Channel) -> FrameResult:
        return self._send(headers.read(SendMessageV2, command.ext), command, channel)

    def _send(self, request: SendMessage, command: RemotingCommand, channel: Channel) -> FrameResult:
        if request.topic in BROKER_ONLY_TOPICS:
            raise broker_only_topic(request.topic)
        topic = self._topics.get(request.topic)
        if topic is None:
            return self._to_new_topic(request, command, channel)
        queue = choose_queue(request, topic)
        if request.batch or command.code == RequestCode.SEND_BATCH_MESSAGE:
            placing = self._append_batch(request, command, channel, queue)
            if not isinstance(placing, AppendResult):
                return self._answer_later(request, command, channel, None, placing)
            appended = placing
            return self._answer(request, command, channel, appended.queue, appended)
        draft = self._draft(request, command, channel)
        words = request.properties
        is_retry = topic.name.startswith(RETRY_TOPIC_PREFIX)  # a copy of what was sent once, not a repeat of it
        if is_retry and self._is_worn_out(request, topic):
            return self._bury(request, command, channel, queue, draft)
        repeats = self._deduplicator if PROPERTY_PRODUCER_ID in words and not is_retry else None
        if repeats is not None and (send_key := producer_sequence_of(draft.properties)) is not None:
            if repeats.find(send_key) is None and repeats.must_search_index:
                return self._send_once(request, command, channel, queue, draft, send_key)
            return self._send_new(request, command, channel, queue, draft, send_key)
        placing = self._place(request, queue, draft)
        if isinstance(placing, AppendResult):
            return self._answer(request, command, channel, queue, placing, draft.properties)
        return self._answer_later(request, command, channel, queue, placing, draft.properties)

    async def _to_new_topic(self, request: SendMessage, command: RemotingCommand, channel: Channel) -> bytes | None:
        await self._topics.create_for_send(
            request.topic, template=request.template_topic, queues=request.default_topic_queues
        )
        again = self._send(request, command, channel)
        return again if isinstance(again, bytes) or again is None else await again

    # -- messages that must not be stored twice -----------------------------------------------------------------------

    async def _send_once(
        self,
        request: SendMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue,
        draft: Draft,
        send_key: ProducerSequence,
    ) -> bytes | None:
        """Perhaps it was stored before the broker was started."""
        assert self._deduplicator is not None, "only a log must be looked through"
        await self._deduplicator.search_index(
            request.topic, send_key, property_value(draft.properties, b"UNIQ_KEY") or ""
        )
        said = self._send_new(request, command, channel, queue, draft, send_key)
        return said if isinstance(said, bytes) or said is None else await said

    def _send_new(
        self,
        request: SendMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue,
        draft: Draft,
        send_key: ProducerSequence,
    ) -> FrameResult:
        assert self._deduplicator is not None, "only a log must remember"
        appended = self._deduplicator.find(send_key)
        if appended is None:
            placing = self._place(request, queue, draft)
            assert isinstance(placing, AppendResult), "a log places at once"
            appended = placing
            self._deduplicator.remember(send_key, appended)
        elif appended.queue.topic == queue.topic:
            queue = appended.queue  # the repeat may have chosen another
        return self._answer(request, command, channel, queue, appended, draft.properties)

    # -- messages that do not go straight to their queue --------------------------------------------------------------

    def _place(self, request: SendMessage, queue: Queue, draft: Draft) -> PendingAppend:
        """Store a message where it belongs for now: in its queue, or where it waits for its time or its producer."""
        words = request.properties
        if not (
            PROPERTY_DELAY_LEVEL in words
            or "TIMER_D" in words
            or PROPERTY_TRANSACTION_PREPARED in words
            or request.sys_flag & HIDDEN_FLAG
        ):
            return self._store.append_nowait(queue, (draft,))
        properties = draft.properties
        level = _number(properties, b"DELAY") or 0
        is_half = property_value(properties, b"TRAN_MSG") == "true" and not (request.reconsume_times > 0 and level > 0)
        if is_half:
            return self._broker.transactions.append_half(queue, draft)
        if request.sys_flag & HIDDEN_FLAG:
            raise IllegalMessage("its flags say it is half of a transaction, its properties do not (TRAN_MSG)")
        if level > 0:
            return self._broker.delay.schedule_level(queue, draft, level)
        due_ms = self._due_ms(properties)
        waiting = self._broker.delay.schedule_at(queue, draft, due_ms) if due_ms is not None else None
        return waiting or self._store.append_nowait(queue, (draft,))

    def _is_worn_out(self, request: SendMessage, topic: Topic) -> bool:
        """A consumer in order gives a message up only after all its tries, and then for good (RocketMQ 5.1.4)."""
        group = self._broker.groups[retry.group_of_retry_topic(topic.name)]
        return retry.has_exhausted_retries(request, group) or (
            request.reconsume_times > 0 and self._broker.queue_locks.holds_any(group.name, self._broker.now_ms())
        )

    def _due_ms(self, properties: bytes) -> int | None:
        """When a message wants to be delivered. Of several ways to say so the first of these counts, as in RocketMQ."""
        if (seconds := _number(properties, b"TIMER_DELAY_SEC")) is not None:
            return self._broker.now_ms() + seconds * 1000
        if (ms := _number(properties, b"TIMER_DELAY_MS")) is not None:
            return self._broker.now_ms() + ms
        return _number(properties, b"TIMER_DELIVER_MS")

    async def _bury(
        self, request: SendMessage, command: RemotingCommand, channel: Channel, queue: Queue, draft: Draft
    ) -> bytes | None:
        group = self._broker.groups[retry.group_of_retry_topic(queue.topic)]
        appended = await retry.append_dead_letter(self._broker, group, draft)
        said = self._answer(request, command, channel, queue, appended, draft.properties)
        return said if isinstance(said, bytes) or said is None else await said

    # -- what is stored -----------------------------------------------------------------------------------------------

    def _draft(self, request: SendMessage, command: RemotingCommand, channel: Channel) -> Draft:
        properties = _ended(request.properties.encode())
        # Spelled out, for every message comes this way: there, either first or behind another.
        if b"\x02UNIQ_KEY\x01" not in properties and not properties.startswith(b"UNIQ_KEY\x01"):
            properties += f"UNIQ_KEY\x01{self._unique_ids.make()}\x02".encode()
        if b"\x02CLUSTER\x01" not in properties and not properties.startswith(b"CLUSTER\x01"):
            properties += self._stamp
        if b"POP_CK\x01" in properties:  # a handle is the broker's to give
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
            token=self._token_of(command) if self._remembers_tokens else 0,
        )

    def _token_of(self, command: RemotingCommand) -> int:
        """The number of the token that signed it."""
        token = self._store.tokens.all_nowait().get(decode_ext_fields(command.ext).get("AccessKey", ""))
        return token.id if token is not None else 0

    def _append_batch(
        self, request: SendMessage, command: RemotingCommand, channel: Channel, queue: Queue
    ) -> PendingAppend:
        body = command.body
        if request.topic.startswith(RETRY_TOPIC_PREFIX):
            raise IllegalMessage("a batch cannot go to a retry topic: messages are retried one by one")
        if request.sys_flag & HIDDEN_FLAG:
            raise IllegalMessage("a batch cannot be part of a transaction")
        if len(body) > self._message_bytes_max:
            raise TooLarge("the batch", len(body), self._message_bytes_max)
        if len(body) < batch.BATCH_MESSAGE_BYTES_MIN:
            raise Refused("the batch holds no message")
        if _is_for_later(request.properties.encode()):
            raise IllegalMessage("a batch cannot be delayed: send its messages one by one")
        try:
            if has_lanes(self._topics[request.topic]) and b"PRIORITY" in body:
                queue = lane_queue_for_batch(queue, body)
            is_small = len(body) // max(int.from_bytes(body[:4], "big"), 1) < _MANY
            if self._encoded_appender is None or is_small or b"DELAY" in body or b"TIMER_D" in body or b"__REF" in body:
                return self._store.append_nowait(queue, self._drafts(request, command, channel))
            encoded = columns_batch.batch_to_records(
                body,
                topic=request.topic,
                sys_flag=request.sys_flag,
                born_ms=request.born_ms,
                born_host=channel.packed_host,
                extra_properties=self._stamp,
                store_host_bytes=self._store_host_bytes,
                reconsume_times=request.reconsume_times,
            )
            return self._encoded_appender.append_encoded_nowait(queue, encoded.data, encoded.sizes, verify_crc=False)
        except ProtocolError as cause:
            raise Refused(f"the batch cannot be read: {cause}") from cause

    def _drafts(self, request: SendMessage, command: RemotingCommand, channel: Channel) -> list[Draft]:
        members = batch.decode(command.body)
        token = self._token_of(command) if self._remembers_tokens else 0
        if any(_is_for_later(member.properties) for member in members):
            raise IllegalMessage("a message of a batch cannot be delayed: send it by itself")
        return [
            Draft(
                body=member.body,
                properties=strip_references(_ended(member.properties)) + self._stamp,
                flag=member.flag,
                sys_flag=request.sys_flag,
                born_ms=request.born_ms,
                born_host=channel.packed_host,
                reconsume_times=request.reconsume_times,
                token=token,
            )
            for member in members
        ]

    # -- what is answered ---------------------------------------------------------------------------------------------

    def _answer(
        self,
        request: SendMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue,
        appended: AppendResult,
        properties: bytes | None = None,
    ) -> FrameResult:
        """At once, or when it is durable. `queue`: where it was sent, though it may lie elsewhere for now."""
        self._counters.count_send(request.topic, len(appended.physical_offsets), len(command.body))
        durable = self._store.when_durable(appended.end)
        if durable is None or (PROPERTY_WAIT_STORED in request.properties and _wants_no_wait(request)):
            return self._sent(command, queue, appended, properties)
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def done(future: asyncio.Future[None]) -> None:
            error = future.exception() if not future.cancelled() else FlushTimeout(0)
            if answered.done():
                return
            if error is None:
                frame = self._sent(command, queue, appended, properties)
            elif isinstance(error, FlushTimeout):  # written all the same: the sender gets the place with it
                frame = self._sent(command, queue, appended, properties, ResponseCode.FLUSH_DISK_TIMEOUT, str(error))
            else:
                frame = encode_error(command, error)
            answered.set_result(frame)

        durable.add_done_callback(done)
        return answered

    async def _answer_later(
        self,
        request: SendMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue | None,
        placing: asyncio.Future[AppendResult],
        properties: bytes | None = None,
    ) -> bytes | None:
        """Once the store has it. Without a `queue`, where it lies is where it was sent."""
        appended = await placing
        if queue is None or appended.queue.topic == queue.topic:  # a repeat may have chosen another queue
            queue = appended.queue
        said = self._answer(request, command, channel, queue, appended, properties)
        return said if isinstance(said, bytes) or said is None else await said

    def _sent(
        self,
        command: RemotingCommand,
        queue: Queue,
        appended: AppendResult,
        properties: bytes | None,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> bytes | None:
        """`properties`: of a single message, None for a batch."""
        if properties is not None and not code and command.serialization is _JSON and not command.flag & ONE_WAY_FLAG:
            frame = self._sent_one(command, queue, appended, properties)
            if frame is not None:
                return frame
        ids = columns_batch.joined_offset_ids(self._id_prefix, appended.physical_offsets)
        unique = property_value(properties, b"UNIQ_KEY") if properties is not None else None
        handle = None
        due_ms = _number(properties, b"TIMER_OUT_MS") if properties and appended.queue.topic == TIMER_TOPIC else None
        if due_ms is not None:
            handle = recall_handle(queue.topic, self._broker.name, due_ms, unique or "")
        header = SendMessageResponse(ids, queue.id, appended.offset, unique, DEFAULT_REGION, True, recall_handle=handle)
        return encode_response(command, HandlerResponse(header, code=code, remark=remark))

    def _sent_one(
        self, command: RemotingCommand, queue: Queue, appended: AppendResult, properties: bytes
    ) -> bytes | None:
        """The same frame for the usual case, filled into a form: an encoder would take as long as the append."""
        at = properties.find(b"UNIQ_KEY\x01") + 9
        unique = properties[at : properties.find(b"\x02", at)]
        if not unique.isalnum() or (at > 9 and properties[at - 10] != 2) or appended.queue.topic == TIMER_TOPIC:
            return None  # an id that needs escaping, a property whose name only ends alike, or there is more to say
        header = _FORM % (
            command.opaque,
            self._id_prefix_bytes,
            appended.physical_offsets[0],
            queue.id,
            appended.offset,
            unique,
        )
        size = len(header)
        return b"%b%b" % (_START.pack(size + 4, size), header)


def broker_only_topic(topic: str) -> NotPermitted:
    return NotPermitted(f"sending to topic {topic!r}", "only the broker itself writes to it")


def choose_queue(request: SendMessage, topic: Topic) -> Queue:
    """The queue a request names, or any of the topic's; of a topic with lanes, the lane that its priority says."""
    if not topic.is_writable:
        raise NotPermitted(f"sending to topic {topic.name!r}", "the topic has no write permission")
    queue_id, in_lanes = request.queue_id, has_lanes(topic)
    if queue_id < 0:
        queue_id = randrange(topic.write_queues)
    elif queue_id >= (topic.write_queues if in_lanes else max(topic.write_queues, topic.read_queues)):
        raise Refused(f"topic {topic.name!r} has no queue {queue_id}: it has {topic.write_queues}")
    return lane_queue(Queue(topic.name, queue_id), request.properties) if in_lanes else Queue(topic.name, queue_id)


def _ended(properties: bytes) -> bytes:
    """With the separator that stored strings may lack at their end, so that more can follow."""
    return properties + b"\x02" if properties and properties[-1] != 2 else properties


def _number(properties: bytes, name: bytes) -> int | None:
    """A property that is a number; None if there is none, or it is not one."""
    found = property_value(properties, name) if name in properties else None
    if found is None:
        return None
    try:
        return int(found)
    except ValueError:
        if name == b"DELAY":
            return None
        raise IllegalMessage(f"its property {name.decode()} is no number: {found[:80]!r}") from None


def _is_for_later(properties: bytes) -> bool:
    """Whether a message asks for a delivery time."""
    return bool(_number(properties, b"DELAY")) or any(has_property(properties, name) for name in _TIMES)


def _wants_no_wait(request: SendMessage) -> bool:
    return property_value(request.properties.encode(), b"WAIT") == "false"

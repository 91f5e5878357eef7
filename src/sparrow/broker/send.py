"""Sending: a message is checked, given a queue, appended, and answered once it is as safe as the store's policy says.

A plain function. Only a topic that must be made first, or a disk that must be waited for, puts the answer off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import randrange
from struct import Struct

from sparrow.broker.context import Broker
from sparrow.broker.topics import NOT_FOR_SENDERS, RETRY_PREFIX
from sparrow.model.errors import FlushTimeout, NotPermitted, ProtocolError, Refused, TooLarge
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net.channel import Channel
from sparrow.net.serving import Answer, Plain, failure, reply
from sparrow.store.spi import Appended
from sparrow.wire import batch, column_batch, headers
from sparrow.wire.codes import OUR_VERSION, Code, Response
from sparrow.wire.frame import IS_ONE_WAY, Command, Serialization
from sparrow.wire.headers import SendMessage, SendMessageV2, Sent
from sparrow.wire.ids import UniqueIds, offset_id_prefix
from sparrow.wire.properties import value_of
from sparrow.wire.record import PREPARED, pack_host

_REGION = "DefaultRegion"
_MANY = 400
"""Messages in a batch from which on columns are quicker than objects."""
_JSON = Serialization.JSON
_START = Struct(">II")
_FORM = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":'
    + str(OUR_VERSION).encode()
    + b',"extFields":{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d","transactionId":"%b",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"}}'
)
"""The answer to a send that succeeded."""


class Sending:
    """Serves sends in both spellings (10, 310) and batches (320)."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._store, self._topics = broker, broker.store, broker.topics
        self._counters = broker.counters
        host = broker.address.as_host()
        self._id_prefix = offset_id_prefix(host)
        self._id_prefix_bytes = self._id_prefix.encode()
        self._unique_ids = UniqueIds(host.ip, host.port, id(self), broker.now_ms)
        self._cluster = f"CLUSTER\x01{broker.settings.cluster}\x02".encode()
        self._store_host_bytes = len(pack_host(host))
        self._message_bytes_max = broker.store.settings.message_bytes_max

    def handlers(self) -> dict[int, Plain]:
        return {
            Code.SEND_MESSAGE: self.send,
            Code.SEND_MESSAGE_V2: self.send_v2,
            Code.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def send(self, command: Command, channel: Channel) -> bytes | Awaitable[bytes | None] | None:
        return self._send(headers.read(SendMessage, command.ext), command, channel)

    def send_v2(self, command: Command, channel: Channel) -> bytes | Awaitable[bytes | None] | None:
        return self._send(headers.read(SendMessageV2, command.ext), command, channel)

    def _send(self, request: SendMessage, command: Command, channel: Channel) -> bytes | Awaitable[bytes | None] | None:
        topic = self._topics.get(request.topic)
        if topic is None:
            return self._to_new_topic(request, command, channel)
        queue = self._queue_of(request, topic)
        if request.batch or command.code == Code.SEND_BATCH_MESSAGE:
            appended = self._append_batch(request, command, channel, queue)
            properties = None
        else:
            draft = self._draft(request, command, channel)
            appended, properties = self._store.append_now(queue, (draft,)), draft.properties
        self._counters.sent(request.topic, len(appended.physical_offsets), len(command.body))
        durable = self._store.durable(appended.end)
        if durable is None or "WAIT\x01false" in request.properties:
            return self._sent(command, appended, properties)
        self._when_durable(command, channel, appended, properties, durable)
        return None

    async def _to_new_topic(self, request: SendMessage, command: Command, channel: Channel) -> bytes | None:
        await self._topics.create_for_send(
            request.topic, template=request.template_topic, queues=request.template_queues
        )
        again = self._send(request, command, channel)
        return again if isinstance(again, bytes) or again is None else await again

    def _queue_of(self, request: SendMessage, topic: Topic) -> Queue:
        if not topic.is_writable:
            raise NotPermitted(f"sending to topic {topic.name!r}", "the topic has no write permission")
        if topic.name in NOT_FOR_SENDERS:
            raise NotPermitted(f"sending to topic {topic.name!r}", "only the broker itself writes to it")
        queue_id = request.queue_id
        if queue_id < 0:
            queue_id = randrange(topic.write_queues)
        elif queue_id >= max(topic.write_queues, topic.read_queues):
            raise Refused(f"topic {topic.name!r} has no queue {queue_id}: it has {topic.write_queues}")
        return Queue(topic.name, queue_id)

    # -- what is stored -----------------------------------------------------------------------------------------------

    def _draft(self, request: SendMessage, command: Command, channel: Channel) -> Draft:
        words = request.properties
        if "DELAY" in words or "TRAN_MSG" in words or "TIMER_" in words or request.sys_flag & PREPARED:
            _refuse_unbuilt(request)
        properties = _ended(words.encode())
        if b"UNIQ_KEY\x01" not in properties:
            properties += f"UNIQ_KEY\x01{self._unique_ids.make()}\x02".encode()
        if b"CLUSTER\x01" not in properties:
            properties += self._cluster
        return Draft(
            body=command.body,
            properties=properties,
            flag=request.flag,
            sys_flag=request.sys_flag,
            born_ms=request.born_ms,
            born_host=channel.packed_host,
            reconsume_times=request.reconsume_times,
        )

    def _append_batch(self, request: SendMessage, command: Command, channel: Channel, queue: Queue) -> Appended:
        if request.topic.startswith(RETRY_PREFIX):
            raise NotPermitted(f"a batch to {request.topic!r}", "messages are retried one by one")
        if request.sys_flag & PREPARED:
            _refuse_unbuilt(request)
        body = command.body
        if len(body) > self._message_bytes_max:
            raise TooLarge("the batch", len(body), self._message_bytes_max)
        if len(body) < batch.SMALLEST_BYTES:
            raise Refused("the batch holds no message")
        try:
            if len(body) // max(int.from_bytes(body[:4], "big"), 1) >= _MANY:
                encoded = column_batch.to_records(
                    body,
                    topic=request.topic,
                    sys_flag=request.sys_flag,
                    born_ms=request.born_ms,
                    born_host=channel.packed_host,
                    extra_properties=self._cluster,
                    store_host_bytes=self._store_host_bytes,
                    reconsume_times=request.reconsume_times,
                )
                return self._store.append_encoded_now(queue, encoded.data, encoded.sizes, verify_crc=False)
            return self._store.append_now(queue, self._drafts(request, body, channel))
        except ProtocolError as cause:
            raise Refused(f"the batch cannot be read: {cause}") from cause

    def _drafts(self, request: SendMessage, body: bytes | memoryview, channel: Channel) -> list[Draft]:
        return [
            Draft(
                body=member.body,
                properties=_ended(member.properties) + self._cluster,
                flag=member.flag,
                sys_flag=request.sys_flag,
                born_ms=request.born_ms,
                born_host=channel.packed_host,
                reconsume_times=request.reconsume_times,
            )
            for member in batch.decode(body)
        ]

    # -- what is answered ---------------------------------------------------------------------------------------------

    def _sent(
        self,
        command: Command,
        appended: Appended,
        properties: bytes | None,
        code: int = Response.SUCCESS,
        remark: str | None = None,
    ) -> bytes | None:
        """`properties`: of a single message, None for a batch."""
        if properties is not None and not code and command.serialization is _JSON and not command.flag & IS_ONE_WAY:
            return self._sent_one(command, appended, properties)
        ids = column_batch.offset_ids(self._id_prefix, appended.physical_offsets)
        unique = value_of(properties, b"UNIQ_KEY") if properties is not None else None
        header = Sent(ids, appended.queue.id, appended.offset, unique, _REGION, True)
        return reply(command, Answer(header, code=code, remark=remark))

    def _sent_one(self, command: Command, appended: Appended, properties: bytes) -> bytes:
        """The same frame for the usual case, filled into a form: an encoder would take as long as the append."""
        at = properties.find(b"UNIQ_KEY\x01") + 9
        unique = properties[at : properties.find(b"\x02", at)]
        if not unique.isalnum():  # only a strange client's id would need escaping
            unique = b""
        header = _FORM % (
            command.opaque,
            self._id_prefix_bytes,
            appended.physical_offsets[0],
            appended.queue.id,
            appended.offset,
            unique,
        )
        size = len(header)
        return b"%b%b" % (_START.pack(size + 4, size), header)

    def _when_durable(
        self,
        command: Command,
        channel: Channel,
        appended: Appended,
        properties: bytes | None,
        durable: asyncio.Future[None],
    ) -> None:
        channel.in_hand += 1

        def done(future: asyncio.Future[None]) -> None:
            channel.in_hand -= 1
            error = future.exception() if not future.cancelled() else FlushTimeout(0)
            if error is None:
                frame = self._sent(command, appended, properties)
            elif isinstance(error, FlushTimeout):  # written all the same: the sender gets the place with it
                frame = self._sent(command, appended, properties, Response.FLUSH_DISK_TIMEOUT, str(error))
            else:
                frame = failure(command, error)
            if frame is not None:
                channel.write(frame)

        durable.add_done_callback(done)


def _ended(properties: bytes) -> bytes:
    """With the separator that stored strings may lack at their end, so that more can follow."""
    return properties + b"\x02" if properties and properties[-1] != 2 else properties


def _refuse_unbuilt(request: SendMessage) -> None:
    """Better a clear no than a message delivered at the wrong time."""
    if request.topic.startswith(RETRY_PREFIX):
        return
    found = value_of(request.properties.encode(), b"DELAY")
    if found not in (None, "0"):
        raise NotPermitted("a delayed message", "this broker does not deliver at a later time yet")
    if "TIMER_" in request.properties and any(
        value_of(request.properties.encode(), name)
        for name in (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS")
    ):
        raise NotPermitted("a timed message", "this broker does not deliver at a later time yet")
    if request.sys_flag & PREPARED or value_of(request.properties.encode(), b"TRAN_MSG") == "true":
        raise NotPermitted("a transactional message", "this broker has no transactions yet")

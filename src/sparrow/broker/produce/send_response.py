"""The response frames of successful sends."""

from __future__ import annotations

from struct import Struct

from sparrow.broker.delay.recall import recall_handle
from sparrow.model.message import Host
from sparrow.model.protocol import DEFAULT_REGION, PROPERTY_TIMER_OUT_MS, PROPERTY_UNIQUE_KEY, TIMER_TOPIC
from sparrow.model.queue import Queue
from sparrow.net.dispatcher import HandlerResponse, encode_response
from sparrow.store.spi import AppendResult
from sparrow.wire.codes import ADVERTISED_VERSION, ResponseCode
from sparrow.wire.columns import batch as columns_batch
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, Serialization
from sparrow.wire.headers import SendMessageResponse
from sparrow.wire.message_ids import offset_id_prefix
from sparrow.wire.properties import parse_whole_number, property_value

_JSON = Serialization.JSON
_START = Struct(">II")
_SUCCESS_HEADER = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":'
    + str(ADVERTISED_VERSION).encode()
    + b',"extFields":{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d","transactionId":"%b",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"}}'
)
"""The header of a successful answer."""


class SendResponseEncoder:
    """Encodes the responses of one broker."""

    def __init__(self, host: Host, broker_name: str) -> None:
        self._broker_name = broker_name
        self._id_prefix = offset_id_prefix(host)
        self._id_prefix_bytes = self._id_prefix.encode()

    def encode(
        self,
        command: RemotingCommand,
        queue: Queue,
        appended: AppendResult,
        properties: bytes | None,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> bytes | None:
        """Return the frame of the answer. `properties` are those of a single message; None for a batch."""
        if properties is not None and not code and command.serialization is _JSON and not command.flag & ONE_WAY_FLAG:
            frame = self._from_template(command, queue, appended, properties)
            if frame is not None:
                return frame
        ids = columns_batch.joined_offset_ids(self._id_prefix, appended.physical_offsets)
        unique = property_value(properties, PROPERTY_UNIQUE_KEY) if properties is not None else None
        handle = None
        due_ms = None
        if properties and appended.queue.topic == TIMER_TOPIC:
            due_ms = parse_whole_number(property_value(properties, PROPERTY_TIMER_OUT_MS))
        if due_ms is not None:
            handle = recall_handle(queue.topic, self._broker_name, due_ms, unique or "")
        header = SendMessageResponse(ids, queue.id, appended.offset, unique, DEFAULT_REGION, True, recall_handle=handle)
        return encode_response(command, HandlerResponse(header, code=code, remark=remark))

    def _from_template(
        self, command: RemotingCommand, queue: Queue, appended: AppendResult, properties: bytes
    ) -> bytes | None:
        """Return the frame of the common case from a template: an encoder would take as long as the append."""
        at = properties.find(b"UNIQ_KEY\x01") + 9
        unique = properties[at : properties.find(b"\x02", at)]
        if not unique.isalnum() or (at > 9 and properties[at - 10] != 2) or appended.queue.topic == TIMER_TOPIC:
            return None  # an id that needs escaping, another property with the same ending, or more fields to send
        header = _SUCCESS_HEADER % (
            command.opaque,
            self._id_prefix_bytes,
            appended.physical_offsets[0],
            queue.id,
            appended.offset,
            unique,
        )
        size = len(header)
        return b"%b%b" % (_START.pack(size + 4, size), header)

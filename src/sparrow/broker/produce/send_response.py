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
from sparrow.wire.frame import ONE_WAY_FLAG, RESPONSE_FLAG, RemotingCommand, Serialization
from sparrow.wire.headers import SendMessageResponse
from sparrow.wire.message_ids import offset_id_prefix
from sparrow.wire.properties import parse_whole_number, property_value

_JSON = Serialization.JSON
_START = Struct(">II")
_BINARY_START = Struct(">IIhBhiiii")
"""Length of the frame, kind and length of the header, code, language, version, opaque, flag, no remark, ext fields."""
_JSON_HEADER = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":'
    + str(ADVERTISED_VERSION).encode()
    + b',"extFields":{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d","transactionId":"%b",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"}}'
)
"""The JSON header of a successful answer."""
_BINARY_FIELDS = (
    b"\0\5msgId\0\0\0%c%b%016X\0\7queueId\0\0\0%c%d\0\x0bqueueOffset\0\0\0%c%d\0\x0dtransactionId\0\0\0%c%b"
    b"\0\x0aMSG_REGION\0\0\0\x0dDefaultRegion\0\x08TRACE_ON\0\0\0\4true"
)
"""The ext fields of a successful answer with a binary header: lengths and texts, as in `wire.binary_fields`."""
_UNIQUE_ID_BYTES_MAX = 255
"""Its length is one byte of the template."""


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
        if properties is not None and not code and not command.flag & ONE_WAY_FLAG:
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
        if command.serialization is _JSON:
            header = _JSON_HEADER % (
                command.opaque,
                self._id_prefix_bytes,
                appended.physical_offsets[0],
                queue.id,
                appended.offset,
                unique,
            )
            size = len(header)
            return b"%b%b" % (_START.pack(size + 4, size), header)
        if len(unique) > _UNIQUE_ID_BYTES_MAX:
            return None
        fields = _BINARY_FIELDS % (
            len(self._id_prefix_bytes) + 16,
            self._id_prefix_bytes,
            appended.physical_offsets[0],
            len(str(queue.id)),
            queue.id,
            len(str(appended.offset)),
            appended.offset,
            len(unique),
            unique,
        )
        size = _BINARY_START.size - 8 + len(fields)
        start = _BINARY_START.pack(
            size + 4, 1 << 24 | size, 0, 0, ADVERTISED_VERSION, command.opaque, RESPONSE_FLAG, 0, len(fields)
        )
        return start + fields

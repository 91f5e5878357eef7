"""Sending, sending back, replying, recalling."""

from __future__ import annotations

from typing import cast

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long


class SendMessage(Header, frozen=True):
    """One message, or a batch, in the long spelling that Go uses (10, 324)."""

    group: str = msgspec.field(name="producerGroup")
    topic: str
    template_topic: str = msgspec.field(name="defaultTopic")
    template_queues: Int = msgspec.field(name="defaultTopicQueueNums")
    queue_id: Int
    sys_flag: Int
    born_ms: Long = msgspec.field(name="bornTimestamp")
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: Flag = False
    reconsume_times_max: Int | None = msgspec.field(default=None, name="maxReconsumeTimes")
    batch: Flag = False
    broker_name: str | None = msgspec.field(default=None, name="bname")


def _redeclared(field: msgspec.structs.FieldInfo) -> tuple[str, object] | tuple[str, object, object]:
    if field.required:
        return field.name, field.type
    return field.name, field.type, field.default


SendMessageV2 = cast(
    type[SendMessage],
    msgspec.defstruct(
        "SendMessageV2",
        [_redeclared(field) for field in msgspec.structs.fields(SendMessage)],
        bases=(SendMessage,),
        rename=dict(zip(SendMessage.__struct_fields__, "abcdefghijklmn", strict=True)),
        frozen=True,
        gc=False,
        module=__name__,
    ),
)
"""The same, with the one-letter names that Java sends (310, 320, 325). It is a `SendMessage` to whoever handles it."""


class Sent(Header, frozen=True):
    """Where the message went. Needed with success and with the three weaker kinds of success (10, 11, 12)."""

    message_id: str = msgspec.field(name="msgId")
    """The offset id; of a batch, all of them, joined by commas."""
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    region: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: Flag | None = msgspec.field(default=None, name="TRACE_ON")
    batch_unique_id: str | None = msgspec.field(default=None, name="batchUniqId")
    recall_handle: str | None = None


class SendBack(Header, frozen=True):
    """A consumer gives a message back: try it later, or bury it."""

    physical_offset: Long = msgspec.field(name="offset")
    group: str
    delay_level: Int
    """0: the broker decides. Below 0: to the dead letters now."""
    origin_message_id: str | None = msgspec.field(default=None, name="originMsgId")
    origin_topic: str | None = None
    unit_mode: Flag = False
    reconsume_times_max: Int | None = msgspec.field(default=None, name="maxReconsumeTimes")
    broker_name: str | None = msgspec.field(default=None, name="bname")


class PushReply(Header, frozen=True):
    """A reply, on its way from the broker to the client that asked."""

    group: str = msgspec.field(name="producerGroup")
    topic: str
    template_topic: str = msgspec.field(name="defaultTopic")
    template_queues: Int = msgspec.field(name="defaultTopicQueueNums")
    queue_id: Int
    sys_flag: Int
    born_ms: Long = msgspec.field(name="bornTimestamp")
    flag: Int
    born_host: str
    store_host: str
    store_ms: Long = msgspec.field(name="storeTimestamp")
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: Flag = False


class Recall(Header, frozen=True):
    """Take back a timer message that is not due yet."""

    topic: str
    handle: str = msgspec.field(name="recallHandle")
    group: str | None = msgspec.field(default=None, name="producerGroup")


class Recalled(Header, frozen=True):
    message_id: str = msgspec.field(name="msgId")


REQUESTS: dict[Code, type[Header]] = {
    Code.SEND_MESSAGE: SendMessage,
    Code.SEND_MESSAGE_V2: SendMessageV2,
    Code.SEND_BATCH_MESSAGE: SendMessageV2,
    Code.SEND_REPLY_MESSAGE: SendMessage,
    Code.SEND_REPLY_MESSAGE_V2: SendMessageV2,
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: PushReply,
    Code.CONSUMER_SEND_MSG_BACK: SendBack,
    Code.RECALL_MESSAGE: Recall,
}
RESPONSES: dict[Code, type[Header]] = {
    Code.SEND_MESSAGE: Sent,
    Code.SEND_MESSAGE_V2: Sent,
    Code.SEND_BATCH_MESSAGE: Sent,
    Code.SEND_REPLY_MESSAGE: Sent,
    Code.SEND_REPLY_MESSAGE_V2: Sent,
    Code.RECALL_MESSAGE: Recalled,
}

"""Headers of send, send back, reply and recall."""

from __future__ import annotations

from typing import cast

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class SendMessage(Header, frozen=True):
    """A send with long field names, which Go uses (10, 324)."""

    group: str = msgspec.field(name="producerGroup")
    topic: str
    template_topic: str = msgspec.field(name="defaultTopic")
    default_topic_queues: JavaInt = msgspec.field(name="defaultTopicQueueNums")
    queue_id: JavaInt
    sys_flag: JavaInt
    born_ms: JavaLong = msgspec.field(name="bornTimestamp")
    flag: JavaInt
    properties: str = ""
    reconsume_times: JavaInt = 0
    unit_mode: JavaBool = False
    reconsume_times_max: JavaInt | None = msgspec.field(default=None, name="maxReconsumeTimes")
    batch: JavaBool = False
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
"""The same with one-letter field names, which Java uses (310, 320, 325). Handlers treat it as a `SendMessage`."""


class SendMessageResponse(Header, frozen=True):
    """The position of the message. Required with SUCCESS and with the codes 10, 11 and 12."""

    message_id: str = msgspec.field(name="msgId")
    """The offset id; for a batch, all of them, separated by commas."""
    queue_id: JavaInt
    queue_offset: JavaLong
    transaction_id: str | None = None
    region: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: JavaBool | None = msgspec.field(default=None, name="TRACE_ON")
    batch_unique_id: str | None = msgspec.field(default=None, name="batchUniqId")
    recall_handle: str | None = None


class SendMessageBack(Header, frozen=True):
    """Returns a message that a consumer could not process: for a retry, or to the dead letters."""

    physical_offset: JavaLong = msgspec.field(name="offset")
    group: str
    delay_level: JavaInt
    """0: the broker decides. Below 0: dead letter."""
    origin_message_id: str | None = msgspec.field(default=None, name="originMsgId")
    origin_topic: str | None = None
    unit_mode: JavaBool = False
    reconsume_times_max: JavaInt | None = msgspec.field(default=None, name="maxReconsumeTimes")
    broker_name: str | None = msgspec.field(default=None, name="bname")
    dlq_reason: str | None = None
    """Sparrow's, which Apache's brokers ignore: why the consumer could not handle the message."""
    dlq_error_type: str | None = None
    dlq_traceback: str | None = None


class PushReply(Header, frozen=True):
    """A reply that the broker pushes to the requesting client."""

    group: str = msgspec.field(name="producerGroup")
    topic: str
    template_topic: str = msgspec.field(name="defaultTopic")
    default_topic_queues: JavaInt = msgspec.field(name="defaultTopicQueueNums")
    queue_id: JavaInt
    sys_flag: JavaInt
    born_ms: JavaLong = msgspec.field(name="bornTimestamp")
    flag: JavaInt
    born_host: str
    store_host: str
    store_ms: JavaLong = msgspec.field(name="storeTimestamp")
    properties: str = ""
    reconsume_times: JavaInt = 0
    unit_mode: JavaBool = False


class RecallMessage(Header, frozen=True):
    """Cancels a timer message that is not due yet."""

    topic: str
    handle: str = msgspec.field(name="recallHandle")
    group: str | None = msgspec.field(default=None, name="producerGroup")


class RecallMessageResponse(Header, frozen=True):
    message_id: str = msgspec.field(name="msgId")
    region: str | None = msgspec.field(default=None, name="MSG_REGION")
    """Java's client traces a recall only if the response, also a refusal, has it."""


class RecallRefusal(Header, frozen=True):
    region: str = msgspec.field(name="MSG_REGION")


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.SEND_REPLY_MESSAGE: SendMessage,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageV2,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: PushReply,
    RequestCode.CONSUMER_SEND_MSG_BACK: SendMessageBack,
    RequestCode.RECALL_MESSAGE: RecallMessage,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessageResponse,
    RequestCode.SEND_MESSAGE_V2: SendMessageResponse,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE: SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageResponse,
    RequestCode.RECALL_MESSAGE: RecallMessageResponse,
}

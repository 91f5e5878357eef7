"""Request and reply messages: the properties that mark them, and the decoding of pushed replies."""

from __future__ import annotations

from ipaddress import ip_address

from sparrow.client.produce.delayed_delivery import with_properties
from sparrow.model.errors import Refused
from sparrow.model.message import LOOPBACK_HOST, AnyMessage, Host, Message, StoredMessage
from sparrow.model.protocol import (
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_REPLY_TTL,
)
from sparrow.wire import properties
from sparrow.wire.compression import COMPRESSED_FLAG, decompress
from sparrow.wire.headers import PushReply


def make_request(message: AnyMessage, *, correlation_id: str, client_id: str, timeout_ms: int) -> Message:
    """Return the message as a request."""
    return with_properties(
        message,
        {
            PROPERTY_CORRELATION_ID: correlation_id,
            PROPERTY_REPLY_TO_CLIENT: client_id,
            PROPERTY_REPLY_TTL: str(timeout_ms),
        },
    )


def make_reply(request: AnyMessage, body: bytes | str, **words: str) -> Message:
    """Return the reply to a request; a text body is encoded as UTF-8."""
    asked = request.properties
    missing = [
        name for name in (PROPERTY_CLUSTER, PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT) if not asked.get(name)
    ]
    if missing:
        raise Refused(f"this message is no request: it has no property {', '.join(missing)}")
    words |= {
        PROPERTY_MESSAGE_TYPE: "reply",
        PROPERTY_CORRELATION_ID: asked[PROPERTY_CORRELATION_ID],
        PROPERTY_REPLY_TO_CLIENT: asked[PROPERTY_REPLY_TO_CLIENT],
    }
    if PROPERTY_REPLY_TTL in asked:
        words[PROPERTY_REPLY_TTL] = asked[PROPERTY_REPLY_TTL]
    return Message(
        topic=f"{asked[PROPERTY_CLUSTER]}_REPLY_TOPIC",
        body=body.encode() if isinstance(body, str) else body,
        properties=words,
    )


def decode_pushed_reply(header: PushReply, body: bytes | memoryview) -> StoredMessage:
    """Return the reply that a broker pushes to the requester."""
    whole, sys_flag = bytes(body), header.sys_flag
    if sys_flag & COMPRESSED_FLAG:
        whole, sys_flag = decompress(whole, sys_flag)
    return StoredMessage(
        topic=header.topic,
        body=whole,
        properties=properties.decode(header.properties.encode()),
        flag=header.flag,
        queue_id=header.queue_id,
        sys_flag=sys_flag,
        born_ms=header.born_ms,
        born_host=_host(header.born_host),
        store_ms=header.store_ms,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times,
    )


def _host(text: str) -> Host:
    """Parse Java's `/10.0.0.1:4711`, with or without a name before the slash. A name alone is not resolved."""
    ip, _, port = text.rpartition("/")[2].rpartition(":")
    try:
        return Host(ip_address(ip.strip("[]")).packed, int(port))
    except ValueError:
        return LOOPBACK_HOST

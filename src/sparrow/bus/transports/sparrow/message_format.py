"""Events as messages of Sparrow or Apache RocketMQ, and back.

1. Topics have no dots: `order.created` is in topic `order|created`. The headers hold the true name.
2. Form "document": the body is the JSON document of the event with its headers.
3. Form "cap": the body is the payload, the headers are user properties. Headers without a value are left out, since
   properties need one. An event whose headers do not fit into properties is sent as a document.
4. A receiver reads both: a property that begins with `cap-` marks the second. Anything else is a foreign message, whose
   user properties are its headers.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from sparrow.bus.codec.document import DOCUMENT_VERSION_DEFAULT, decode_document, encode_document
from sparrow.bus.transports.spi import BrokerDelivery, Envelope, HeaderBuilder, with_foreign_headers
from sparrow.model.errors import IllegalMessage, IllegalName
from sparrow.model.message import Message, StoredMessage
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_UNIQUE_KEY
from sparrow.model.topic import validate_group_name, validate_topic_name
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import PROPERTIES_BYTES_MAX, VALUE_SEPARATOR

log = logging.getLogger(__name__)

MessageForm = Literal["document", "cap"]

_HEADERS_BYTES_MAX = PROPERTIES_BYTES_MAX - 1024
"""Leaves space for properties that client and broker add."""
_MARK = "cap-"
_OWN_PREFIXES = ("__", "TIMER_", "TRAN_", "TRANSACTION_", "POP_CK", "INNER_", "REAL_", "RETRY_", "LMQ_", "RECALL_")
_OWN = frozenset(
    {
        *(
            PROPERTY_KEYS,
            "TAGS",
            PROPERTY_UNIQUE_KEY,
            "EXTEND_UNIQ_INFO",
            "WAIT",
            "DELAY",
            "PRIORITY",
            "PGROUP",
            "BUYER_ID",
        ),
        *("MIN_OFFSET", "MAX_OFFSET", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG"),
        *("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "MSG_REGION", "TRACE_ON", "CLUSTER"),
        *("INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_TYPE"),
        *("1ST_POP_TIME", "FORWARD_QUEUE_ID", "REDIRECT", "DUP_INFO", "CRC32#", "BORN_HOST", "BORN_TIMESTAMP"),
        *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "SCHEDULE_TOPIC", "SYS_FLAG", "STARTDE_LIVER_TIME"),
    }
)
"""Properties with a meaning for clients or brokers: a header of the same name would take effect there."""

_DOTTED = "its characters may be letters, digits, '_', '-', '%' and dots"


# -- names ------------------------------------------------------------------------------------------------------------


def topic_of(name: str) -> str:
    """Return the topic of an event name; raise `IllegalName` if there can be none."""
    if "|" in name:  # it would share the topic of the name with a dot there
        raise IllegalName("event", name, f"{_DOTTED}; '|' stands for a dot on this broker")
    try:
        return validate_topic_name(name.replace(".", "|"))
    except IllegalName as refused:
        raise IllegalName("event", name, _DOTTED if name and len(name) < 128 else refused.rule) from None


def name_of(topic: str) -> str:
    return topic.replace("|", ".")


def group_of(group: str) -> str:
    return validate_group_name(group.replace(".", "|"))


# -- sending ----------------------------------------------------------------------------------------------------------


def to_message(
    envelope: Envelope, form: MessageForm = "document", *, version: str = DOCUMENT_VERSION_DEFAULT
) -> Message:
    properties = {PROPERTY_KEYS: envelope.id}
    key = envelope.key
    if key is not None and key.strip():
        properties[PROPERTY_SHARDING_KEY] = key
    body = envelope.body
    if form == "document" or not _fit(envelope.headers):
        try:
            body = encode_document(envelope, version=version)
        except ValueError as cause:
            raise IllegalMessage(f"the payload of {envelope.name!r} is not UTF-8: {cause}") from cause
    else:
        properties |= {name: value for name, value in envelope.headers.items() if value and value.strip()}
    return Message(topic=topic_of(envelope.name), body=body, properties=properties)


def _fit(headers: dict[str, str | None]) -> bool:
    """Return whether the headers can be sent as properties; headers without a value need no space."""
    chars = 0
    for name, value in headers.items():
        if not value:
            continue
        if is_reserved_property(name) or VALUE_SEPARATOR in value or not name.isprintable() or not name:
            return False
        chars += len(name) + len(value) + 2
    if chars * 4 <= _HEADERS_BYTES_MAX:  # enough for any alphabet
        return True
    return sum(len(f"{name}{value}".encode()) + 2 for name, value in headers.items() if value) <= _HEADERS_BYTES_MAX


def is_reserved_property(name: str) -> bool:
    """Return whether a property belongs to the broker or the client."""
    return name in _OWN or name.startswith(_OWN_PREFIXES)


# -- receiving --------------------------------------------------------------------------------------------------------


def to_delivery(message: StoredMessage, ack_handle: Any = None, build: HeaderBuilder | None = None) -> BrokerDelivery:
    name, properties, body = name_of(message.topic), message.properties, message.body
    if body[:1] == b"{" and not any(name_in_properties.startswith(_MARK) for name_in_properties in properties):
        try:
            headers, content, _ = decode_document(body)
            return BrokerDelivery(name=name, headers=headers, body=content, ack_handle=ack_handle)
        except ValueError:
            pass
    headers = {
        name_in_properties: value
        for name_in_properties, value in properties.items()
        if not is_reserved_property(name_in_properties)
    }
    delivery = BrokerDelivery(name=name, headers=headers, body=body, ack_handle=ack_handle)
    fallback_id = properties.get(PROPERTY_UNIQUE_KEY) or format_offset_id(message.store_host, message.physical_offset)
    try:
        return with_foreign_headers(delivery, fallback_id, build)
    except Exception:  # otherwise one message that it does not support would block the group
        log.exception(
            "the header builder failed for message %(id)s of topic %(topic)s; it gets the headers of its broker",
            {"topic": message.topic, "id": fallback_id},
        )
        return with_foreign_headers(delivery, fallback_id)

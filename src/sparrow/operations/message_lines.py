"""Messages as lines of JSON: what `tail --format json` and exports of the console write, and `send --jsonl` reads.

A line of one is a line of the other, so that messages can be exported, edited and sent again.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from sparrow.model import protocol
from sparrow.model.errors import Refused
from sparrow.model.message import Message
from sparrow.model.protocol import PROPERTY_PRIORITY, PROPERTY_SHARDING_KEY
from sparrow.operations.messages import MessageView

PROTOCOL_PROPERTIES = frozenset(value for name, value in vars(protocol).items() if name.startswith("PROPERTY_"))
"""The properties that have a meaning in the protocol. All others are the sender's own."""


class MessageLine(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message. The first fields are what a sender sets; `send` ignores those that a broker sets."""

    topic: str = ""
    body: Any = None
    """The body: a text as it is, any other value as JSON."""
    body_base64: str | None = None
    """The body, if it is not UTF-8."""
    keys: list[str] = []
    tags: str | None = None
    properties: dict[str, str] = {}
    message_group: str | None = None
    """The sharding key: messages with the same one keep their order."""
    priority: str | None = None
    delay_ms: int | None = None
    """Deliver this long after the send."""
    deliver_at_ms: int | None = None
    """Deliver at this time, in ms since 1970."""
    message_id: str | None = None
    offset_id: str | None = None
    broker: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    born_ms: int | None = None
    store_ms: int | None = None
    retries: int | None = None
    """How often the message was delivered again."""

    @classmethod
    def of(cls, message: MessageView) -> MessageLine:
        """Return the line of a message that was read from a broker."""
        try:
            content: dict[str, Any] = {"body": message.body.decode()}
        except UnicodeDecodeError:
            content = {"body_base64": base64.b64encode(message.body).decode()}
        own = message.properties
        return cls(
            topic=message.topic,
            **content,
            keys=list(message.keys),
            tags=message.tags,
            properties={name: value for name, value in own.items() if name not in PROTOCOL_PROPERTIES},
            message_group=own.get(PROPERTY_SHARDING_KEY),
            priority=own.get(PROPERTY_PRIORITY),
            message_id=message.id,
            offset_id=message.offset_id,
            broker=message.broker,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            born_ms=message.born_ms,
            store_ms=message.store_ms,
            retries=message.reconsume_times or None,
        )

    def body_bytes(self) -> bytes:
        """Return the body to send; raise `Refused` if the line has none, or two."""
        if (self.body is None) == (self.body_base64 is None):
            raise Refused("a line needs either body or body_base64")
        if self.body_base64 is None:
            return self.body.encode() if isinstance(self.body, str) else msgspec.json.encode(self.body)
        try:
            return base64.b64decode(self.body_base64, validate=True)
        except binascii.Error as cause:
            raise Refused(f"body_base64 is not base64: {cause}") from cause

    def with_defaults(self, defaults: MessageLine) -> MessageLine:
        """Return the line with what it leaves out of a sender's fields."""
        has_time = self.delay_ms is not None or self.deliver_at_ms is not None
        return msgspec.structs.replace(
            self,
            keys=self.keys or defaults.keys,
            tags=self.tags if self.tags is not None else defaults.tags,
            properties={**defaults.properties, **self.properties},
            message_group=self.message_group if self.message_group is not None else defaults.message_group,
            priority=self.priority if self.priority is not None else defaults.priority,
            delay_ms=self.delay_ms if has_time else defaults.delay_ms,
            deliver_at_ms=self.deliver_at_ms if has_time else defaults.deliver_at_ms,
        )

    def message(self, topic: str, body: bytes) -> Message:
        """Return a message for a topic with this body and the fields of the line."""
        message = Message(
            topic, body, keys=self.keys, tags=self.tags, properties=self.properties, priority=self.priority
        )
        if self.message_group is not None:
            message.properties[PROPERTY_SHARDING_KEY] = self.message_group
        return message


_decoder = msgspec.json.Decoder(MessageLine)


def parse_message_line(line: bytes) -> MessageLine:
    """Return the message of a line of JSON; raise `Refused` that says what is wrong with it."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise Refused(f'it is not a message as JSON: {cause}. Write {{"body": …}}, as docs/cli.md shows.') from cause

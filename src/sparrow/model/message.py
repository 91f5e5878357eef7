"""Messages: as a sender makes them, as a broker returns them, and as a store appends them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Never, Protocol, TypeVar, overload

import msgspec

from sparrow.model.codec import ANY_JSON, Codec, JsonCodec
from sparrow.model.errors import UnreadableBody
from sparrow.model.message_arguments import (
    encode_body,
    not_a_message,
    text_keys,
    text_pair,
    text_pairs,
    text_tag,
    unknown_argument,
)
from sparrow.model.priority import Priority, parse_priority
from sparrow.model.protocol import (
    PROPERTY_KEYS,
    PROPERTY_PRIORITY,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
)
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset

T = TypeVar("T")


class Host(msgspec.Struct, frozen=True):
    """The address in a record: 4 bytes of IPv4 or 16 bytes of IPv6, and a port."""

    ip: bytes = b"\x7f\0\0\1"
    port: int = 0

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is IPv6."""
        return len(self.ip) == 16


LOOPBACK_HOST = Host()


class _MessageContent:
    """The body of a message as a value, and the properties that have a meaning in the protocol, by name."""

    __slots__ = ()
    topic: str
    body: bytes
    properties: dict[str, str]

    def decode(self, codec: Codec[T]) -> T:
        """Return the value of the body; raise `UnreadableBody` if the codec cannot read it."""
        try:
            return codec.decode(self.body)
        except Exception as cause:
            raise UnreadableBody(self.topic, self.unique_key, self.body, codec, cause) from cause

    def _json_value(self, type: Any = Any) -> Any:
        """Return the value of a JSON body, of this type if one is given; raise `UnreadableBody` if it is none."""
        return self.decode(ANY_JSON if type is Any else JsonCodec(type))

    @property
    def tags(self) -> str | None:
        """The tag that tag filters compare; None without one."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys under which brokers index the message."""
        return self.properties.get(PROPERTY_KEYS, "").split()

    @property
    def unique_key(self) -> str | None:
        """The message id that the sender assigned; None before the message is sent."""
        return self.properties.get(PROPERTY_UNIQUE_KEY)


class _MakeJson(Protocol):
    def __call__(
        self,
        topic: str,
        value: Any,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        priority: Priority | str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> Message: ...


class _ReadJson(Protocol):
    @overload
    def __call__(self) -> Any: ...
    @overload
    def __call__(self, type: type[T]) -> T: ...


class _Json:
    """The member `json` of `Message`: called on the class it makes a message, called on a message it returns the value.

    It is one name because that is what people try, with any HTTP library in mind.
    """

    @overload
    def __get__(self, message: None, owner: type[Message]) -> _MakeJson: ...
    @overload
    def __get__(self, message: Message, owner: type[Message]) -> _ReadJson: ...
    def __get__(self, message: Message | None, owner: type[Message]) -> Any:
        return owner._of_json if message is None else message._json_value


@dataclass(slots=True, init=False)
class Message(_MessageContent):
    """A message to send.

    ```python
    Message("orders", b"a book", tags="paid", keys=["order-7"], properties={"city": "Oslo"})
    Message.json("orders", {"item": "a book"}, tags="paid")
    ```

    `Message.json(topic, value, ...)` makes a message with a JSON body, `message.json()` returns the value of one;
    `message.json(Order)` checks it against a type.
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int

    def __init__(
        self,
        topic: str,
        body: bytes | str | bytearray | memoryview = b"",
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        priority: Priority | str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        **unknown: Never,
    ) -> None:
        """Create a message; a text body is encoded as UTF-8.

        `tags`: what tag filters compare. `keys`: by which the message can be found again. `priority`: high, middle or
        low, in topics with priority lanes. `properties`: any other pairs of text. `flag`: a number for the application.
        """
        # Hot path. Exact types are compared here, and anything else is left to the functions of `message_arguments`.
        # The dict of unknown arguments, which is empty, becomes that of the properties: another one would cost time.
        if unknown:
            raise unknown_argument(*unknown)
        self.topic = topic
        self.body = body if type(body) is bytes else body.encode() if type(body) is str else encode_body(body)
        self.properties = unknown  # type: ignore[assignment]
        self.flag = flag
        if properties:
            own = self.properties
            for name, value in properties.items() if type(properties) is dict else text_pairs(properties):
                if type(value) is not str or type(name) is not str:
                    name, value = text_pair(name, value)
                own[name] = value
        if tags:
            self.properties[PROPERTY_TAGS] = tags if type(tags) is str else text_tag(tags)
        if keys:
            self.properties[PROPERTY_KEYS] = keys if type(keys) is str else text_keys(keys)
        if priority is not None:
            level = priority if isinstance(priority, Priority) else parse_priority(priority)
            self.properties[PROPERTY_PRIORITY] = level.label

    json = _Json()

    @classmethod
    def encode(
        cls,
        topic: str,
        value: T,
        codec: Codec[T],
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        priority: Priority | str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> Message:
        """Create a message whose body is a value, encoded by a codec."""
        return cls(
            topic, codec.encode(value), tags=tags, keys=keys, priority=priority, properties=properties, flag=flag
        )

    @classmethod
    def _of_json(cls, topic: str, value: Any, **others: Any) -> Message:
        try:
            body = ANY_JSON.encode(value)
        except TypeError as cause:
            raise TypeError(
                f"a {type(value).__name__} cannot be written as JSON: {cause}. Use dicts, lists, texts, numbers, "
                "dates, dataclasses or Structs, or encode it yourself."
            ) from cause
        return cls(topic, body, **others)

    @classmethod
    def of(
        cls,
        topic: str,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        priority: Priority | str | None = None,
        **properties: str,
    ) -> Message:
        """Create a message. Deprecated: call `Message(...)`, with `properties={...}`; this leaves in version 0.3."""
        warnings.warn("Message.of(...) is deprecated: use Message(...)", DeprecationWarning, stacklevel=2)
        return cls(topic, body, tags=tags, keys=keys, priority=priority, properties=properties)


class StoredMessage(_MessageContent, msgspec.Struct, kw_only=True):
    """A message read from a broker: what the sender set, and where and when it was stored."""

    topic: str
    body: bytes = b""
    properties: dict[str, str] = {}
    flag: int = 0
    queue_id: int = 0
    queue_offset: QueueOffset = QueueOffset(0)
    physical_offset: PhysicalOffset = PhysicalOffset(0)
    sys_flag: int = 0
    born_ms: int = 0
    born_host: Host = LOOPBACK_HOST
    store_ms: int = 0
    store_host: Host = LOOPBACK_HOST
    reconsume_times: int = 0
    prepared_offset: int = 0
    """Physical offset of the half message of a committed transaction, otherwise 0."""

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: Any = Any) -> Any:
        """Return the value of a JSON body, of this type if one is given; raise `UnreadableBody` if it is none."""
        return self._json_value(type)

    @property
    def queue(self) -> Queue:
        """The queue that holds the message, without its broker."""
        return Queue(self.topic, self.queue_id)


AnyMessage = Message | StoredMessage
"""A message to send, or one that was received and is sent on."""


def body_length(message: AnyMessage) -> int:
    """Return the bytes of a message's body; raise `TypeError` if it is no message."""
    try:
        return len(message.body)
    except AttributeError:
        raise not_a_message(message) from None


class Draft(msgspec.Struct, kw_only=True, gc=False):
    """A message before it is appended: body and property string as they arrived over the wire.

    The store adds offsets, store time and host.
    """

    body: bytes | memoryview
    properties: bytes = b""
    """`name 0x01 value 0x02`, repeated (see `sparrow.wire.properties`)."""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = b"\x7f\0\0\1\0\0\0\0"
    """4 or 16 bytes of address and 4 of port (see `sparrow.wire.record.pack_host`)."""
    reconsume_times: int = 0
    prepared_offset: int = 0
    token: int = 0
    """The number of the sender's token, in stores that keep it; 0 without a token."""

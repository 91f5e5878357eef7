"""Messages: as a sender makes them, as a broker returns them, and as a store appends them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from sparrow.model.priority import Priority, parse_priority
from sparrow.model.protocol import (
    PROPERTY_KEYS,
    PROPERTY_PRIORITY,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
)
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset


class Host(msgspec.Struct, frozen=True):
    """The address in a record: 4 bytes of IPv4 or 16 bytes of IPv6, and a port."""

    ip: bytes = b"\x7f\0\0\1"
    port: int = 0

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is IPv6."""
        return len(self.ip) == 16


LOOPBACK_HOST = Host()


class _WellKnownProperties:
    """Properties of a message that have a meaning in the protocol, read by name."""

    __slots__ = ()
    properties: dict[str, str]

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


@dataclass(slots=True, init=False)
class Message(_WellKnownProperties):
    """A message to send.

    ```python
    Message("orders", b"a book", tags="paid", keys=["order-7"], properties={"city": "Oslo"})
    ```
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int

    def __init__(
        self,
        topic: str,
        body: bytes | str = b"",
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        priority: Priority | str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> None:
        """Create a message; a text body is encoded as UTF-8.

        `tags`: what tag filters compare. `keys`: by which the message can be found again. `priority`: high, middle or
        low, in topics with priority lanes. `properties`: any other pairs of text. `flag`: a number for the application.
        """
        self.topic = topic
        self.body = body.encode() if isinstance(body, str) else body
        self.flag = flag
        own = self.properties = dict(properties) if properties else {}
        if tags:
            own[PROPERTY_TAGS] = tags
        if keys:
            own[PROPERTY_KEYS] = keys if isinstance(keys, str) else " ".join(keys)
        if priority is not None:
            own[PROPERTY_PRIORITY] = (priority if isinstance(priority, Priority) else parse_priority(priority)).label

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


class StoredMessage(_WellKnownProperties, msgspec.Struct, kw_only=True):
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

    @property
    def queue(self) -> Queue:
        """The queue that holds the message, without its broker."""
        return Queue(self.topic, self.queue_id)


AnyMessage = Message | StoredMessage
"""A message to send, or one that was received and is sent on."""


class Draft(msgspec.Struct, kw_only=True):
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

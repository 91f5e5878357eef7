"""A message, as its sender made it and as a store keeps it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sparrow.model.priority import Priority, parse_priority
from sparrow.model.protocol import (
    PROPERTY_KEYS,
    PROPERTY_PRIORITY,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
)
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset

# Names of the properties with a meaning of their own; `docs/compatibility.md` lists the rest.


class Host(msgspec.Struct, frozen=True):
    """An address inside a record: the bytes of an IPv4 (4) or IPv6 (16) address, and a port."""

    ip: bytes = b"\x7f\0\0\1"
    port: int = 0

    @property
    def is_ipv6(self) -> bool:
        return len(self.ip) == 16


LOOPBACK_HOST = Host()


class Message(msgspec.Struct, kw_only=True):
    """What a sender says. Keys, tags and the unique id are properties with well-known names."""

    topic: str
    body: bytes = b""
    properties: dict[str, str] = {}
    flag: int = 0

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
        """A message with a tag, keys to find it by, and properties of its own. Text becomes UTF-8.

        `priority` is high, middle or low; it means something in topics with lanes, where middle is the default.
        """
        if tags:
            properties[PROPERTY_TAGS] = tags
        if keys:
            properties[PROPERTY_KEYS] = keys if isinstance(keys, str) else " ".join(keys)
        if priority is not None:
            properties[PROPERTY_PRIORITY] = (
                priority if isinstance(priority, Priority) else parse_priority(priority)
            ).word
        return Message(topic=topic, body=body.encode() if isinstance(body, str) else body, properties=properties)

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(PROPERTY_KEYS, "").split()

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(PROPERTY_UNIQUE_KEY)


class StoredMessage(Message, kw_only=True):
    """A message read back: what the sender said, and where and when it was stored."""

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
    """Physical offset of the half message a committed transaction came from, else 0."""

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id)


class Draft(msgspec.Struct, kw_only=True):
    """A message on its way into a store: body and property string as they came over the wire.

    The store adds what only it can know: offsets, store time and host.
    """

    body: bytes | memoryview
    properties: bytes = b""
    """`name 0x01 value 0x02`, repeated: see `wire/properties`."""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = b"\x7f\0\0\1\0\0\0\0"
    """4 or 16 bytes of address and 4 of port: see `wire.record.pack_host`."""
    reconsume_times: int = 0
    prepared_offset: int = 0
    token: int = 0
    """The number of its sender's token, where a store keeps that; 0: sent without one."""

"""The encoding of messages for a send: unique id, property string, compression and batches. Messages stay unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from sparrow.client.aio.produce.sender import SendPayload
from sparrow.model.errors import Refused, TooLarge
from sparrow.model.message import AnyMessage
from sparrow.model.message_arguments import encode_body
from sparrow.model.protocol import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_PRODUCER_ID,
    PROPERTY_SEQUENCE,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORED,
    RETRY_TOPIC_PREFIX,
)
from sparrow.wire import batch, properties
from sparrow.wire.compression import compress
from sparrow.wire.message_ids import UniqueIdGenerator
from sparrow.wire.properties import PROPERTIES_BYTES_MAX

_LATER = (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TRANSACTION_PREPARED,
)
"""Properties that keep a message from its consumers for a while; brokers refuse them in batches."""
UNBATCHABLE_PROPERTIES = frozenset((*_LATER, PROPERTY_WAIT_STORED))
"""Properties of messages that are not batched automatically."""

_IN_THREAD_BYTES = 64 * 1024
"""Longer bodies are compressed in a thread: they would block the event loop for a millisecond and more."""
_FLAG_MIN, _FLAG_MAX = -0x8000_0000, 0x7FFF_FFFF


class MessageEncoder:
    """Encodes the messages of one producer."""

    def __init__(
        self,
        unique_ids: UniqueIdGenerator,
        *,
        compress_above_bytes: int | None,
        message_bytes_max: int,
        producer_id: str | None = None,
    ) -> None:
        """Create an encoder. With a `producer_id`, messages are numbered, and brokers store each once."""
        self._unique_ids = unique_ids
        self.id_bytes = len(_unique_key_property("")) + unique_ids.id_chars
        """What a unique id adds to the property string."""
        self._producer_id, self._sequence = producer_id, count(1)
        self.message_bytes_max = message_bytes_max
        # One limit for the two exceptions of the fast path: compression, and refusal.
        self.plain_bytes_max = min(message_bytes_max, compress_above_bytes or message_bytes_max)
        self._compress_above_bytes = compress_above_bytes

    def encode(self, message: AnyMessage) -> tuple[bytes, bytes, str]:
        """Return body, property string and unique id; raise for what no broker would accept."""
        body, encoded, given_id = self.encode_without_id(message)
        return body, *self.with_id(encoded, given_id)

    def with_id(self, encoded: bytes, given_id: str | None) -> tuple[bytes, str]:
        """Return the property string with a unique id, and the id: a new one unless the caller gave one."""
        if given_id is not None:
            return encoded, given_id
        message_id = self._unique_ids.make()
        return encoded + _unique_key_property(message_id), message_id

    def encode_without_id(self, message: AnyMessage) -> tuple[bytes, bytes, str | None]:
        """Return body, property string and the unique id if the caller gave one; otherwise the string has none yet."""
        body, found = message.body, message.properties
        if body.__class__ is not bytes:
            body = encode_body(body)  # it was assigned after the message was made
        if message.flag and not _FLAG_MIN <= message.flag <= _FLAG_MAX:
            raise Refused(f"the flag {message.flag} does not fit into the 4 bytes a record has for it")
        if not found and self._producer_id is None:
            return body, b"", None
        if self._producer_id is not None:
            found = self._numbered(found)
        encoded = properties.encode(found)
        given = found.get(PROPERTY_UNIQUE_KEY)
        if given:
            return body, encoded, given
        if len(encoded) + self.id_bytes > PROPERTIES_BYTES_MAX:
            raise TooLarge("the property string", len(encoded) + self.id_bytes, PROPERTIES_BYTES_MAX)
        return body, encoded, None

    def _numbered(self, found: dict[str, str]) -> dict[str, str]:
        assert self._producer_id is not None
        return {**found, PROPERTY_PRODUCER_ID: self._producer_id, PROPERTY_SEQUENCE: str(next(self._sequence))}

    async def single_payload(self, message: AnyMessage, body: bytes, encoded: bytes) -> SendPayload:
        """Return the payload of a message that is sent alone, compressed if it is long."""
        if len(body) > self.message_bytes_max:
            raise TooLarge("the body", len(body), self.message_bytes_max)
        sys_flag = 0
        if self._compress_above_bytes is not None and len(body) > self._compress_above_bytes:
            smaller, bits = await self._compressed(body)
            if len(smaller) < len(body):
                body, sys_flag = smaller, bits
        return SendPayload(body, encoded.decode(), message.flag, sys_flag)

    async def _compressed(self, body: bytes) -> tuple[bytes, int]:
        if len(body) > _IN_THREAD_BYTES:
            try:
                return await asyncio.to_thread(compress, body)
            except RuntimeError:  # the program ends, and no more threads can be started
                pass
        return compress(body)

    def batch_payload(self, messages: Sequence[AnyMessage]) -> tuple[SendPayload, list[str]]:
        """Return the payload of a batch, and the ids of its messages."""
        waits = _checked_batch(messages)
        members: list[tuple[int, bytes, bytes]] = []
        given_ids: list[str | None] = []
        for message in messages:
            body, encoded, given_id = self.encode_without_id(message)
            members.append((message.flag, body, encoded))
            given_ids.append(given_id)
        packed, ids = self.complete_batch(members, given_ids)
        if len(packed) > self.message_bytes_max:
            raise TooLarge(f"the batch of {len(messages)} messages", len(packed), self.message_bytes_max)
        return SendPayload(packed, "" if waits else f"{PROPERTY_WAIT_STORED}\x01false\x02", is_batch=True), ids

    def complete_batch(
        self, members: Sequence[tuple[int, bytes, bytes]], given_ids: Sequence[str | None]
    ) -> tuple[bytes, list[str]]:
        """Return the body of a batch of encoded messages, and their ids; those without an id get one, all at once."""
        ids = self._unique_ids.make_many(len(members))
        completed = []
        for position, ((flag, body, encoded), given_id) in enumerate(zip(members, given_ids, strict=True)):
            if given_id is None:
                encoded += _unique_key_property(ids[position])
            else:
                ids[position] = given_id
            completed.append((flag, body, encoded))
        return batch.encode(completed), ids


def _unique_key_property(message_id: str) -> bytes:
    return f"{PROPERTY_UNIQUE_KEY}\x01{message_id}\x02".encode()


def must_be_sent_alone(message: AnyMessage) -> bool:
    """Return whether brokers refuse the message in a batch, or its properties would affect its neighbours."""
    return message.topic.startswith(RETRY_TOPIC_PREFIX) or not UNBATCHABLE_PROPERTIES.isdisjoint(message.properties)


def _checked_batch(messages: Sequence[AnyMessage]) -> bool:
    """Return whether the batch waits to be durable; raise if the messages cannot be batched."""
    if not messages:
        raise Refused("the batch is empty: pass one message or more")
    topic, wait = messages[0].topic, messages[0].properties.get(PROPERTY_WAIT_STORED)
    if topic.startswith(RETRY_TOPIC_PREFIX):
        raise Refused(f"the retry topic {topic!r} takes no batches: send its messages one by one")
    for message in messages:
        if message.topic != topic:
            raise Refused(
                f"a batch has one topic, not both {topic!r} and {message.topic!r}: send a batch for each of them"
            )
        if message.properties.get(PROPERTY_WAIT_STORED) != wait:
            raise Refused(
                f"the messages of a batch wait to be safe all alike: give all of them the same {PROPERTY_WAIT_STORED}"
            )
        for name in _LATER:
            if message.properties.get(name, "0") not in ("", "0", "false"):
                raise Refused(f"a message with {name} cannot be in a batch: send it alone")
    return wait != "false"

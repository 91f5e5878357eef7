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
        self._make_id = unique_ids.make
        self._producer_id, self._sequence = producer_id, count(1)
        self.message_bytes_max = message_bytes_max
        # One limit for the two exceptions of the fast path: compression, and refusal.
        self.plain_bytes_max = min(message_bytes_max, compress_above_bytes or message_bytes_max)
        self._compress_above_bytes = compress_above_bytes

    def encode(self, message: AnyMessage) -> tuple[bytes, bytes, str]:
        """Return body, property string and unique id; raise for what no broker would accept."""
        body, found = message.body, message.properties
        if body.__class__ is not bytes:
            body = encode_body(body)  # it was assigned after the message was made
        if message.flag and not _FLAG_MIN <= message.flag <= _FLAG_MAX:
            raise Refused(f"the flag {message.flag} does not fit into the 4 bytes a record has for it")
        if not found and self._producer_id is None:
            message_id = self._make_id()
            return body, f"{PROPERTY_UNIQUE_KEY}\x01{message_id}\x02".encode(), message_id
        if self._producer_id is not None:
            found = self._numbered(found)
        encoded = properties.encode(found)
        given = found.get(PROPERTY_UNIQUE_KEY)
        if given:
            return body, encoded, given
        message_id = self._make_id()
        encoded += f"{PROPERTY_UNIQUE_KEY}\x01{message_id}\x02".encode()
        if len(encoded) > PROPERTIES_BYTES_MAX:
            raise TooLarge("the property string", len(encoded), PROPERTIES_BYTES_MAX)
        return body, encoded, message_id

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
        members, ids = [], []
        for message in messages:
            body, encoded, message_id = self.encode(message)
            members.append((message.flag, body, encoded))
            ids.append(message_id)
        packed = batch.encode(members)
        if len(packed) > self.message_bytes_max:
            raise TooLarge(f"the batch of {len(messages)} messages", len(packed), self.message_bytes_max)
        return SendPayload(packed, "" if waits else f"{PROPERTY_WAIT_STORED}\x01false\x02", is_batch=True), ids


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

"""Batches of messages as one pull returned them, decoded by column when a column is first used.

1. The layout of the records is checked when the batch is made; bodies, keys and so on are decoded on first use.
2. Records that columns cannot hold as they are (compressed or unreadable ones, retried ones) are decoded to messages
   at once, and the columns are made of those.
3. A consumer delivers, commits and retries a batch as if it were one message at its first offset.

Checksums of bodies are not compared, as when a topic is read as a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, overload

from sparrow.client.consume.subscription import Subscription
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from sparrow.model.queue import QueueRef
from sparrow.wire import properties, record

if TYPE_CHECKING:
    import pyarrow as pa

    from sparrow.wire.columns.layout import RecordParts


class PulledBatch(Sequence[StoredMessage]):
    """Messages of one queue, in order: a sequence of messages, and lists of their parts.

    The lists are decoded together, without an object for each message, and have one item for each.
    """

    def __init__(self, queue: QueueRef, messages: Sequence[StoredMessage]) -> None:
        """Make a batch of messages, of which there is at least one."""
        self.queue = queue
        self.topic = messages[0].topic
        """The topic of the messages; of retried ones, the topic that they were sent to."""
        self.queue_offset: int = messages[0].queue_offset
        """The offset of the first message."""
        self.reconsume_times = max(message.reconsume_times for message in messages)
        """How often the messages were delivered before: the highest number of one of them."""
        self.store_ms = messages[0].store_ms
        """When the broker stored the first message."""
        self._parts: RecordParts | None = None
        self._data = b""
        self._property_strings: pa.Array = None
        self._messages: list[StoredMessage] | None = list(messages)

    @classmethod
    def _of_parts(cls, queue: QueueRef, parts: RecordParts, property_strings: pa.Array) -> PulledBatch:
        batch = cls.__new__(cls)
        batch.queue, batch.topic = queue, queue.topic
        batch.queue_offset = int(parts.header["queue_offset"][0])
        batch.reconsume_times = int(parts.field("reconsume_times").max())
        batch.store_ms = int(parts.field("store_ms")[0])
        batch._parts, batch._property_strings, batch._messages = parts, property_strings, None
        batch._data = parts.view.obj if isinstance(parts.view.obj, bytes) else bytes(parts.view)
        return batch

    # -- columns ------------------------------------------------------------------------------------------------------

    @cached_property
    def bodies(self) -> list[bytes]:
        """The body of each message."""
        if self._parts is None:
            return [message.body for message in self.messages]
        return self._slices(self._parts.body_at.tolist(), self._parts.topic_length_at.tolist())

    @cached_property
    def keys(self) -> list[str | None]:
        """The keys of each message, several of them separated by spaces; None without any."""
        return self._property(PROPERTY_KEYS)

    @cached_property
    def tags(self) -> list[str | None]:
        """The tag of each message; None without one."""
        return self._property(PROPERTY_TAGS)

    @cached_property
    def message_ids(self) -> list[str | None]:
        """The unique id of each message; None without one."""
        return self._property(PROPERTY_UNIQUE_KEY)

    @cached_property
    def properties(self) -> list[dict[str, str]]:
        """All properties of each message, including its keys and its tag."""
        if self._parts is None:
            return [message.properties for message in self.messages]
        strings = self._slices(self._parts.properties_at.tolist(), self._parts.end.tolist())
        return list(map(properties.decode, strings))

    @cached_property
    def queue_offsets(self) -> list[int]:
        """The offset of each message. A filter leaves gaps."""
        return self._numbers("queue_offset")

    @cached_property
    def store_times_ms(self) -> list[int]:
        """When the broker stored each message, in ms since 1970."""
        return self._numbers("store_ms")

    @property
    def messages(self) -> list[StoredMessage]:
        """Each message as an object."""
        if self._messages is None:
            assert self._parts is not None
            starts, ends = self._parts.starts.tolist(), self._parts.end.tolist()
            records = b"".join(self._slices(starts, ends))
            self._messages = record.decode_all(records, verify_crc=False)
        return self._messages

    def __len__(self) -> int:
        return len(self.messages) if self._parts is None else len(self._parts.starts)

    @overload
    def __getitem__(self, index: int) -> StoredMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredMessage]: ...
    def __getitem__(self, index: int | slice) -> StoredMessage | list[StoredMessage]:
        return self.messages[index]

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self.messages)

    def __repr__(self) -> str:
        return f"PulledBatch({self.queue!r}, {len(self)} messages from offset {self.queue_offset} on)"

    # -- for the client -----------------------------------------------------------------------------------------------

    @property
    def body_bytes(self) -> int:
        """The length of all bodies together."""
        if self._parts is None:
            return sum(map(len, self.bodies))
        return int((self._parts.topic_length_at - self._parts.body_at).sum())

    def keep(self, messages: Sequence[StoredMessage]) -> None:
        """Drop all messages but these: the others are consumed. The batch stays at its offset."""
        self._parts, self._messages = None, list(messages)
        for name in ("bodies", "keys", "tags", "message_ids", "properties", "queue_offsets", "store_times_ms"):
            self.__dict__.pop(name, None)

    def _slices(self, starts: list[int], ends: list[int]) -> list[bytes]:
        return list(map(self._data.__getitem__, map(slice, starts, ends)))

    def _numbers(self, name: str) -> list[int]:
        if self._parts is None:
            return [getattr(message, name) for message in self.messages]
        found: list[int] = self._parts.field(name).tolist()
        return found

    def _property(self, name: str) -> list[str | None]:
        if self._parts is None:
            return [message.properties.get(name) for message in self.messages]
        return _property_texts(self._property_strings, name)


def make_batches(
    queue: QueueRef, records: bytes | memoryview, sizes: memoryview | None, subscription: Subscription
) -> list[PulledBatch]:
    """Return the records of a pull as one batch, or none if the subscription leaves all of them out.

    Raises `ProtocolError` for records that columns cannot hold as they are: decode them, and use `group_by_topic`.
    """
    import numpy as np

    from sparrow.model.errors import ProtocolError
    from sparrow.wire.columns.layout import as_strings, copy_slices, locate_valid_parts
    from sparrow.wire.compression import COMPRESSED_FLAG

    data = records if isinstance(records, bytes) else bytes(records)
    parts = locate_valid_parts(data, None, None if sizes is None else np.frombuffer(sizes, ">i4"))
    if subscription.tags and len(parts.starts):
        # Brokers compare only the hashes of tags.
        strings = as_strings(copy_slices(parts.view, parts.properties_at, parts.end), "properties")
        is_wanted = np.fromiter(map(subscription.matches, _property_texts(strings, PROPERTY_TAGS)), np.bool_)
        if not is_wanted.all():
            parts = locate_valid_parts(data, parts.starts[is_wanted])
    if not len(parts.starts):
        return []
    if (parts.sys_flag & COMPRESSED_FLAG).any():
        raise ProtocolError("compressed bodies are decoded one by one")
    strings = as_strings(copy_slices(parts.view, parts.properties_at, parts.end), "properties")
    return [PulledBatch._of_parts(queue, parts, strings)]


def group_by_topic(queue: QueueRef, messages: Sequence[StoredMessage]) -> list[PulledBatch]:
    """Return a batch for each topic: the messages of a retry topic may be of several."""
    by_topic: dict[str, list[StoredMessage]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message)
    return [PulledBatch(queue, some) for some in by_topic.values()]


def as_batch(given: StoredMessage | PulledBatch) -> PulledBatch:
    """Return a batch, or the batch of a single message that an operator sent."""
    if isinstance(given, PulledBatch):
        return given
    return PulledBatch(QueueRef(given.topic, "", given.queue_id), [given])


def _property_texts(strings: pa.Array, name: str) -> list[str | None]:
    """Return one property of each string; None where it is absent."""
    import pyarrow as pa

    from sparrow.wire.columns.layout import data_and_offsets, reinterpret
    from sparrow.wire.columns.properties import ParsedProperties, find_property

    binary = reinterpret(strings, pa.binary())
    found = find_property(binary, name)
    if found is None:
        found = ParsedProperties(binary).get(name)
    if found.null_count == len(found):
        return [None] * len(found)
    data, offsets = data_and_offsets(found)
    text = data.tobytes()
    if found.null_count or not text.isascii():
        texts: list[str | None] = reinterpret(found, pa.string()).to_pylist()
        return texts
    bounds = offsets.tolist()
    return list(map(text.decode("ascii").__getitem__, map(slice, bounds, bounds[1:])))

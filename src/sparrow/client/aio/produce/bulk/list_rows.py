"""Lists of bodies, keys, tags and properties as batches. Only C loops run over the messages.

1. Types, lengths and sizes of all messages are checked before the first is sent. An error names the message by its
   position.
2. A message with a sharding key goes to the queue of its key, as in `Producer.send`; others use the queues in turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparrow.client.aio.produce.bulk.bulk_sender import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, RowBatch
from sparrow.client.aio.produce.message_encoder import UNBATCHABLE_PROPERTIES
from sparrow.model.errors import Refused, SparrowError, TooLarge
from sparrow.model.message_arguments import encode_body, text_pair
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.model.queue import QueueRef
from sparrow.wire.columns.batch import encode_batches
from sparrow.wire.columns.hashes import java_hashes
from sparrow.wire.columns.layout import binary_array
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE

_ENCODED_BYTES = 4 * 1024 * 1024
"""How many bytes of bodies are encoded at a time: they are held in memory, and the event loop waits for them."""
_TEXT = frozenset({str})
_TEXT_OR_NONE = frozenset({str, type(None)})
_UNENCODABLE = (SparrowError, pa.ArrowException, UnicodeError, TypeError, ValueError)


class MessageLists:
    """The messages of one bulk send: lists of one length."""

    def __init__(
        self,
        bodies: Iterable[bytes | str],
        *,
        keys: Iterable[str | None] | None = None,
        tags: Iterable[str | None] | str | None = None,
        properties: Iterable[Mapping[str, str] | None] | Mapping[str, str] | None = None,
        sharding_keys: Iterable[str | None] | None = None,
        body_bytes_max: int,
    ) -> None:
        """Check the messages. A single tag, or a single mapping of properties, is that of every message."""
        self._bodies = _as_bytes(_as_list("bodies", bodies))
        count = len(self._bodies)
        self._body_bytes = np.fromiter(map(len, self._bodies), np.int64, count)
        if self._body_bytes.max(initial=0) > body_bytes_max:
            index = int(np.argmax(self._body_bytes > body_bytes_max))
            raise TooLarge(f"bodies[{index}]", int(self._body_bytes[index]), body_bytes_max)
        self._keys = _as_texts("keys", keys, count)
        self._tags = tags if isinstance(tags, str) else _as_texts("tags", tags, count)
        self._sharding_keys = _as_texts("sharding_keys", sharding_keys, count)
        self._same_properties = properties if isinstance(properties, Mapping) else None
        self._properties: Sequence[Any] | None = None
        if properties is not None and self._same_properties is None:
            self._properties = _of_length("properties", properties, count)
        _check_properties(self._properties or [self._same_properties])

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def has_sharding_keys(self) -> bool:
        """Whether the queues of messages depend on sharding keys."""
        return self._sharding_keys is not None

    def encode(self, queues: Sequence[QueueRef] | None) -> Iterator[RowBatch]:
        """Encode all messages, in order, into the bodies of requests.

        Of several queues, a message goes to that of its sharding key; None: any queue will do.
        """
        ends = np.cumsum(self._body_bytes)
        at = 0
        while at < len(ends):
            limit = _ENCODED_BYTES + (int(ends[at - 1]) if at else 0)
            stop = max(int(np.searchsorted(ends, limit, "right")), at + 1)
            try:
                yield from self._encode(at, stop, queues)
            except _UNENCODABLE:
                raise self._refusal(at, stop) from None
            at = stop

    def _encode(self, at: int, stop: int, queues: Sequence[QueueRef] | None) -> list[RowBatch]:
        columns = self._columns(at, stop)
        if queues is None or len(queues) == 1:
            return _batches(columns, range(at, stop), queues[0] if queues else None)
        which = _queue_numbers(columns["sharding_keys"], at, len(queues))
        batches: list[RowBatch] = []
        for number in np.unique(which).tolist():
            rows = np.flatnonzero(which == number)
            some = {name: column.take(pa.array(rows)) for name, column in columns.items()}
            batches += _batches(some, array("q", (rows + at).tobytes()), queues[number])
        return batches

    def _refusal(self, at: int, stop: int) -> Refused:
        """Return the error of the first message that cannot be encoded."""
        while stop - at > 1:
            middle = (at + stop) // 2
            try:
                self._encode(at, middle, None)
                at = middle
            except _UNENCODABLE:
                stop = middle
        try:
            self._encode(at, stop, None)
        except _UNENCODABLE as cause:
            return Refused(f"message {at} of {len(self)} cannot be sent: {cause}")
        raise AssertionError("messages can be encoded one by one, and not together")

    def _columns(self, at: int, stop: int) -> dict[str, pa.Array]:
        columns = {"bodies": _bytes_column(self._bodies[at:stop], self._body_bytes[at:stop])}
        for name, texts in (("keys", self._keys), ("tags", self._tags), ("sharding_keys", self._sharding_keys)):
            if isinstance(texts, str):
                columns[name] = pa.repeat(texts, stop - at)
            elif texts is not None:
                columns[name] = pa.array(texts[at:stop], pa.string())
        if self._same_properties is not None:
            columns["properties"] = _map_column([self._same_properties]).take(pa.array(np.zeros(stop - at, np.int32)))
        elif self._properties is not None:
            columns["properties"] = _map_column(self._properties[at:stop])
        return columns


def _batches(columns: dict[str, pa.Array], indexes: Sequence[int], queue: QueueRef | None) -> list[RowBatch]:
    batches, first = [], 0
    for batch in encode_batches(**columns, bytes_max=BATCH_BYTES_MAX, messages_max=BATCH_MESSAGES_MAX):
        batches.append(RowBatch(batch.data, indexes[first : first + batch.count], queue))
        first += batch.count
    return batches


def _queue_numbers(sharding_keys: pa.Array, first: int, queues: int) -> NDArray[np.int64]:
    """Return the queue of each message, as Java's `SelectMessageQueueByHash` does; without a key, the next one."""
    by_key = np.abs(java_hashes(sharding_keys).astype(np.int64)) % queues
    if not sharding_keys.null_count:
        return by_key
    in_turn = np.arange(first, first + len(sharding_keys)) % queues
    return np.where(sharding_keys.is_null().to_numpy(zero_copy_only=False), in_turn, by_key)


# -- lists to columns -------------------------------------------------------------------------------------------------


def _bytes_column(bodies: Sequence[bytes], lengths: NDArray[np.int64]) -> pa.Array:
    """Return bodies as a column. To join them is several times faster than a conversion of each by Arrow."""
    offsets = np.zeros(len(bodies) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return binary_array(pa.py_buffer(b"".join(bodies)), offsets)


def _map_column(properties: Sequence[Mapping[str, str] | None]) -> pa.Array:
    """Return properties as a column: the names and the values of all messages, and where those of each begin."""
    maps = [each or {} for each in properties]
    offsets = np.zeros(len(maps) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, maps), np.int32, len(maps)), out=offsets[1:])
    names = pa.array(list(chain.from_iterable(maps)), pa.string())
    values = pa.array(list(chain.from_iterable(each.values() for each in maps)), pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), names, values).cast(PROPERTY_MAP_TYPE)


# -- checks -----------------------------------------------------------------------------------------------------------


def _as_list(name: str, given: Any) -> Sequence[Any]:
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"{name} is {type(given).__name__}: pass a list with one item for each message")
    return given if isinstance(given, list | tuple) else list(given)


def _of_length(name: str, given: Any, count: int) -> Sequence[Any]:
    items = _as_list(name, given)
    if len(items) != count:
        raise Refused(f"{name} has {len(items)} items, and there are {count} bodies: pass one for each")
    return items


def _as_bytes(bodies: Sequence[Any]) -> Sequence[bytes]:
    if {bytes}.issuperset(map(type, bodies)):
        return bodies
    encoded: list[bytes] = []
    for body in bodies:
        try:
            encoded.append(body if type(body) is bytes else encode_body(body))
        except (TypeError, UnicodeError) as cause:
            raise TypeError(f"bodies[{len(encoded)}]: {cause}") from None
    return encoded


def _as_texts(name: str, given: Any, count: int) -> Sequence[str | None] | None:
    if given is None:
        return None
    texts = _of_length(name, given, count)
    if not _TEXT_OR_NONE.issuperset(map(type, texts)):
        for index, text in enumerate(texts):
            if not isinstance(text, str | None):
                raise TypeError(f"{name}[{index}] is {type(text).__name__} {text!r:.60}: pass a text, or None")
    return texts


def _check_properties(properties: Sequence[Any]) -> None:
    """Raise for values that are no texts, and for names that mean more than a batch can carry out."""
    for index, each in enumerate(properties):
        if each is not None and not isinstance(each, Mapping):
            raise TypeError(f"properties[{index}] is {type(each).__name__} {each!r:.60}: pass a dict, or None")
    maps = [each for each in properties if each]
    names = set(chain.from_iterable(maps))
    values = chain.from_iterable(each.values() for each in maps)
    are_texts = _TEXT.issuperset(map(type, names)) and _TEXT.issuperset(map(type, values))
    special = names & {*UNBATCHABLE_PROPERTIES, PROPERTY_SHARDING_KEY}
    if are_texts and not special:
        return
    for index, each in enumerate(properties):
        for name, value in (each or {}).items():
            try:
                text_pair(name, value)
            except TypeError as cause:
                raise TypeError(f"properties[{index}]: {cause}") from None
            if name == PROPERTY_SHARDING_KEY:
                raise Refused(f"properties[{index}] has {name}: pass sharding_keys=[...] instead")
            if name in special:
                raise Refused(f"properties[{index}] has {name}, which a batch cannot have: send that message alone")

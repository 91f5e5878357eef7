"""Rows as messages: which column is which part, and whether it can be.

1. Every part has a name and often a second one, that of Spark's Kafka sink. Names are compared as Spark does: upper
   and lower case are the same.
2. What is wrong with the columns is said before the first task runs; what is wrong with a row names the row.
3. A null is a part that is absent. Only the body must be there; where rows say their topic, that must, too.

All of it pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.model.errors import Refused
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.spark.sink.options import DeliveryGuarantee, SinkOptions
from sparrow.wire.columns.layout import reinterpret
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE

TEXT = ("string",)
BYTES = ("binary", "string")
NUMBER = ("int", "bigint", "smallint", "tinyint")
TIME = ("timestamp", "timestamp_ntz", "bigint")
STRING_MAP_TYPE, KAFKA_HEADERS_TYPE = "map<string,string>", "array<struct<key:string,value:binary>>"


class MessageColumn(NamedTuple):
    name: str
    alias: str | None
    types: tuple[str, ...]
    """As Spark writes them."""
    doc: str


MESSAGE_COLUMNS: tuple[MessageColumn, ...] = (
    MessageColumn("body", "value", BYTES, "What is sent; required, and never null."),
    MessageColumn("topic", None, TEXT, "Where it goes; the option `topic` beats it."),
    MessageColumn("queue_id", "partition", NUMBER, "Which of the topic's queues, counted over all its brokers."),
    MessageColumn("keys", "key", BYTES, "What it is found by. Rows with the same keys go to one queue."),
    MessageColumn("tags", None, TEXT, "What consumers filter by."),
    MessageColumn("properties", "headers", (STRING_MAP_TYPE, KAFKA_HEADERS_TYPE), "More of them."),
    MessageColumn("msg_id", None, TEXT, "Its unique id; else it is given one."),
    MessageColumn("sharding_key", None, TEXT, "Rows with the same one go to one queue, whatever their keys are."),
    MessageColumn("born_timestamp", None, TIME, "When it was made (a number is ms since 1970); else now."),
    MessageColumn("deliver_timestamp", None, TIME, "When consumers get it; with `atLeastOnce` only."),
    MessageColumn(
        "properties_raw",
        None,
        TEXT,
        "All properties, as the source gives them; others then only choose the queue.",
    ),
    MessageColumn("flag", None, NUMBER, "The application's own number; else 0."),
    MessageColumn("sys_flag", None, NUMBER, "With a body that is compressed already, says how; else 0."),
    MessageColumn("reconsume_times", None, NUMBER, "How often it was tried; else 0."),
)

RAW_COLUMNS = ("properties_raw", "flag", "sys_flag", "reconsume_times")
"""What a record has and a send cannot say: a copy of a message has them, and is not sent but appended."""


class MessageRows(msgspec.Struct, frozen=True):
    """Rows of a batch as parts of messages, in Arrow arrays of one length. None: there is no such column."""

    body: pa.Array
    topic: pa.Array | None = None
    queue_id: pa.Array | None = None
    keys: pa.Array | None = None
    tags: pa.Array | None = None
    properties: pa.Array | None = None
    msg_id: pa.Array | None = None
    sharding_key: pa.Array | None = None
    born_ms: pa.Array | None = None
    deliver_ms: pa.Array | None = None
    properties_raw: pa.Array | None = None
    flag: pa.Array | None = None
    sys_flag: pa.Array | None = None
    reconsume_times: pa.Array | None = None
    first: int = 0
    """How many rows of the partition came before."""
    taken: NDArray[Any] | None = None
    """Which of those from `first` on these are; None: all of them."""

    def __len__(self) -> int:
        return len(self.body)

    def take(self, which: NDArray[Any]) -> MessageRows:
        """These rows, in this order."""
        indices = pa.array(which)
        taken = which if self.taken is None else self.taken[which]
        return self._each(lambda column: pc.take(column, indices, boundscheck=False), self.first, taken)

    def slice(self, at: int, count: int) -> MessageRows:
        first, taken = (self.first + at, None) if self.taken is None else (self.first, self.taken[at : at + count])
        return self._each(lambda column: column.slice(at, count), first, taken)

    def number_of(self, at: int) -> int:
        """Which row of its partition one is."""
        return self.first + int(at if self.taken is None else self.taken[at])

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _ARRAYS if getattr(self, name) is not None)

    def _each(self, change: Callable[[pa.Array], pa.Array], first: int, taken: NDArray[Any] | None) -> MessageRows:
        columns = {name: getattr(self, name) for name in _ARRAYS}
        changed = {name: column if column is None else change(column) for name, column in columns.items()}
        return MessageRows(**changed, first=first, taken=taken)

    def all_properties(self) -> pa.Array | None:
        """The map of each row, with its sharding key."""
        if self.sharding_key is None:
            return self.properties
        return add_map_entry(self.properties, PROPERTY_SHARDING_KEY, self.sharding_key)

    def entries(self, *names: str) -> list[tuple[int, str, str]]:
        """Rows that have one of these properties, and what it says. Meant for properties that are rare."""
        if self.properties is None:
            return []
        # `keys` of a slice is that of the whole array, and offsets count in it.
        hits = np.flatnonzero(pc.is_in(self.properties.keys, value_set=pa.array(names)).to_numpy(zero_copy_only=False))
        offsets = np.asarray(self.properties.offsets)
        hits = hits[(hits >= offsets[0]) & (hits < offsets[-1])]
        rows = np.searchsorted(offsets[1:], hits, "right").tolist()
        said = (column.take(pa.array(hits)).to_pylist() for column in (self.properties.keys, self.properties.items))
        return [(row, name, value or "") for row, name, value in zip(rows, *said, strict=True)]


_ARRAYS = tuple(name for name in MessageRows.__struct_fields__ if name not in ("first", "taken"))


class ColumnLayout(msgspec.Struct, frozen=True):
    """Where the parts are in the batches that Spark hands over."""

    places: dict[str, int]
    topic: str | None
    """Of all rows, if they have one in common."""

    def rows(self, batch: pa.RecordBatch, *, first: int = 0) -> MessageRows:
        """The parts of a batch; `first` is how many rows came before it."""

        def column(name: str) -> Any:
            return batch.column(self.places[name]) if name in self.places else None

        topic = column("topic")
        if topic is not None:
            topic = _text("topic", topic)
            _check_all_there(topic, "topic", first, "and there is no option 'topic' for such rows")
        return MessageRows(
            _body(column("body"), first),
            topic,
            None if (queue_id := column("queue_id")) is None else queue_id.cast(pa.int64()),
            _text("keys", column("keys"), first),
            _text("tags", column("tags"), first),
            _map(column("properties"), first),
            _text("msg_id", column("msg_id"), first),
            _text("sharding_key", column("sharding_key"), first),
            _ms(column("born_timestamp")),
            _ms(column("deliver_timestamp")),
            _text("properties_raw", column("properties_raw"), first),
            column("flag"),
            column("sys_flag"),
            column("reconsume_times"),
            first,
        )


def resolve_columns(fields: Sequence[tuple[str, str]], options: SinkOptions) -> ColumnLayout:
    """Where the parts are among columns with these names and types, as Spark writes those."""
    by_name = {name: part for part in MESSAGE_COLUMNS for name in (part.name, part.alias) if name is not None}
    places: dict[str, int] = {}
    names: dict[str, str] = {}
    extra = []
    for place, (name, kind) in enumerate(fields):
        part = by_name.get(name.lower())
        if part is None:
            extra.append(name)
            continue
        if part.name in places:
            raise Refused(f"the columns {names[part.name]!r} and {name!r} are both the {part.name} of a message")
        # A string of another collation is a string.
        if kind.partition(" collate")[0] not in part.types:
            raise Refused(f"the column {name!r} is {kind}; as {part.name} of a message it must be {_or(part.types)}")
        places[part.name], names[part.name] = place, name
    if extra and not options.ignores_extra_columns:
        known = ", ".join(part.name for part in MESSAGE_COLUMNS)
        raise Refused(
            f"the column {extra[0]!r} is no part of a message ({known}): leave it out, put it into properties, "
            f"or set the option ignoreExtraColumns to true"
        )
    if "body" not in places:
        given = ", ".join(repr(name) for name, _ in fields) or "none"
        raise Refused(f"there is no column 'body' (or 'value'), which a message is made of; the columns are {given}")
    if options.topic is not None:
        places.pop("topic", None)
    elif "topic" not in places:
        raise Refused("where should the rows go? Give the option 'topic', or a column 'topic'")
    _check_delivery(names, options)
    return ColumnLayout(places, options.topic)


def _check_delivery(names: dict[str, str], options: SinkOptions) -> None:
    is_sent = options.delivery is DeliveryGuarantee.AT_LEAST_ONCE
    raw = [names[part] for part in RAW_COLUMNS if part in names]
    if raw and is_sent:
        raise Refused(
            f"the column {raw[0]!r} cannot be sent with delivery=atLeastOnce: leave it out, or set delivery=exactlyOnce"
        )
    if "sys_flag" in names and options.compression is not None:
        raise Refused(
            f"the column {names['sys_flag']!r} says how bodies are compressed: leave out the option 'compress'"
        )
    if "deliver_timestamp" in names and not is_sent:
        raise Refused(
            f"the column {names['deliver_timestamp']!r} keeps rows for later, which delivery={options.delivery.value} "
            f"cannot: leave it out, or set delivery=atLeastOnce"
        )
    if "born_timestamp" in names and is_sent:
        raise Refused(
            f"the column {names['born_timestamp']!r} cannot be sent with delivery=atLeastOnce, where messages are born "
            f"when they are sent: leave it out, or set delivery=exactlyOnce"
        )


def add_map_entry(maps: pa.Array | None, name: str, values: pa.Array) -> pa.Array:
    """The maps with one entry more in each row."""
    rows = len(values)
    if maps is None:
        return pa.MapArray.from_arrays(np.arange(rows + 1, dtype=np.int32), pa.repeat(name, rows), values)
    if maps.null_count:  # entries may lie under a null; take leaves them out
        maps = maps.take(pa.array(np.arange(rows)))
    offsets = np.asarray(maps.offsets).astype(np.int64)
    own = int(offsets[-1] - offsets[0])
    keys, items = (each.slice(offsets[0], own) for each in (maps.keys, maps.items))
    offsets = offsets - offsets[0]
    # Places of what is there stay in order; the new entry is the last of its row.
    order = np.insert(np.arange(own), offsets[1:], np.arange(own, own + rows))
    indices = pa.array(order)
    return pa.MapArray.from_arrays(
        (offsets + np.arange(rows + 1)).astype(np.int32),
        pa.concat_arrays([keys, pa.repeat(name, rows)]).take(indices),
        pa.concat_arrays([items, values]).take(indices),
    )


# -- one column -------------------------------------------------------------------------------------------------------


def _body(column: pa.Array, first: int) -> pa.Array:
    _check_all_there(column, "body", first, "which is no message: leave such rows out, or give them an empty body")
    if pa.types.is_string(column.type):
        return reinterpret(column, pa.binary())
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _text(what: str, column: pa.Array | None, first: int = 0) -> pa.Array | None:
    if column is None or pa.types.is_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as cause:
        raise Refused(f"the {what} of a row after row {first} are not UTF-8: {cause}") from cause


def _map(column: pa.Array | None, first: int) -> pa.Array | None:
    """A map; Kafka's headers become one, of which the last with a name counts."""
    if column is None or pa.types.is_map(column.type):
        return column if column is None else column.cast(PROPERTY_MAP_TYPE)
    column = column.take(pa.array(np.arange(len(column))))  # without offset, and with nothing under nulls
    entries = column.values
    names, values = entries.field(0), entries.field(1)
    if names.null_count:
        names = names.fill_null("")
    offsets = np.asarray(column.offsets).astype(np.int32)
    return pa.MapArray.from_arrays(offsets, names, _text("headers", values, first))


def _ms(column: pa.Array | None) -> pa.Array | None:
    """Milliseconds since 1970."""
    if column is None or pa.types.is_integer(column.type):
        return column if column is None else column.cast(pa.int64())
    return column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())


def _check_all_there(column: pa.Array, what: str, first: int, so: str) -> None:
    if column.null_count:
        row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise Refused(f"row {row} of its partition has a null {what}, {so}")


def _or(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]

"""Columns of the sink: which column of a row becomes which part of a message, and checks of names and types.

1. Every column has a name, and some have the name of Spark's Kafka sink as an alias. Case is ignored, as in Spark.
2. Wrong columns are refused before the first task runs; errors about values name the row.
3. Null means absent. `body` must not be null, and neither must `topic` if it is a column.

All functions are pure.
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

TEXT_TYPES = ("string",)
BYTES_TYPES = ("binary", "string")
NUMBER_TYPES = ("int", "bigint", "smallint", "tinyint")
TIME_TYPES = ("timestamp", "timestamp_ntz", "bigint")
STRING_MAP_TYPE, KAFKA_HEADERS_TYPE = "map<string,string>", "array<struct<key:string,value:binary>>"


class MessageColumn(NamedTuple):
    """A column that the sink understands."""

    name: str
    alias: str | None
    types: tuple[str, ...]
    """Type names as Spark writes them."""
    doc: str


MESSAGE_COLUMNS: tuple[MessageColumn, ...] = (
    MessageColumn("body", "value", BYTES_TYPES, "The body; required and never null."),
    MessageColumn("topic", None, TEXT_TYPES, "The topic; the option `topic` takes precedence."),
    MessageColumn(
        "queue_id", "partition", NUMBER_TYPES, "Index among the write queues of the topic, over all its brokers."
    ),
    MessageColumn("keys", "key", BYTES_TYPES, "Keys to find the message by. Rows with the same keys go to one queue."),
    MessageColumn("tags", None, TEXT_TYPES, "The tag that consumers filter by."),
    MessageColumn("properties", "headers", (STRING_MAP_TYPE, KAFKA_HEADERS_TYPE), "User properties."),
    MessageColumn("msg_id", None, TEXT_TYPES, "The unique id; generated if absent."),
    MessageColumn(
        "sharding_key", None, TEXT_TYPES, "Rows with the same sharding key go to one queue, whatever their keys are."
    ),
    MessageColumn("born_timestamp", None, TIME_TYPES, "Time of creation (a number is ms since 1970); now if absent."),
    MessageColumn("deliver_timestamp", None, TIME_TYPES, "When consumers receive it; with `atLeastOnce` only."),
    MessageColumn(
        "properties_raw",
        None,
        TEXT_TYPES,
        "All properties as one string, as the source reads them; the other columns then only select the queue.",
    ),
    MessageColumn("flag", None, NUMBER_TYPES, "The application's flag; 0 if absent."),
    MessageColumn(
        "sys_flag", None, NUMBER_TYPES, "System flag, which says how a compressed body is compressed; 0 if absent."
    ),
    MessageColumn("reconsume_times", None, NUMBER_TYPES, "Number of retries; 0 if absent."),
)

RAW_COLUMNS = ("properties_raw", "flag", "sys_flag", "reconsume_times")
"""Parts of a record that a send request cannot carry. Only a copy that is appended as a record has them."""


class MessageRows(msgspec.Struct, frozen=True):
    """Rows of a batch as Arrow arrays of equal length. None: the column does not exist."""

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
    """Number of rows of the partition before these."""
    taken: NDArray[Any] | None = None
    """Indexes of these rows, counted from `first`; None: consecutive rows."""

    def __len__(self) -> int:
        return len(self.body)

    def take(self, which: NDArray[Any]) -> MessageRows:
        """Return these rows, in this order."""
        indices = pa.array(which)
        taken = which if self.taken is None else self.taken[which]
        return self._each(lambda column: pc.take(column, indices, boundscheck=False), self.first, taken)

    def slice(self, at: int, count: int) -> MessageRows:
        first, taken = (self.first + at, None) if self.taken is None else (self.first, self.taken[at : at + count])
        return self._each(lambda column: column.slice(at, count), first, taken)

    def row_number(self, at: int) -> int:
        """Return the index of a row in its partition."""
        return self.first + int(at if self.taken is None else self.taken[at])

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _ARRAYS if getattr(self, name) is not None)

    def _each(self, change: Callable[[pa.Array], pa.Array], first: int, taken: NDArray[Any] | None) -> MessageRows:
        columns = {name: getattr(self, name) for name in _ARRAYS}
        changed = {name: column if column is None else change(column) for name, column in columns.items()}
        return MessageRows(**changed, first=first, taken=taken)

    def all_properties(self) -> pa.Array | None:
        """Return the properties of each row, including its sharding key."""
        if self.sharding_key is None:
            return self.properties
        return add_map_entry(self.properties, PROPERTY_SHARDING_KEY, self.sharding_key)

    def entries(self, *names: str) -> list[tuple[int, str, str]]:
        """Return (row, name, value) for each of these properties that is set. Meant for rare properties."""
        if self.properties is None:
            return []
        # The `keys` of a slice are those of the whole array, and its offsets refer to them.
        hits = np.flatnonzero(pc.is_in(self.properties.keys, value_set=pa.array(names)).to_numpy(zero_copy_only=False))
        offsets = np.asarray(self.properties.offsets)
        hits = hits[(hits >= offsets[0]) & (hits < offsets[-1])]
        rows = np.searchsorted(offsets[1:], hits, "right").tolist()
        found = (column.take(pa.array(hits)).to_pylist() for column in (self.properties.keys, self.properties.items))
        return [(row, name, value or "") for row, name, value in zip(rows, *found, strict=True)]


_ARRAYS = tuple(name for name in MessageRows.__struct_fields__ if name not in ("first", "taken"))


class ColumnLayout(msgspec.Struct, frozen=True):
    """The index of each message column in the batches from Spark."""

    places: dict[str, int]
    topic: str | None
    """The topic of all rows, if the option `topic` is set."""

    def rows(self, batch: pa.RecordBatch, *, first: int = 0) -> MessageRows:
        """Return the message columns of a batch; `first` is the number of rows before it."""

        def column(name: str) -> Any:
            return batch.column(self.places[name]) if name in self.places else None

        topic = column("topic")
        if topic is not None:
            topic = _text("topic", topic)
            _check_all_there(topic, "topic", first, "and the option 'topic' is not set: set it, or fill the column")
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
    """Find the message columns among columns with these names and types."""
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
            raise Refused(
                f"the columns {names[part.name]!r} and {name!r} both mean the {part.name} of a message: remove one of "
                "them"
            )
        # A string with another collation is a string.
        if kind.partition(" collate")[0] not in part.types:
            raise Refused(
                f"the column {name!r} has the type {kind}; as {part.name} of a message it must be {_or(part.types)}: "
                "cast it"
            )
        places[part.name], names[part.name] = place, name
    if extra and not options.ignores_extra_columns:
        known = ", ".join(part.name for part in MESSAGE_COLUMNS)
        raise Refused(
            f"the column {extra[0]!r} is not a message column ({known}): remove it, put it into properties, or set "
            "the option ignoreExtraColumns=true"
        )
    if "body" not in places:
        given = ", ".join(repr(name) for name, _ in fields) or "none"
        raise Refused(
            f"the column 'body' (or 'value') is missing; the columns are {given}. Name the column with the message "
            "body 'body'"
        )
    if options.topic is not None:
        places.pop("topic", None)
    elif "topic" not in places:
        raise Refused("the target topic is missing: set the option 'topic', or add a column 'topic'")
    _check_delivery(names, options)
    return ColumnLayout(places, options.topic)


def _check_delivery(names: dict[str, str], options: SinkOptions) -> None:
    is_sent = options.delivery is DeliveryGuarantee.AT_LEAST_ONCE
    raw = [names[part] for part in RAW_COLUMNS if part in names]
    if raw and is_sent:
        raise Refused(
            f"the column {raw[0]!r} cannot be sent with delivery=atLeastOnce: remove it, or set delivery=exactlyOnce"
        )
    if "sys_flag" in names and options.compression is not None:
        raise Refused(
            f"the column {names['sys_flag']!r} says how bodies are compressed already: remove the option 'compress'"
        )
    if "deliver_timestamp" in names and not is_sent:
        raise Refused(
            f"the column {names['deliver_timestamp']!r} delays delivery, which delivery={options.delivery.value} "
            "does not support: remove it, or set delivery=atLeastOnce"
        )
    if "born_timestamp" in names and is_sent:
        raise Refused(
            f"the column {names['born_timestamp']!r} cannot be sent with delivery=atLeastOnce, where the time of "
            "birth is the time of sending: remove it, or set delivery=exactlyOnce"
        )


def add_map_entry(maps: pa.Array | None, name: str, values: pa.Array) -> pa.Array:
    """Add one entry to the map of each row."""
    rows = len(values)
    if maps is None:
        return pa.MapArray.from_arrays(np.arange(rows + 1, dtype=np.int32), pa.repeat(name, rows), values)
    if maps.null_count:  # entries may lie under a null; take removes them
        maps = maps.take(pa.array(np.arange(rows)))
    offsets = np.asarray(maps.offsets).astype(np.int64)
    own = int(offsets[-1] - offsets[0])
    keys, items = (each.slice(offsets[0], own) for each in (maps.keys, maps.items))
    offsets = offsets - offsets[0]
    # Existing entries keep their order; the new entry is the last of its row.
    order = np.insert(np.arange(own), offsets[1:], np.arange(own, own + rows))
    indices = pa.array(order)
    return pa.MapArray.from_arrays(
        (offsets + np.arange(rows + 1)).astype(np.int32),
        pa.concat_arrays([keys, pa.repeat(name, rows)]).take(indices),
        pa.concat_arrays([items, values]).take(indices),
    )


# -- conversion of one column -----------------------------------------------------------------------------------------


def _body(column: pa.Array, first: int) -> pa.Array:
    _check_all_there(
        column, "body", first, "but every message has a body: filter such rows out, or give them an empty body"
    )
    if pa.types.is_string(column.type):
        return reinterpret(column, pa.binary())
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _text(what: str, column: pa.Array | None, first: int = 0) -> pa.Array | None:
    if column is None or pa.types.is_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as cause:
        raise Refused(f"the {what} of a row after row {first} are not valid UTF-8: {cause}") from cause


def _map(column: pa.Array | None, first: int) -> pa.Array | None:
    """Return a map column. In Kafka's headers, the last entry with a name wins."""
    if column is None or pa.types.is_map(column.type):
        return column if column is None else column.cast(PROPERTY_MAP_TYPE)
    column = column.take(pa.array(np.arange(len(column))))  # removes the offset of a slice and values under nulls
    entries = column.values
    names, values = entries.field(0), entries.field(1)
    if names.null_count:
        names = names.fill_null("")
    offsets = np.asarray(column.offsets).astype(np.int32)
    return pa.MapArray.from_arrays(offsets, names, _text("headers", values, first))


def _ms(column: pa.Array | None) -> pa.Array | None:
    """Return milliseconds since 1970."""
    if column is None or pa.types.is_integer(column.type):
        return column if column is None else column.cast(pa.int64())
    return column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())


def _check_all_there(column: pa.Array, what: str, first: int, so: str) -> None:
    if column.null_count:
        row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise Refused(f"row {row} of its partition has a null {what}, {so}")


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]

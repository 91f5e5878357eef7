"""Columns of a topic, and the projection of decoded records to the schema that Spark requests.

Spark does not prune the columns of a Python source, but a user-defined schema does. Any subset of the columns in any
order is a schema, and columns outside of it are not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparrow.model.errors import Refused
from sparrow.wire import columns as codec

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from sparrow.wire.bodies import QueueRef

DEFAULT_COLUMNS = (
    "body",
    "keys",
    "tags",
    "msg_id",
    "topic",
    "queue_id",
    "queue_offset",
    "store_timestamp",
    "born_timestamp",
    "reconsume_times",
    "properties",
    "decode_error",
)
COLUMN_TYPES = {
    "body": "binary",
    "keys": "string",
    "tags": "string",
    "msg_id": "string",
    "properties": "map<string,string>",
    "properties_raw": "string",
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "physical_offset": "bigint",
    "born_timestamp": "timestamp",
    "store_timestamp": "timestamp",
    "born_host": "string",
    "reconsume_times": "int",
    "flag": "int",
    "sys_flag": "int",
    "decode_error": "string",
}
"""All columns with their Spark types. `body` can also be read as a string."""
KAFKA_COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
_KAFKA_SOURCES = {
    "key": "keys",
    "value": "body",
    "partition": "queue_id",
    "offset": "queue_offset",
    "timestamp": "store_timestamp",
    "headers": "properties",
}
_STRING_ALLOWED = frozenset({"body", "value"})
_LOG_APPEND_TIME = 1
"""Kafka's timestampType for a timestamp that the broker assigned."""


def default_ddl(*, kafka: bool, headers: bool) -> str:
    """Return the schema that is used if the user gives none."""
    types = {name: kind for name, kind in KAFKA_COLUMN_TYPES.items() if headers or name != "headers"}
    if not kafka:
        types = {name: COLUMN_TYPES[name] for name in DEFAULT_COLUMNS}
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())


class Projection(NamedTuple):
    """Which columns to decode, and how to convert them to the schema. It is pickled for the tasks."""

    needs: tuple[str, ...]
    """Columns to decode."""
    names: tuple[str, ...]
    """Columns of the schema."""
    as_text: tuple[str, ...]
    """Binary columns that the schema declares as string."""
    kafka: bool
    schema: pa.Schema

    def to_batch(self, decoded: pa.RecordBatch, queue: QueueRef) -> pa.RecordBatch:
        """Convert decoded records of one queue to the schema."""
        arrays = [self._column(name, decoded, queue) for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, decoded: pa.RecordBatch, queue: QueueRef) -> pa.Array:
        compute = (_KAFKA_COMPUTED if self.kafka else _COMPUTED).get(name)
        if compute is not None:
            return compute(decoded, queue)
        array = decoded.column(_KAFKA_SOURCES.get(name, name) if self.kafka else name)
        if name in self.as_text:
            return _as_text(array, decoded, queue)
        return array


_Compute = Callable[[pa.RecordBatch, "QueueRef"], pa.Array]
_COMPUTED: dict[str, _Compute] = {
    "topic": lambda batch, queue: pa.repeat(queue.topic, batch.num_rows),
    "broker": lambda batch, queue: pa.repeat(queue.broker_name, batch.num_rows),
}
_KAFKA_COMPUTED: dict[str, _Compute] = {
    "topic": _COMPUTED["topic"],
    "key": lambda batch, _: batch.column("keys").cast(pa.binary()),
    "timestampType": lambda batch, _: pa.repeat(pa.scalar(_LOG_APPEND_TIME, pa.int32()), batch.num_rows),
    "headers": lambda batch, _: _headers(batch.column("properties")),
}


def _headers(properties: pa.Array) -> pa.Array:
    """Convert a map column to Kafka's list of headers, without copying the values."""
    kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    pairs = pa.StructArray.from_arrays(
        [properties.keys, properties.items.cast(pa.binary())],
        fields=[kind.value_type.field(0), kind.value_type.field(1)],
    )
    return pa.ListArray.from_arrays(properties.offsets, pairs, type=kind)


def _as_text(array: pa.Array, decoded: pa.RecordBatch, queue: QueueRef) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        offsets = decoded.column("queue_offset").to_numpy()
        row = next(row for row, value in enumerate(array.to_pylist()) if value is not None and not _is_text(value))
        raise Refused(
            f"the body of {queue.topic}/{queue.broker_name}/{queue.queue_id} at offset {offsets[row]} is not valid "
            "UTF-8. Read the column body as binary, and convert it in SQL, for example with decode(body, 'latin1')"
        ) from None


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def make_projection(schema: StructType, *, kafka: bool, extra: Sequence[str] = ()) -> Projection:
    """Return the projection to this schema; refuse unknown columns and wrong types."""
    from pyspark.sql.pandas.types import to_arrow_schema

    types = KAFKA_COLUMN_TYPES if kafka else COLUMN_TYPES
    if not schema.fields:
        raise Refused(f"the schema has no columns. Columns of a topic: {', '.join(types)}")
    as_text = []
    for field in schema.fields:
        kind = field.dataType.simpleString()
        wanted = types.get(field.name)
        if wanted is None:
            raise Refused(f"unknown column {field.name!r}. Columns of a topic: {', '.join(types)}")
        if kind == "string" and field.name in _STRING_ALLOWED:
            as_text.append(field.name)
        elif kind != wanted:
            raise Refused(f"the column {field.name!r} has the type {wanted}, not {kind}: change the schema")
    names = tuple(field.name for field in schema.fields)
    sources = [_KAFKA_SOURCES.get(name, name) if kafka else name for name in names]
    needs = [name for name in (*sources, *extra) if name in codec.COLUMN_DECODERS and name != "topic"]
    if as_text or not needs:
        needs.append("queue_offset")  # needed for the error message, and the cheapest column to count rows
    return Projection(
        tuple(dict.fromkeys(needs)), names, tuple(as_text), kafka, to_arrow_schema(schema, timezone="UTC")
    )


def read_queue_offsets(buf: Any, starts: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the queue offsets stored in the records."""
    from sparrow.wire.record import QUEUE_OFFSET_POSITION

    offsets: np.ndarray[Any, np.dtype[np.int64]] = codec.unaligned_view(buf, ">i8", QUEUE_OFFSET_POSITION)[
        starts
    ].astype("i8")
    return offsets


def filter_by_tags(batch: pa.RecordBatch, tags: Sequence[str]) -> pa.RecordBatch:
    """Keep rows with one of these tags. The broker compares only hashes of tags."""
    return batch.filter(pc.is_in(batch.column("tags"), value_set=pa.array(tags, pa.string())))

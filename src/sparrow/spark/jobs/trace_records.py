"""Trace records as rows: decode all trace messages of a batch at once, like `client.trace.decode` does one body.

    explode_records(spark.read.format("sparrow")...load()).where("record = 'SubAfter'").groupBy("group", "code").count()

A trace message holds many records. Each becomes a row; columns that a type of record lacks are null. Records that
cannot be parsed are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparrow.client.trace_records import ConsumeReturnType, TracedMessageType

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

PUB, SUB_BEFORE, SUB_AFTER, END_TRANSACTION = "Pub", "SubBefore", "SubAfter", "EndTransaction"
TIME_TYPE = pa.timestamp("us", "UTC")
RECORD_SCHEMA = pa.schema(
    [
        ("record", pa.string()),
        ("time", TIME_TYPE),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("msg_id", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("body_bytes", pa.int64()),
        ("cost_ms", pa.int64()),
        ("kind", pa.int64()),
        ("retries", pa.int64()),
        ("is_success", pa.bool_()),
        ("code", pa.int64()),
        ("state", pa.string()),
    ]
)
RECORD_DDL = (
    "record string, time timestamp, `group` string, topic string, msg_id string, tags string, keys string, "
    "body_bytes bigint, cost_ms bigint, kind bigint, retries bigint, is_success boolean, code bigint, state string"
)
TRACE_MESSAGE_SCHEMA = "body binary, store_timestamp timestamp"
"""The schema of the trace topic that `explode_records` needs."""
_FIELD_END, _RECORD_END = "\x01", "\x02"
_NUMBER = r"^-?[0-9]{1,18}$"
_TIME = r"^[0-9]{1,15}$"
"""Milliseconds whose microseconds fit into 64 bits."""


def explode_records(messages: DataFrame) -> DataFrame:
    """Return one row per record, with the store time of its message as `stored`."""
    return messages.select("body", "store_timestamp").mapInArrow(_mapped, f"{RECORD_DDL}, stored timestamp")


def _mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        decoded, parents = decode_bodies(batch.column(0))
        stored = batch.column(1).cast(TIME_TYPE).take(pa.array(parents))
        yield pa.RecordBatch.from_arrays(
            [*decoded.columns, stored], schema=RECORD_SCHEMA.append(pa.field("stored", TIME_TYPE))
        )


def decode_bodies(bodies: pa.Array) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return all records of these bodies in order, and the index of the body of each."""
    lists = pc.split_pattern(bodies.cast(pa.binary()), _RECORD_END)
    lines, parents = lists.flatten(), pc.list_parent_indices(lists)
    is_there = pc.greater(pc.binary_length(lines), 0)
    lines, parents = _text(lines.filter(is_there)), np.asarray(parents.filter(is_there), np.int64)
    fields = _Fields.of(lines)
    parts, indexes = [], []
    for name, layout in _LAYOUTS.items():
        rows = np.flatnonzero(pc.equal(fields.name, name).to_numpy(zero_copy_only=False))
        rows = rows[fields.counts[rows] >= layout.fields_min]
        part, is_valid = layout.read(name, fields.only(rows))
        parts.append(part.filter(pa.array(is_valid)))
        indexes.append(rows[is_valid])
    order = np.argsort(np.concatenate(indexes), kind="stable")
    table = pa.Table.from_batches(parts).take(pa.array(order)).combine_chunks()
    found = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], RECORD_SCHEMA)
    return found, parents[np.concatenate(indexes)[order]]


def _text(lines: pa.Array) -> pa.Array:
    try:
        return lines.cast(pa.string())
    except pa.ArrowInvalid:
        # Damaged bytes, which no client writes. Only such batches are decoded line by line.
        return pa.array([line.decode(errors="replace") for line in lines.to_pylist()], pa.string())


class _Fields(NamedTuple):
    """The fields of all lines in one flat array."""

    flat: pa.Array
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    """Number of fields of each line, without the record type."""

    @classmethod
    def of(cls, lines: pa.Array) -> _Fields:
        lists = pc.split_pattern(lines, _FIELD_END)
        offsets = np.asarray(lists.offsets, np.int64)
        return cls(lists.values, offsets[:-1], np.diff(offsets) - 1)

    def only(self, rows: NDArray[np.int64]) -> _Fields:
        return _Fields(self.flat, self.firsts[rows], self.counts[rows])

    @property
    def name(self) -> pa.Array:
        return self.flat.take(pa.array(self.firsts))

    def at(self, index: int | NDArray[np.int64]) -> pa.Array:
        """Return this field of each line; null where the line is shorter."""
        found = self.flat.take(pa.array(self.firsts + 1 + index, mask=self.counts <= index))
        return pc.if_else(pc.equal(found, "null"), "", found)  # Java writes null as text


class _Column(NamedTuple):
    array: pa.Array
    is_valid: NDArray[np.bool_] | None = None
    """Mask of the rows whose value is valid; None: all."""


_Read = Callable[[_Fields], _Column]


class _Layout(NamedTuple):
    fields_min: int
    columns: Mapping[str, _Read]

    def read(self, name: str, fields: _Fields) -> tuple[pa.RecordBatch, NDArray[np.bool_]]:
        """Return the columns of lines of this type, and a mask of the valid lines."""
        rows = len(fields.firsts)
        is_valid = np.ones(rows, np.bool_)
        arrays = []
        for field in RECORD_SCHEMA:
            if field.name == "record":
                arrays.append(pa.repeat(name, rows))
            elif (read := self.columns.get(field.name)) is None:
                arrays.append(pa.nulls(rows, field.type))
            else:
                column = read(fields)
                arrays.append(column.array.cast(field.type))
                if column.is_valid is not None:
                    is_valid &= column.is_valid
        return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA), is_valid


def _text_field(index: int) -> _Read:
    return lambda fields: _Column(fields.at(index))


def _number_field(index: int, *, below: int | None = None, default: int | None = None) -> _Read:
    """Return a reader of a number, optionally limited to `0 <= number < below`."""

    def read(fields: _Fields) -> _Column:
        column = _digits(fields.at(index), _NUMBER, is_optional=default is not None)
        if default is not None:
            column = column._replace(array=column.array.fill_null(default))
        if below is None or column.is_valid is None:
            return column
        values = column.array.fill_null(-1).to_numpy(zero_copy_only=False)
        return column._replace(is_valid=column.is_valid & (values >= 0) & (values < below))

    return read


def _time_field(index: int, *, is_optional: bool = False) -> _Read:
    """Return a reader of milliseconds since 1970. If they are optional, 0 means absent."""

    def read(fields: _Fields) -> _Column:
        ms, is_valid = _digits(fields.at(index), _TIME, is_optional=is_optional)
        if is_optional:
            ms = pc.if_else(pc.equal(ms, 0), None, ms)
        return _Column(ms.cast(pa.timestamp("ms", "UTC")), is_valid)

    return read


def _digits(texts: pa.Array, pattern: str, *, is_optional: bool) -> _Column:
    is_number = pc.match_substring_regex(texts, pattern)
    is_valid = is_number.fill_null(is_optional).to_numpy(zero_copy_only=False)
    return _Column(pc.if_else(is_number, texts, None).cast(pa.int64()), is_valid)


def _boolean_field(index: int) -> _Read:
    return lambda fields: _Column(pc.equal(fields.at(index), "true"))


def _publish_success(fields: _Fields) -> _Column:
    # RocketMQ before 4.3 has no offset id before this field.
    return _Column(pc.equal(fields.at(np.where(fields.counts == 12, 11, 12)), "true"))


_MESSAGE_FIELDS: Mapping[str, _Read] = {
    "time": _time_field(0),
    "group": _text_field(2),
    "topic": _text_field(3),
    "msg_id": _text_field(4),
    "tags": _text_field(5),
    "keys": _text_field(6),
}
_LAYOUTS: Mapping[str, _Layout] = {
    PUB: _Layout(
        12,
        {
            **_MESSAGE_FIELDS,
            "body_bytes": _number_field(8),
            "cost_ms": _number_field(9),
            "kind": _number_field(10, below=len(TracedMessageType)),
            "is_success": _publish_success,
        },
    ),
    SUB_BEFORE: _Layout(
        6,
        {
            "time": _time_field(0),
            "group": _text_field(2),
            "msg_id": _text_field(4),
            "retries": _number_field(5),
            "keys": _text_field(6),
        },
    ),
    SUB_AFTER: _Layout(
        4,
        {
            "msg_id": _text_field(1),
            "cost_ms": _number_field(2),
            "is_success": _boolean_field(3),
            "keys": _text_field(4),
            "code": _number_field(5, below=len(ConsumeReturnType), default=int(ConsumeReturnType.SUCCESS)),
            "time": _time_field(6, is_optional=True),
            "group": _text_field(7),
        },
    ),
    END_TRANSACTION: _Layout(
        12, {**_MESSAGE_FIELDS, "kind": _number_field(8, below=len(TracedMessageType)), "state": _text_field(10)}
    ),
}

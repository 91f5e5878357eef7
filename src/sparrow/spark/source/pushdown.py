"""Filter pushdown: filters on topic, queue, offset, tag and store time narrow the ranges to read.

Spark passes filters of one column and a literal. Filters that the plan satisfies exactly are not evaluated by Spark
again; the others only narrow what is read and are returned to Spark. Tags are compared by hash on the broker and
exactly in the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from sparrow.spark.source.batch_reader import TopicBatchReader
from sparrow.spark.source.metadata import open_metadata
from sparrow.spark.source.offset_ranges import OffsetRange

_Names = Mapping[str, str]
_PLAIN: _Names = {
    "topic": "topic",
    "queue_id": "queue_id",
    "queue_offset": "offset",
    "store_timestamp": "time",
    "tags": "tags",
}
_KAFKA: _Names = {"topic": "topic", "partition": "queue_id", "offset": "offset", "timestamp": "time"}


class PushdownBatchReader(TopicBatchReader):
    """Batch reader with `pushdown=true`."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        super().__init__(given, schema)
        self._values: dict[str, set[Any]] = {}
        """topic, queue_id -> the only values that can match."""
        self._offsets: tuple[int, int] = (0, 1 << 62)
        self._times_ms: tuple[int | None, int | None] = (None, None)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the plan, and yield the filters that Spark has to evaluate itself."""
        names = _KAFKA if self._options.kafka_schema else _PLAIN
        for term in filters:
            attribute: tuple[str, ...] = getattr(term, "attribute", ())
            what = names.get(attribute[0]) if len(attribute) == 1 else None
            if what is None or not self._apply(what, term):
                yield term

    def _apply(self, what: str, term: Filter) -> bool:
        """Narrow the plan by this filter, and return whether the plan satisfies it exactly."""
        values = _values_of(term)
        if what in ("topic", "queue_id") and values is not None:
            self._values[what] = self._values.get(what, values) & values
            return True
        if what == "tags" and values is not None and self._options.tags == "*":
            wanted = [value for value in values if isinstance(value, str) and value and "||" not in value]
            if len(wanted) == len(values) and all(value.strip() == value for value in wanted):
                self._options = msgspec.structs.replace(self._options, tags=" || ".join(sorted(wanted)))
                return True
        if what == "offset":
            return self._apply_offset(term)
        if what == "time":
            self._narrow_time(term)
        return False

    def _apply_offset(self, term: Filter) -> bool:
        first, end = self._offsets
        match term:
            case EqualTo(_, int(value)):
                first, end = max(first, value), min(end, value + 1)
            case GreaterThan(_, int(value)):
                first = max(first, value + 1)
            case GreaterThanOrEqual(_, int(value)):
                first = max(first, value)
            case LessThan(_, int(value)):
                end = min(end, value)
            case LessThanOrEqual(_, int(value)):
                end = min(end, value + 1)
            case _:
                return False
        self._offsets = (first, end)
        return True

    def _narrow_time(self, term: Filter) -> None:
        value = getattr(term, "value", None)
        if not isinstance(value, datetime):
            return
        ms = int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
        first, last = self._times_ms
        if isinstance(term, EqualTo | GreaterThan | GreaterThanOrEqual):
            first = ms if first is None else max(first, ms)
        if isinstance(term, EqualTo | LessThan | LessThanOrEqual):
            last = ms if last is None else min(last, ms)
        self._times_ms = (first, last)

    def _ranges(self) -> list[OffsetRange]:
        metadata = open_metadata(self._options)
        ranges = []
        for each in super()._ranges():
            queue, start, end = each
            if queue.topic not in self._values.get("topic", {queue.topic}):
                continue
            if queue.queue_id not in self._values.get("queue_id", {queue.queue_id}):
                continue
            start, end = max(start, self._offsets[0]), min(end, self._offsets[1])
            first_ms, last_ms = self._times_ms
            if start < end and first_ms is not None:
                start = max(start, metadata.offset_at(queue, first_ms))
            if start < end and last_ms is not None:
                end = min(end, metadata.offset_at(queue, last_ms + 1))
            if start < end:
                ranges.append(OffsetRange(queue, start, end))
        return ranges


def _values_of(term: Filter) -> set[Any] | None:
    match term:
        case EqualTo(_, value) | EqualNullSafe(_, value) if value is not None:
            return {value}
        case In(_, values):
            return {value for value in values if value is not None}
    return None

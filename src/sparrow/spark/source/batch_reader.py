"""`spark.read.format("sparrow")`: a bounded part of topics, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sparrow.model.errors import Refused
from sparrow.spark.source import offset_resolution
from sparrow.spark.source.metadata import open_metadata
from sparrow.spark.source.offset_ranges import OffsetRange, TaskRanges, plan_tasks
from sparrow.spark.source.offset_resolution import MessagesGone, format_queue_name
from sparrow.spark.source.options import SourceOptions
from sparrow.spark.source.range_reader import read_task
from sparrow.spark.source.schema import make_projection


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, task: TaskRanges) -> None:
        super().__init__(task)
        self.task = task


class TopicBatchReader(DataSourceReader):
    """Plans in the driver, reads in tasks; it is pickled in between, so it holds nothing but values."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(given)
        self._shape = make_projection(schema, kafka=self._options.kafka_schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        planned = plan_tasks(
            self._ranges(),
            partitions_min=options.partitions_min,
            range_rows_max=options.range_rows_max,
            task_rows_target=options.task_rows_target,
        )
        return [RangePartition(task) for task in planned] or [RangePartition(())]

    def _ranges(self) -> list[OffsetRange]:
        options, places = self._options, open_metadata(self._options)
        extents = offset_resolution.fetch_extents_with_retries(options, places)
        first = offset_resolution.resolve_starting_offsets(options, places, extents, default="earliest")
        last = offset_resolution.resolve_ending_offsets(options, places, extents)
        ranges = []
        for queue, extent in extents.items():
            start, end = first[queue], last[queue]
            if start > end:
                raise Refused(
                    f"{format_queue_name(queue)} would be read from {start} up to {end}: the start lies behind the end"
                )
            if end > extent.end or (start < extent.first and start < end):
                if options.fail_on_data_loss:
                    raise MessagesGone(queue, start if start < extent.first else end, extent.first, extent.end)
                start, end = min(max(start, extent.first), extent.end), min(max(end, extent.first), extent.end)
            ranges.append(OffsetRange(queue, start, end))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition), "we made it"
        return read_task(partition.task, self._options, self._shape)

"""Batch reader of `spark.read.format("sparrow")`: a bounded range of each queue as a table."""

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
    """The offset ranges that one task reads."""

    def __init__(self, task: TaskRanges) -> None:
        super().__init__(task)
        self.task = task


class TopicBatchReader(DataSourceReader):
    """Reader of a batch query: plans partitions in the driver, reads them in tasks. It is pickled between them."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(given)
        self._projection = make_projection(schema, kafka=self._options.kafka_schema)

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
        options, metadata = self._options, open_metadata(self._options)
        extents = offset_resolution.fetch_extents_with_retries(options, metadata)
        first = offset_resolution.resolve_starting_offsets(options, metadata, extents, default="earliest")
        last = offset_resolution.resolve_ending_offsets(options, metadata, extents)
        ranges = []
        for queue, extent in extents.items():
            start, end = first[queue], last[queue]
            if start > end:
                raise Refused(
                    f"cannot read {format_queue_name(queue)} from {start} to {end}: the starting offset is greater "
                    "than the ending offset"
                )
            if end > extent.end or (start < extent.first and start < end):
                if options.fail_on_data_loss:
                    raise MessagesGone(queue, start if start < extent.first else end, extent.first, extent.end)
                start, end = min(max(start, extent.first), extent.end), min(max(end, extent.first), extent.end)
            ranges.append(OffsetRange(queue, start, end))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition), "partitions() returns RangePartition only"
        return read_task(partition.task, self._options, self._projection)

"""The Spark data source `sparrow`: `spark.read.format("sparrow")`, and the same for streams and for writing.

Spark imports every top-level module whose name starts with `pyspark_` and registers its `DefaultSource`, so no
registration is needed. Every Spark session in this environment pays for the import, so the implementation is imported
on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format `sparrow`. docs/spark.md lists its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sparrow"

    def schema(self) -> str:
        """Return the default schema. Columns that are not in the schema are not read."""
        from sparrow.spark.source.schema import default_ddl

        is_set = {key.lower(): value.strip().lower() == "true" for key, value in self.options.items()}
        return default_ddl(kafka=is_set.get("kafkaschema", False), headers=is_set.get("includeheaders", True))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from sparrow.spark.source.batch_reader import TopicBatchReader
        from sparrow.spark.source.pushdown import PushdownBatchReader

        # Spark refuses a reader with `pushFilters` unless spark.sql.python.filterPushdown.enabled is set.
        kind = PushdownBatchReader if self.options.get("pushdown", "").lower() == "true" else TopicBatchReader
        return kind(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        from sparrow.spark.source.stream_reader import TopicStreamReader

        return TopicStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch job."""
        from sparrow.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a streaming query."""
        from sparrow.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)

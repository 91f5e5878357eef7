"""Topics in Spark: `spark.read.format("sparrow")`, and the same for streams and for writing.

Spark imports every top-level module whose name starts with `pyspark_` and registers its `DefaultSource`, so this needs
no registration. All users of Spark who have it installed pay for the import, so the rest is loaded when it is used.
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
    """The format `sparrow`. Its options are listed in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "sparrow"

    def schema(self) -> str:
        """Unless the user names columns: what is not in the schema is not read."""
        from sparrow.spark.source.schema import default_ddl

        is_set = {key.lower(): value.strip().lower() == "true" for key, value in self.options.items()}
        return default_ddl(kafka=is_set.get("kafkaschema", False), headers=is_set.get("includeheaders", True))

    def reader(self, schema: StructType) -> DataSourceReader:
        from sparrow.spark.source.batch_reader import TopicBatchReader
        from sparrow.spark.source.pushdown import PushdownBatchReader

        # Spark refuses a reader that can filter unless its setting for it is on.
        kind = PushdownBatchReader if self.options.get("pushdown", "").lower() == "true" else TopicBatchReader
        return kind(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from sparrow.spark.source.stream_reader import TopicStreamReader

        return TopicStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from sparrow.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from sparrow.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)

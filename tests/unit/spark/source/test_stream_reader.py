"""The stream reader in the form that Spark sends to tasks."""

import pickle

from pyspark.sql.types import LongType, StructField, StructType

from sparrow.spark.source.batch_reader import RangePartition
from sparrow.spark.source.stream_reader import TopicStreamReader


def test_a_pickled_reader_can_read_without_planning() -> None:
    schema = StructType([StructField("queue_offset", LongType())])
    reader = TopicStreamReader({"nameServers": "127.0.0.1:9876", "subscribe": "orders"}, schema)
    copy = pickle.loads(pickle.dumps(reader))
    assert list(copy.read(RangePartition(()))) == []

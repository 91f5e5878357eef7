"""A topic for benches of Spark, and the ways to read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sparrow.client import Admin, Producer

QUEUES = 8
BATCH_ROWS = 1_000
"""Messages that one queue gets before the next has its turn."""
BODY_BYTES = 100
MAP = pa.map_(pa.string(), pa.string())
SLIM = "body binary, keys string, tags string, queue_id int, queue_offset bigint, store_timestamp timestamp"


def fill(name_servers: str, topic: str, rows: int) -> None:
    """Send distinct messages of 100 bytes with three properties, in batches that alternate between the queues."""
    with Admin(name_servers) as admin:
        admin.create_topic(topic, queues=QUEUES)
    with Producer(name_servers) as producer:
        for at in range(0, rows, BATCH_ROWS):
            producer.send_table(topic, _batch_of(at, min(BATCH_ROWS, rows - at)))


def _batch_of(first: int, rows: int) -> pa.Table:
    letters = np.random.default_rng(first).integers(33, 127, rows * BODY_BYTES, dtype=np.uint8)
    bodies = pa.Array.from_buffers(pa.binary(BODY_BYTES), rows, [None, pa.py_buffer(letters)])
    numbers = range(first, first + rows)
    return pa.table(
        {
            "body": bodies.cast(pa.binary()),
            "keys": [f"order-{each:08d}" for each in numbers],
            "tags": [f"tag{each % 5}" for each in numbers],
            "properties": pa.array([{"UNIQ_KEY": f"{each:032X}"} for each in numbers], MAP),
        }
    )


def drain(frame: DataFrame) -> Callable[[], None]:
    """Materialise every row and drop it."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


class Lab:
    def __init__(self, spark: SparkSession, name_servers: str, data: Path, folder: Path) -> None:
        self.spark, self.name_servers, self.folder = spark, name_servers, folder
        self.store = next(path.parent for path in data.rglob("commitlog"))

    def topic(self, schema: str | None = None, topic: str = "orders", **options: str) -> DataFrame:
        given = {"nameServers": self.name_servers, "subscribe": topic, **options}
        reader = self.spark.read.format("sparrow").options(**given)
        return (reader.schema(schema) if schema else reader).load()

    def files(self, schema: str | None = None, **options: str) -> DataFrame:
        return self.topic(schema, access="files", path=str(self.store), **options)

    def save(self, frame: DataFrame, **options: str) -> Callable[[], None]:
        given = {"nameServers": self.name_servers, **options}
        return lambda: frame.write.format("sparrow").mode("append").options(**given).save()

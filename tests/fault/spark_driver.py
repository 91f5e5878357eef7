"""The child of `test_spark_exactly_once`: a driver that runs streaming queries, topic to topic, until it is killed.

What each query writes is a function of what it reads: the body says which queue and offset a row came from, the key
stays. Where a query was is in its checkpoint, and nowhere else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.spark import LOCAL, SMALL
from tests.support.waiting import wait_until

from sparrow.spark.runtime.session import spark_session

ROWS_A_BATCH = 2_000
"""A driver that was away for long catches up in several batches."""
TRIGGER = "50 milliseconds"
START_S = 60.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One query."""

    name: str
    broker: str
    """The one that has both topics."""
    source: str
    target: str
    checkpoint: str
    delivery: Literal["exactlyOnce", "idempotent"] = "exactlyOnce"
    is_shuffled: bool = False


class Orders(msgspec.Struct, frozen=True):
    """What a driver is told, in a file."""

    name_servers: str
    plans: list[Plan]


def start(spark: SparkSession, name_servers: str, plan: Plan) -> StreamingQuery:
    source = (
        spark.readStream.format("sparrow")
        .schema("keys string, queue_id int, queue_offset bigint")
        .option("nameserver", name_servers)
        .option("subscribe", plan.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_A_BATCH))
        .option("targetRowsPerTask", "0")  # each queue is a task, so that a shuffle has something to mix
        .load()
    )
    rows: DataFrame = source.repartition(2, "keys") if plan.is_shuffled else source
    return (
        rows.selectExpr("concat(queue_id, ':', queue_offset) as body", "keys")
        .writeStream.format("sparrow")
        .queryName(plan.name)
        .option("nameserver", name_servers)
        .option("topic", plan.target)
        .option("delivery", plan.delivery)
        .option("chunkRows", "50")
        .option("checkpointLocation", plan.checkpoint)
        .trigger(processingTime=TRIGGER)
        .start()
    )


def has_begun(query: StreamingQuery) -> bool:
    """Its source's process is there; or it has failed."""
    return not query.isActive or not query.status["message"].startswith("Initializing")


def main(path: str) -> None:
    orders = msgspec.json.decode(Path(path).read_bytes(), type=Orders)
    spark = spark_session("exactly-once", master=LOCAL, options=SMALL, quick_start=True)
    for plan in orders.plans:
        query = start(spark, orders.name_servers, plan)
        # One after the other: Spark gives a source's process ten seconds to start, and they all start others.
        wait_until(lambda query=query: has_begun(query), within_s=START_S)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

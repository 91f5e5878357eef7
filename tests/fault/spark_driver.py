"""The child process of `test_spark_exactly_once`: a driver that runs streaming queries until it is killed.

The output of each query is a function of its input: the body states the queue and offset of the source row, the key
stays. The progress of a query is in its checkpoint and nowhere else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.spark import LOCAL_MASTER, SMALL_OPTIONS
from tests.support.wait import wait_until

from sparrow.spark.runtime.session import spark_session

ROWS_A_BATCH = 2_000
"""Limits a batch, so that a driver that was down for long catches up in several batches."""
TRIGGER = "50 milliseconds"
START_S = 60.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One query."""

    name: str
    broker: str
    """The name server of the broker that has both topics."""
    source: str
    target: str
    checkpoint: str
    delivery: Literal["exactlyOnce", "idempotent"] = "exactlyOnce"
    is_shuffled: bool = False


class Orders(msgspec.Struct, frozen=True):
    """The parameters of a driver, read from a file."""

    name_servers: str
    plans: list[Plan]


def start(spark: SparkSession, name_servers: str, plan: Plan) -> StreamingQuery:
    source = (
        spark.readStream.format("sparrow")
        .schema("keys string, queue_id int, queue_offset bigint")
        .option("nameServers", name_servers)
        .option("subscribe", plan.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_A_BATCH))
        .option("targetRowsPerTask", "0")  # one task per queue, so that the shuffle has rows to mix
        .option("fetchOffset.numRetries", "150")  # the broker may have been killed just now
        .load()
    )
    rows: DataFrame = source.repartition(2, "keys") if plan.is_shuffled else source
    return (
        rows.selectExpr("concat(queue_id, ':', queue_offset) as body", "keys")
        .writeStream.format("sparrow")
        .queryName(plan.name)
        .option("nameServers", name_servers)
        .option("topic", plan.target)
        .option("delivery", plan.delivery)
        .option("chunkRows", "50")
        .option("checkpointLocation", plan.checkpoint)
        .trigger(processingTime=TRIGGER)
        .start()
    )


def has_begun(query: StreamingQuery) -> bool:
    """Return whether the source's process has started, or the query has failed."""
    return not query.isActive or not query.status["message"].startswith("Initializing")


def main(path: str) -> None:
    orders = msgspec.json.decode(Path(path).read_bytes(), type=Orders)
    spark = spark_session("exactly-once", master=LOCAL_MASTER, options=SMALL_OPTIONS, quick_start=True)
    for plan in orders.plans:
        query = start(spark, orders.name_servers, plan)
        # Start the queries one after the other: each starts several processes, and Spark waits only ten seconds for a
        # source.
        wait_until(lambda query=query: has_begun(query), within_s=START_S)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

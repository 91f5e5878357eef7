"""Topics as Spark tables and streams, read from real brokers by real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.spark_jobs import append, create_topic

from sparrow import clock
from sparrow.client import Admin, Message, Producer
from sparrow.model.message import Draft
from sparrow.testing.platform import RunningPlatform, run_platform
from sparrow.wire.bodies import QueueRef
from sparrow.wire.compression import COMPRESSED_FLAG

pytestmark = pytest.mark.xdist_group("spark")

ROWS = 20_000
SMALL = {"segment_bytes": 16 << 20}


@pytest.fixture(scope="module")
def platform() -> Iterator[RunningPlatform]:
    with run_platform(log=SMALL) as started:
        with Admin(started.name_servers) as admin:
            admin.create_topic("orders", queues=4)
        fill(started, "orders", ROWS)
        yield started


def fill(platform: RunningPlatform, topic: str, rows: int, *, first: int = 0) -> None:
    numbers = range(first, first + rows)
    table = pa.table(
        {
            "body": [b"body-%d" % number for number in numbers],
            "keys": [f"key-{number}" for number in numbers],
            "tags": ["abcde"[number % 5] for number in numbers],
            "properties": pa.array([{"city": "Oslo"}] * rows, pa.map_(pa.string(), pa.string())),
        }
    )
    with Producer(platform.name_servers) as producer:
        # In several lots, so that records of the queues alternate in the log.
        for at in range(0, rows, 500):
            producer.send_table(topic, table.slice(at, 500))


def topic(spark: SparkSession, platform: RunningPlatform, *, schema: str | None = None, **options: object) -> DataFrame:
    reader = spark.read.format("sparrow").option("nameServers", platform.name_servers)
    named = {"subscribe": "orders"} if not {"subscribePattern", "assign", "subscribe"} & set(options) else {}
    reader = reader.options(**{**named, **options})  # type: ignore[arg-type]
    return (reader.schema(schema) if schema else reader).load()


def failure_of(frame: DataFrame) -> str:
    with pytest.raises(Exception) as failed:
        frame.collect()
    return str(failed.value)


# -- batch ------------------------------------------------------------------------------------------------------------


def test_every_message_is_a_row_with_all_its_fields(spark: SparkSession, platform: RunningPlatform) -> None:
    frame = topic(spark, platform)
    assert frame.count() == ROWS
    (row,) = frame.where("keys = 'key-1234'").collect()
    assert (bytes(row.body), row.tags, row.topic, row.reconsume_times) == (b"body-1234", "e", "orders", 0)
    assert row.properties["city"] == "Oslo"
    assert abs(row.store_timestamp.timestamp() * 1000 - clock.now_ms()) < 3_600_000
    places = frame.selectExpr("queue_id", "queue_offset").distinct().count()
    assert places == ROWS


@pytest.mark.thorough
def test_any_subset_of_the_columns_in_any_order_is_a_schema(spark: SparkSession, platform: RunningPlatform) -> None:
    schema = (
        "queue_offset bigint, broker string, body string, born_host string, flag int, sys_flag int, "
        "physical_offset bigint, properties_raw string, topic string, born_timestamp timestamp"
    )
    frame = topic(spark, platform, schema=schema)
    assert [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields] == schema.split(", ")
    row = frame.where("body = 'body-7'").first()
    assert row is not None
    assert row.broker == "sparrow"
    assert "city\x01Oslo" in row.properties_raw
    assert topic(spark, platform, schema="topic string").count() == ROWS


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [("colour string", "unknown column 'colour'"), ("queue_id bigint", "has the type int, not bigint")],
)
def test_an_unknown_schema_is_refused_before_the_first_task(
    spark: SparkSession, platform: RunningPlatform, schema: str, sentence: str
) -> None:
    assert sentence in failure_of(topic(spark, platform, schema=schema))


@pytest.mark.thorough
def test_sql_finds_the_format_without_registration(spark: SparkSession, platform: RunningPlatform) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING sparrow "
        f"OPTIONS (nameServers '{platform.name_servers}', subscribe 'orders')"
    )
    found = spark.sql("SELECT tags, count(*) AS n FROM orders GROUP BY tags ORDER BY tags").collect()
    assert [(row.tags, row.n) for row in found] == [(tag, ROWS // 5) for tag in "abcde"]


@pytest.mark.thorough
def test_ranges_are_half_open(spark: SparkSession, platform: RunningPlatform) -> None:
    def json_of(offset: int) -> str:
        return json.dumps({"orders": {str(queue): offset for queue in range(4)}})

    frame = topic(spark, platform, startingOffsets=json_of(100), endingOffsets=json_of(105))
    found = sorted((row.queue_id, row.queue_offset) for row in frame.collect())
    assert found == [(queue, offset) for queue in range(4) for offset in range(100, 105)]
    assert topic(spark, platform, startingOffsets=json_of(100), endingOffsets=json_of(100)).count() == 0
    by_broker = json.dumps({"orders": {"sparrow": {"0": -2, "1": -1, "2": 7, "3": -1}}})
    uneven = topic(spark, platform, startingOffsets=by_broker)
    assert uneven.where("queue_id = 2 AND queue_offset < 9").count() == 2
    assert {row.queue_id for row in uneven.collect()} == {0, 2}


@pytest.mark.thorough
def test_times_bound_a_range(spark: SparkSession, platform: RunningPlatform) -> None:
    with Admin(platform.name_servers) as admin:
        admin.create_topic("timed", queues=1)
    fill(platform, "timed", 500)
    with Producer(platform.name_servers) as producer:
        queue = QueueRef("timed", "sparrow", 0)
        before_ms = clock.now_ms()
        while (sent := producer.send(Message("timed", b"late"))) and clock.now_ms() <= before_ms + 2:
            pass
        first_ms = before_ms + 1
    with Admin(platform.name_servers) as admin:
        split = admin.offset_at(queue, first_ms)
        assert 0 < split <= sent.queue_offset
    early = topic(spark, platform, subscribe="timed", endingTimestamp=first_ms)
    late = topic(spark, platform, subscribe="timed", startingTimestamp=first_ms)
    assert early.count() == split
    assert late.count() == sent.queue_offset + 1 - split
    iso = datetime.fromtimestamp(first_ms / 1000, UTC).isoformat()
    assert topic(spark, platform, subscribe="timed", startingTimestamp=iso).count() == sent.queue_offset + 1 - split
    assert topic(spark, platform, subscribe="timed", startingTimestamp="-1h").count() == sent.queue_offset + 1
    beyond = topic(spark, platform, subscribe="timed", startingTimestamp=clock.now_ms() + 10_000)
    assert "startingOffsetsByTimestampStrategy=latest" in failure_of(beyond)


@pytest.mark.thorough
def test_patterns_and_single_queues_select_messages(spark: SparkSession, platform: RunningPlatform) -> None:
    assert topic(spark, platform, subscribePattern="ord.*").count() == ROWS
    assert topic(spark, platform, subscribePattern="ord").count() == 0
    assign = json.dumps({"orders": {"sparrow": [1, 3]}})
    assert {row.queue_id for row in topic(spark, platform, assign=assign).select("queue_id").distinct().collect()} == {
        1,
        3,
    }
    assert "has no queue 9" in failure_of(topic(spark, platform, assign=json.dumps({"orders": {"sparrow": [9]}})))


@pytest.mark.thorough
def test_tags_are_filtered_by_the_broker(spark: SparkSession, platform: RunningPlatform) -> None:
    frame = topic(spark, platform, tags="a || c", schema="tags string, body binary")
    assert {row.tags: row["count"] for row in frame.groupBy("tags").count().collect()} == {"a": 4000, "c": 4000}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("tags = 'b'", 4000),
        ("tags IN ('b', 'zz') AND queue_id >= 0", 4000),
        ("queue_id = 2 AND queue_offset >= 10 AND queue_offset < 15", 5),
        ("queue_id IN (0, 1) AND queue_offset = 3", 2),
        ("topic = 'orders' AND tags <> 'a'", 16_000),
        ("topic = 'other'", 0),
        ("store_timestamp > '2020-01-01' AND store_timestamp <= '2100-01-01'", ROWS),
        ("store_timestamp < '2020-01-01'", 0),
        ("tags IS NULL", 0),
    ],
)
def test_pushed_filters_return_the_same_rows_as_spark_alone(
    spark: SparkSession, platform: RunningPlatform, condition: str, count: int
) -> None:
    schema = "topic string, queue_id int, queue_offset bigint, tags string, store_timestamp timestamp"
    assert topic(spark, platform, pushdown="true", schema=schema).where(condition).count() == count


@pytest.mark.thorough
def test_the_kafka_schema_has_kafkas_columns(spark: SparkSession, platform: RunningPlatform) -> None:
    frame = topic(spark, platform, kafkaSchema="true")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    (row,) = frame.where("CAST(key AS string) = 'key-42'").collect()
    assert (bytes(row.value), row.topic, row.timestampType) == (b"body-42", "orders", 1)
    assert {header.key: bytes(header.value) for header in row.headers}["city"] == b"Oslo"
    bare = topic(spark, platform, kafkaSchema="true", includeHeaders="false")
    assert "headers" not in bare.columns


@pytest.mark.thorough
def test_compressed_and_empty_bodies_are_read_as_they_were_sent(spark: SparkSession, platform: RunningPlatform) -> None:
    with Producer(platform.name_servers, compress_above_bytes=1000) as producer:
        for body in (b"x" * 50_000, b"", bytes(range(256))):
            producer.send(Message("bodies", body))
    frame = topic(spark, platform, subscribe="bodies", schema="body binary, sys_flag int", verifyChecksum="true")
    assert sorted(bytes(row.body) for row in frame.collect()) == sorted([b"x" * 50_000, b"", bytes(range(256))])
    stored = topic(spark, platform, subscribe="bodies", schema="body binary", decompress="false")
    assert max(len(row.body) for row in stored.collect()) < 1000
    assert "is not valid UTF-8" in failure_of(topic(spark, platform, subscribe="bodies", schema="body string"))


@pytest.mark.thorough
def test_a_body_that_does_not_decompress_leaves_the_topic_readable(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    create_topic(platform, "broken", 1)
    broken = Draft(body=b"no zlib", sys_flag=COMPRESSED_FLAG)
    append(platform, "broken", 0, [Draft(body=b"a"), broken, Draft(body=b"b")])
    frame = topic(spark, platform, subscribe="broken")
    rows = frame.orderBy("queue_offset").collect()
    assert [row.body for row in rows] == [b"a", None, b"b"]
    (found,) = frame.where("decode_error is not null").collect()
    assert (found.queue_offset, "not a valid zlib stream" in found.decode_error) == (1, True)
    assert [row.body for row in topic(spark, platform, subscribe="broken", schema="body string").collect()] == [
        "a",
        None,
        "b",
    ]
    assert topic(spark, platform, subscribe="broken", kafkaSchema="true").where("value is null").count() == 1
    skipped = topic(spark, platform, subscribe="broken", schema="body binary", onUndecodable="skip")
    assert [row.body for row in skipped.collect()] == [b"a", b"b"]
    failing = topic(spark, platform, subscribe="broken", onUndecodable="raise")
    assert "broken/sparrow/0 at offset 1 cannot be read" in failure_of(failing)
    assert "use one of null, skip, raise" in failure_of(topic(spark, platform, subscribe="broken", onUndecodable="no"))

    stream = Stream(spark, platform, tmp_path, subscribe="broken").run()
    assert sorted((row.queue_offset, row.body) for row in stream.rows) == [(0, "a"), (1, None), (2, "b")]


@pytest.mark.thorough
def test_a_missing_topic_is_an_error_or_is_awaited(spark: SparkSession, platform: RunningPlatform) -> None:
    assert "topic 'nowhere' does not exist" in failure_of(topic(spark, platform, subscribe="nowhere"))
    assert topic(spark, platform, subscribe="nowhere", topicMissing="wait").count() == 0


@pytest.mark.thorough
def test_ranges_are_split_and_merged_by_the_options(spark: SparkSession, platform: RunningPlatform) -> None:
    schema = "queue_offset bigint"
    assert topic(spark, platform, schema=schema).rdd.getNumPartitions() == 1
    assert topic(spark, platform, schema=schema, targetRowsPerTask=0).rdd.getNumPartitions() == 4
    cut = topic(spark, platform, schema=schema, minPartitions=10)
    assert cut.rdd.getNumPartitions() >= 10
    assert cut.distinct().count() == max(row.queue_offset for row in cut.collect()) + 1
    small = topic(spark, platform, schema=schema, maxRecordsPerPartition=1000, targetRowsPerTask=0, batchRows=100)
    assert small.rdd.getNumPartitions() >= 20
    assert small.count() == ROWS


@pytest.mark.thorough
def test_unavailable_offsets_fail_the_query_or_are_skipped(spark: SparkSession, platform: RunningPlatform) -> None:
    beyond = json.dumps({"orders": {str(queue): ROWS * 2 for queue in range(4)}})
    assert "failOnDataLoss=false" in failure_of(topic(spark, platform, endingOffsets=beyond))
    assert topic(spark, platform, endingOffsets=beyond, failOnDataLoss="false").count() == ROWS


@pytest.mark.thorough
def test_an_unreachable_name_server_is_a_clear_error(spark: SparkSession) -> None:
    frame = spark.read.format("sparrow").options(nameServers="127.0.0.1:1", subscribe="orders").load()
    said = failure_of(frame)
    assert "127.0.0.1:1" in said


# -- streams ----------------------------------------------------------------------------------------------------------


class Stream:
    """A query into memory that ends after all existing messages."""

    def __init__(self, spark: SparkSession, platform: RunningPlatform, folder: Path, **options: Any) -> None:
        self._spark, self._folder = spark, folder
        self._options = {"nameServers": platform.name_servers, "startingOffsets": "earliest", **options}
        self.rows: list[Any] = []
        self.batches: list[int] = []

    def run(self) -> Stream:
        def take(frame: DataFrame, number: int) -> None:
            self.batches.append(number)
            self.rows += frame.collect()

        reader = self._spark.readStream.format("sparrow").options(**self._options)
        query = (
            reader.schema("topic string, queue_id int, queue_offset bigint, body string")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._folder))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return self

    @property
    def places(self) -> list[tuple[str, int, int]]:
        return sorted((row.topic, row.queue_id, row.queue_offset) for row in self.rows)


def test_a_stream_continues_where_it_stopped(spark: SparkSession, platform: RunningPlatform, tmp_path: Path) -> None:
    with Admin(platform.name_servers) as admin:
        admin.create_topic("growing", queues=2)
    fill(platform, "growing", 1000)
    stream = Stream(
        spark, platform, tmp_path, subscribe="growing", maxOffsetsPerTrigger=300, groupId="spark_growing"
    ).run()
    assert len(stream.rows) == 1000
    assert len(stream.batches) == 4
    with Admin(platform.name_servers) as admin:
        assert admin.progress("spark_growing", "growing").lag == 0
        fill(platform, "growing", 500, first=1000)
        assert admin.progress("spark_growing", "growing").lag == 500
        stream.run()
        assert admin.progress("spark_growing", "growing").lag == 0
    assert len(stream.places) == len(set(stream.places)) == 1500
    assert stream.batches == [0, 1, 2, 3, 4, 5]
    assert Stream(spark, platform, tmp_path, subscribe="growing").run().rows == []


@pytest.mark.thorough
def test_an_uncommitted_batch_is_replayed_unchanged(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    fill(platform, "replayed", 900)
    first = Stream(spark, platform, tmp_path, subscribe="replayed", maxOffsetsPerTrigger=500).run()
    last = max(int(file.name) for file in (tmp_path / "commits").iterdir() if file.name.isdigit())
    (tmp_path / "commits" / str(last)).unlink()
    (tmp_path / "commits" / f".{last}.crc").unlink(missing_ok=True)
    fill(platform, "replayed", 500, first=900)
    second = Stream(spark, platform, tmp_path, subscribe="replayed", maxOffsetsPerTrigger=5000).run()
    again = [row for row in second.places if row in set(first.places)]
    assert second.batches[0] == last
    assert len(first.places) == 900
    assert again == sorted(set(again))
    assert len(set(first.places + second.places)) == 1400
    assert 0 < len(again) < 900


@pytest.mark.thorough
def test_queues_that_appear_later_are_read_from_their_beginning(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    with Admin(platform.name_servers) as admin:
        admin.create_topic("widened", queues=1)
        fill(platform, "widened", 500)
        stream = Stream(spark, platform, tmp_path, subscribePattern="widened|later").run()
        assert len(stream.rows) == 500
        admin.create_topic("widened", queues=3)
        admin.create_topic("later", queues=1)
    fill(platform, "widened", 2000, first=500)
    fill(platform, "later", 500)
    stream.run()
    assert len(stream.places) == len(set(stream.places)) == 3000
    assert {place[1] for place in stream.places if place[0] == "widened"} == {0, 1, 2}


@pytest.mark.thorough
def test_a_checkpoint_of_another_topic_is_refused(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    Stream(spark, platform, tmp_path, subscribe="orders").run()
    fill(platform, "another", 500)
    with pytest.raises(Exception, match="the checkpoint contains offsets of topic 'orders'"):
        Stream(spark, platform, tmp_path, subscribe="another").run()


@pytest.mark.thorough
def test_a_query_starts_at_the_committed_offsets_of_a_group(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    with Admin(platform.name_servers) as admin:
        admin.create_topic("shared", queues=1)
        fill(platform, "shared", 500)
        queue = QueueRef("shared", "sparrow", 0)
        admin.reset_queue("readers", queue, 123)
    stream = Stream(spark, platform, tmp_path, subscribe="shared", startingOffsets="group:readers").run()
    assert stream.places == [("shared", 0, offset) for offset in range(123, 500)]


@pytest.mark.thorough
def test_batches_can_be_limited_by_bytes(spark: SparkSession, platform: RunningPlatform, tmp_path: Path) -> None:
    fill(platform, "sized", 1000)
    options = {"subscribe": "sized", "maxOffsetsPerTrigger": 0, "maxBytesPerTrigger": "64k"}
    stream = Stream(spark, platform, tmp_path, **options).run()
    assert len(stream.places) == len(set(stream.places)) == 1000
    assert len(stream.batches) > 1


@pytest.mark.thorough
def test_messages_lost_while_a_query_was_down_fail_it_or_are_skipped(spark: SparkSession, tmp_path: Path) -> None:
    with run_platform(log={"segment_bytes": 1 << 20}) as platform:
        with Admin(platform.name_servers) as admin:
            admin.create_topic("kept", queues=1)
            fill(platform, "kept", 500)
            Stream(spark, platform, tmp_path / "a", subscribe="kept").run()
            admin.delete_topic("kept")
            admin.create_topic("kept", queues=1)
        fill(platform, "kept", 100)
        with pytest.raises(Exception, match="failOnDataLoss=false"):
            Stream(spark, platform, tmp_path / "a", subscribe="kept").run()

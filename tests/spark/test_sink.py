"""`df.write.format("sparrow")` and `df.writeStream`, with real Spark and real brokers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from sparrow.client.blocking import Admin, Consumer
from sparrow.client.produce.queue_selection import by_hash
from sparrow.model.message import Message
from sparrow.spark import spark_session
from sparrow.spark.runtime.progress import watch_job
from sparrow.testing import RunningPlatform
from sparrow.wire.bodies import QueueRef

COLUMNS = ("body", "keys", "tags", "msg_id", "topic", "queue_id", "born_timestamp", "sys_flag", "properties")
IDEMPOTENT = pytest.param("idempotent", marks=pytest.mark.thorough)
AT_LEAST_ONCE = pytest.param("atLeastOnce", marks=pytest.mark.thorough)
"""`make test` writes exactly once here; `test_partition_writer.py` has the other deliveries, without Spark."""


@pytest.fixture(scope="module")
def brokers(sparrow_platform: RunningPlatform) -> RunningPlatform:
    return sparrow_platform


@pytest.fixture
def topic(request: pytest.FixtureRequest, brokers: RunningPlatform) -> str:
    """A new topic for the test, with four queues."""
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[:100]
    with Admin(brokers.name_servers) as admin:
        admin.create_topic(name, queues=4)
    return name


class Sink:
    def __init__(self, brokers: RunningPlatform, topic: str) -> None:
        self.name_servers, self.topic = brokers.name_servers, topic

    def options(self, **given: str) -> dict[str, str]:
        return {"nameServers": self.name_servers, "topic": self.topic, **given}

    def write(self, frame: DataFrame, **given: str) -> None:
        frame.write.format("sparrow").options(**self.options(**given)).mode("append").save()

    def rows(self, topic: str | None = None) -> list[dict[str, Any]]:
        with Consumer(self.name_servers, group="readers") as consumer:
            return consumer.read_table(topic or self.topic, columns=COLUMNS).to_pylist()

    def bodies(self, topic: str | None = None) -> list[str]:
        return sorted(row["body"].decode() for row in self.rows(topic))


@pytest.fixture
def sink(brokers: RunningPlatform, topic: str) -> Sink:
    return Sink(brokers, topic)


def numbers(spark: SparkSession, count: int, *, first: int = 0) -> DataFrame:
    return spark.range(first, first + count, 1, 2).selectExpr("cast(id as string) as body")


def texts(count: int, first: int = 0) -> list[str]:
    return sorted(str(i) for i in range(first, first + count))


# -- batch jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactlyOnce", IDEMPOTENT, AT_LEAST_ONCE])
def test_all_rows_of_a_frame_are_written(spark: SparkSession, sink: Sink, delivery: str):
    sink.write(numbers(spark, 25_000), delivery=delivery)
    assert sink.bodies() == texts(25_000)
    found = sink.rows()
    assert len({row["msg_id"] for row in found}) == 25_000
    if delivery != "atLeastOnce":  # where whole batches rotate over the queues
        assert len({row["queue_id"] for row in found}) == 4


@pytest.mark.thorough
def test_jobs_and_sessions_work_in_any_thread(spark: SparkSession, sink: Sink):
    """A thread that is new to Java has no active session, in which Spark looks for our format."""

    def write_as_job() -> None:
        with watch_job(spark, lambda _: None):
            sink.write(numbers(spark, 10))

    def write_with_session() -> None:
        sink.write(numbers(spark_session("tests"), 10, first=10))

    for work in (write_as_job, write_with_session):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(work).result()
    assert sink.bodies() == texts(20)


@pytest.mark.thorough
@pytest.mark.parametrize("delivery", ["exactlyOnce", "idempotent"])
def test_every_column_is_stored(spark: SparkSession, sink: Sink, delivery: str):
    born = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    frame = spark.createDataFrame(
        [
            (b"\x00\xff", "k1 k2", "T", {"a": "1"}, "id-1", "shard", born, 3, "ignored"),
            (b"", None, None, None, None, None, None, None, None),
        ],
        "body binary, keys string, tags string, properties map<string,string>, msg_id string, sharding_key string, "
        "born_timestamp timestamp, queue_id int, topic string",
    ).coalesce(1)
    sink.write(frame, delivery=delivery)
    by_body = {row["body"]: row for row in sink.rows()}
    full, empty = by_body[b"\x00\xff"], by_body[b""]
    assert (full["keys"], full["tags"], full["msg_id"], full["queue_id"]) == ("k1 k2", "T", "id-1", 3)
    assert full["born_timestamp"] == born
    assert {"a": "1", "__SHARDINGKEY": "shard"}.items() <= dict(full["properties"]).items()
    assert (empty["keys"], empty["tags"], len(empty["msg_id"])) == (None, None, 32)
    assert abs((datetime.now(UTC) - empty["born_timestamp"]).total_seconds()) < 600


@pytest.mark.thorough
def test_every_column_is_stored_with_at_least_once_delivery(spark: SparkSession, sink: Sink):
    frame = spark.createDataFrame(
        [(b"x", "k", "T", {"a": "1"}, "id-1", "shard", 2)],
        "value binary, key string, tags string, properties map<string,string>, msg_id string, sharding_key string, "
        "partition int",
    )
    sink.write(frame, delivery="atLeastOnce")
    (row,) = sink.rows()
    assert (row["body"], row["keys"], row["tags"], row["msg_id"], row["queue_id"]) == (b"x", "k", "T", "id-1", 2)
    assert {"a": "1", "__SHARDINGKEY": "shard"}.items() <= dict(row["properties"]).items()


@pytest.mark.thorough
def test_a_frame_with_kafka_columns_is_accepted(spark: SparkSession, sink: Sink):
    headers = "array(named_struct('key', 'h', 'value', cast('1' as binary)))"
    frame = spark.sql(f"select 'k' as key, 'v' as value, {headers} as headers")
    sink.write(frame)
    (row,) = sink.rows()
    assert (row["body"], row["keys"], dict(row["properties"])["h"]) == (b"v", "k", "1")


@pytest.mark.thorough
def test_rows_of_one_key_go_to_the_queue_that_a_producer_would_choose(spark: SparkSession, sink: Sink):
    sink.write(numbers(spark, 200).withColumn("sharding_key", F.expr("concat('key-', body)")))
    queues = [QueueRef(sink.topic, "sparrow", number) for number in range(4)]
    for row in sink.rows():
        wanted = by_hash("key-" + row["body"].decode())(queues, Message(topic=sink.topic))
        assert row["queue_id"] == wanted.queue_id


@pytest.mark.thorough
def test_each_row_goes_to_the_topic_it_names(spark: SparkSession, sink: Sink):
    frame = numbers(spark, 100).withColumn("topic", F.expr("concat('by_column_', cast(body as int) % 3)"))
    frame.write.format("sparrow").option("nameServers", sink.name_servers).mode("append").save()
    for number in range(3):
        assert sink.bodies(f"by_column_{number}") == sorted(str(i) for i in range(100) if i % 3 == number)


@pytest.mark.thorough
def test_a_topic_is_created_by_the_first_job(spark: SparkSession, brokers: RunningPlatform):
    sink = Sink(brokers, "made_by_spark")
    sink.write(numbers(spark, 10), topicQueues="2")
    assert sink.bodies() == texts(10)
    assert {row["queue_id"] for row in sink.rows()} <= {0, 1}


@pytest.mark.thorough
@pytest.mark.parametrize(("compress", "checksum"), [("zlib", "client"), ("zstd", "broker")])
def test_long_bodies_are_compressed(spark: SparkSession, sink: Sink, compress: str, checksum: str):
    frame = spark.sql("select repeat('x', 10000) as body union all select 'short'")
    sink.write(frame, compress=compress, checksum=checksum)
    assert sink.bodies() == ["short", "x" * 10_000]


@pytest.mark.thorough
def test_rows_with_a_delivery_time_are_written_by_at_least_once_delivery(spark: SparkSession, sink: Sink):
    frame = numbers(spark, 5).withColumn("deliver_timestamp", F.expr("timestamp_millis(if(body = '3', null, 1000))"))
    sink.write(frame, delivery="atLeastOnce")
    assert sink.bodies() == texts(5), "a time in the past means now"


def test_a_job_with_a_key_is_written_once(spark: SparkSession, sink: Sink):
    sink.write(numbers(spark, 10), jobKey="monday")
    sink.write(numbers(spark, 10), jobKey="monday")
    sink.write(numbers(spark, 10, first=10), jobKey="tuesday")
    assert sink.bodies() == texts(20)


@pytest.mark.thorough
def test_a_job_without_a_key_is_written_every_time(spark: SparkSession, sink: Sink):
    sink.write(numbers(spark, 3))
    sink.write(numbers(spark, 3))
    assert Counter(sink.bodies()) == {"0": 2, "1": 2, "2": 2}


# -- failures ---------------------------------------------------------------------------------------------------------


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function that fails in the middle of every partition at the first attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number == 2 and context.attemptNumber() == 0:
            raise RuntimeError("injected executor loss")
        yield batch


@pytest.mark.thorough
@pytest.mark.parametrize("delivery", ["exactlyOnce", "idempotent"])
def test_repeated_tasks_write_nothing_twice(spark: SparkSession, sink: Sink, delivery: str):
    frame = numbers(spark, 60_000).mapInArrow(failing_once, "body string")
    sink.write(frame, delivery=delivery, chunkRows="1000")
    assert sink.bodies() == texts(60_000)


@pytest.mark.thorough
def test_a_failed_job_publishes_nothing(spark: SparkSession, sink: Sink, brokers: RunningPlatform):
    def stages() -> set[Path]:
        return {*brokers.folder.rglob("*.stage"), *brokers.folder.rglob("*.part")}

    before = stages()  # of killed tasks
    frame = numbers(spark, 20_000).withColumn("queue_id", F.expr("if(body = '19999', 77, 1)"))
    with pytest.raises(PySparkException, match="has queue_id 77, but its topic has 4"):
        sink.write(frame)
    assert sink.bodies() == []
    assert stages() <= before


@contextmanager
def refused_before_any_task(spark: SparkSession, words: str) -> Iterator[None]:
    group = f"refused-{words}"
    spark.sparkContext.setJobGroup(group, "")
    try:
        with pytest.raises(PySparkException, match=words):
            yield
        assert not spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_a_frame_without_a_body_is_refused_before_any_task(spark: SparkSession, sink: Sink):
    with refused_before_any_task(spark, "column 'body' .or 'value'. is missing"):
        sink.write(spark.range(3).selectExpr("cast(id as string) as keys"))


@pytest.mark.thorough
def test_an_unknown_column_is_refused_unless_it_may_be_ignored(spark: SparkSession, sink: Sink):
    frame = numbers(spark, 3).withColumn("price", F.lit(1.0))
    with refused_before_any_task(spark, "'price' is not a message column"):
        sink.write(frame)
    sink.write(frame, ignoreExtraColumns="true")
    assert sink.bodies() == texts(3)


def test_overwrite_mode_is_refused(spark: SparkSession, sink: Sink):
    with refused_before_any_task(spark, "cannot be overwritten"):
        numbers(spark, 3).write.format("sparrow").options(**sink.options()).mode("overwrite").save()


@pytest.mark.thorough
def test_an_error_for_a_null_body_names_its_row(spark: SparkSession, sink: Sink):
    frame = spark.createDataFrame([("a",), (None,)], "body string").coalesce(1)
    with pytest.raises(PySparkException, match="row 1 of its partition has a null body"):
        sink.write(frame)
    assert sink.bodies() == []


@pytest.mark.thorough
def test_an_error_for_a_delay_property_names_its_row(spark: SparkSession, sink: Sink):
    with pytest.raises(PySparkException, match=r"row 0 of its partition has the property DELAY.*delivery=atLeastOnce"):
        sink.write(spark.sql("select 'x' as body, map('DELAY', '3') as properties"))


# -- streams ----------------------------------------------------------------------------------------------------------


class Stream:
    """A stream of files, each of which is a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.checkpoint, self._incoming = spark, folder / "checkpoint", folder / "incoming"
        self._incoming.mkdir()

    def add(self, bodies: list[str]) -> None:
        number = len(list(self._incoming.iterdir()))
        lines = "\n".join(json.dumps({"body": body}) for body in bodies)
        (self._incoming / f"{number:04}.json").write_text(lines)

    @property
    def frame(self) -> DataFrame:
        return self.spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).json(str(self._incoming))

    def run(self, sink: Sink, **given: str) -> None:
        writer = self.frame.writeStream.format("sparrow").options(**sink.options(**given))
        self.finish(writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start())

    def run_foreach(self, write: Any) -> None:
        writer = self.frame.writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint))
        self.finish(writer.trigger(availableNow=True).start())

    @staticmethod
    def finish(query: StreamingQuery) -> None:
        try:
            assert query.awaitTermination(100)
        finally:
            query.stop()

    def forget_the_last_commit(self) -> None:
        """Make Spark repeat the last batch, as if the driver had died between the sink's commit and its record."""
        commits = self.checkpoint / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


@pytest.mark.parametrize("delivery", ["exactlyOnce", IDEMPOTENT])
def test_a_replayed_batch_is_not_written_twice(stream: Stream, sink: Sink, delivery: str):
    stream.add(texts(10))
    stream.add(texts(10, 10))
    stream.run(sink, delivery=delivery)
    assert sink.bodies() == texts(20)
    stream.forget_the_last_commit()
    stream.run(sink, delivery=delivery)
    assert sink.bodies() == texts(20)
    stream.add(texts(10, 20))
    stream.run(sink, delivery=delivery)
    assert sink.bodies() == texts(30)


@pytest.mark.thorough
def test_a_replayed_batch_is_sent_again_with_at_least_once_delivery(stream: Stream, sink: Sink):
    stream.add(["a"])
    stream.run(sink, delivery="atLeastOnce")
    stream.forget_the_last_commit()
    stream.run(sink, delivery="atLeastOnce")
    assert sink.bodies() == ["a", "a"]


@pytest.mark.thorough
def test_two_sinks_of_one_batch_write_once_each(stream: Stream, sink: Sink):
    def write(batch: DataFrame, number: int) -> None:
        sink.write(batch, sinkName="plain")
        sink.write(batch.selectExpr("concat('copy ', body) as body"), sinkName="copy")

    stream.add(["a", "b"])
    stream.run_foreach(write)
    stream.forget_the_last_commit()
    stream.run_foreach(write)
    assert sink.bodies() == ["a", "b", "copy a", "copy b"]
    stream.add(["c"])
    stream.run_foreach(write)
    assert sink.bodies() == ["a", "b", "c", "copy a", "copy b", "copy c"]


@pytest.mark.thorough
def test_a_job_key_inside_a_stream_is_refused(stream: Stream, sink: Sink):
    stream.add(["a"])
    with pytest.raises(PySparkException, match="jobKey"):
        stream.run_foreach(lambda batch, number: sink.write(batch, jobKey="k"))
    assert sink.bodies() == []


@pytest.mark.thorough
def test_a_stream_in_complete_mode_is_refused(stream: Stream, sink: Sink):
    stream.add(["a"])
    counted = stream.frame.groupBy("body").count().selectExpr("body")
    writer = counted.writeStream.format("sparrow").options(**sink.options()).outputMode("complete")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        stream.finish(writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start())


@pytest.mark.thorough
def test_an_empty_batch_is_no_error(stream: Stream, sink: Sink):
    stream.add(["a"])
    stream.add(["drop"])
    stream.add(["b"])
    kept = stream.frame.where("body != 'drop'").writeStream.format("sparrow").options(**sink.options())
    stream.finish(kept.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start())
    assert sink.bodies() == ["a", "b"]


@pytest.mark.thorough
@pytest.mark.parametrize("delivery", ["exactlyOnce", "idempotent"])
def test_a_stream_whose_first_batch_is_empty_creates_its_topic(
    stream: Stream, brokers: RunningPlatform, tmp_path: Path, delivery: str
):
    """Windows in append mode: the first batch only holds open windows, so that it writes nothing."""
    late = Sink(brokers, f"new_{delivery}")
    timed = stream.frame.selectExpr("split(body, ' ')[0] as city", "cast(split(body, ' ')[1] as timestamp) as at")
    counts = timed.withWatermark("at", "0 seconds").groupBy(F.window("at", "10 seconds"), "city").count()
    writer = counts.selectExpr("concat(city, ' ', count) as body").writeStream.format("sparrow")
    writer = writer.options(**late.options(delivery=delivery, commitTimeoutMs="2000")).outputMode("append")
    writer = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)
    stream.add(["Oslo 2026-01-31T10:00:01Z", "Lima 2026-01-31T10:00:02Z"])
    stream.finish(writer.start())
    with Admin(brokers.name_servers) as admin:
        assert late.topic in admin.topics()
    stream.add(["Oslo 2026-01-31T11:00:00Z"])
    stream.finish(writer.start())
    assert late.bodies() == ["Lima 1", "Oslo 1"]

"""Spark on topics: ratios to Parquet, to a reader of tuples, and between Sparrow's own ways of access, in one run.

Five million messages of 100 bytes in eight queues that alternate in the log; two cores for Spark, broker and Python
together. Each time is the best of three rounds in which the competitors alternate. `--keep FOLDER` keeps the data for
another run, `--rows N` uses fewer messages, `--only reading` measures one part.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from _harness import ROOT, Row, folder_on_disk, is_smoke, report
from _spark_lab import QUEUES, SLIM, Lab, drain, fill
from broker import broker
from sparrow.client import Admin, Producer
from sparrow.spark.runtime.session import spark_session
from sparrow.spark.source.schema import default_ddl

SMOKE = is_smoke()
ROWS = int(sys.argv[sys.argv.index("--rows") + 1]) if "--rows" in sys.argv else 20_000 if SMOKE else 5_000_000
WRITTEN = 5_000 if SMOKE else 500_000
"""Rows of a batch that is written."""
ROUNDS = 1 if SMOKE else 3


# -- competitors ------------------------------------------------------------------------------------------------------


class TupleSource(DataSource):
    """A source without Arrow: it reads the same topic as one Python tuple per row."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> str:
        return default_ddl(kafka=False, headers=False)

    def reader(self, schema: Any) -> DataSourceReader:
        return TupleReader(dict(self.options), schema)


class TupleReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: Any) -> None:
        from sparrow.spark.source.batch_reader import TopicBatchReader

        self._reader = TopicBatchReader(options, schema)

    def partitions(self) -> Any:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        from datetime import UTC, datetime

        from sparrow.model.queue import Queue
        from sparrow.store.log.readonly.store_directory import StoreDirectory
        from sparrow.wire.record import decode

        directory = StoreDirectory(self._reader._options.path or "")
        for queue, start, end in partition.task:  # type: ignore[attr-defined]
            for found in directory.read(Queue(queue.topic, queue.queue_id), start, end, rows_max=8192):
                for at in found.starts.tolist():
                    message = decode(found.view, at)
                    properties = message.properties
                    yield (
                        message.body,
                        properties.get("KEYS"),
                        properties.get("TAGS"),
                        properties.get("UNIQ_KEY"),
                        message.topic,
                        message.queue_id,
                        message.queue_offset,
                        datetime.fromtimestamp(message.store_ms / 1000, UTC),
                        datetime.fromtimestamp(message.born_ms / 1000, UTC),
                        message.reconsume_times,
                        properties,
                        None,  # decode_error
                    )


class DropSource(DataSource):
    """A sink that drops its Arrow batches; it measures the cost of reaching Python."""

    @classmethod
    def name(cls) -> str:
        return "drop"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return DropWriter()


class DropWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


# -- setup ------------------------------------------------------------------------------------------------------------


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def quickest(*works: Callable[[], object]) -> list[float]:
    """Alternate the competitors; return the best time of each. Except at smoke scale, a warm-up round comes first."""
    if not SMOKE:
        for work in works:
            work()
    times = [[timed(work) for work in works] for _ in range(ROUNDS)]
    return [min(of_one) for of_one in zip(*times, strict=True)]


# -- figures ----------------------------------------------------------------------------------------------------------


def reading(lab: Lab) -> list[Row]:
    slim = str(lab.folder / "slim")
    lab.files(SLIM).write.mode("overwrite").option("compression", "zstd").parquet(slim)
    read = lab.spark.read
    assert lab.topic("queue_id int").count() == read.parquet(slim).count() == ROWS
    [ours] = quickest(drain(lab.files()))
    rows = [Row("source, full schema, rows/s", ROWS / ours, "1/s")]
    ours, pulled = quickest(drain(lab.files(SLIM)), drain(lab.topic(SLIM)))
    rows += [
        Row("source, slim, rows/s", ROWS / ours, "1/s"),
        Row("pull, slim, rows/s", ROWS / pulled, "1/s"),
        Row("pull / files, slim", ours / pulled, "ratio", 0.6),
    ]
    ours, parquet = quickest(
        lab.files(SLIM).groupBy("tags").count().collect, read.parquet(slim).groupBy("tags").count().collect
    )
    rows.append(Row("source, slim, groupBy / Parquet", parquet / ours, "ratio", 0.25))
    everything, one_tag = quickest(
        lambda: lab.files(SLIM).where("tags = 'tag1'").count(), lambda: lab.files(SLIM, tags="tag1").count()
    )
    rows.append(Row("a tag of five, chosen by the source / by Spark", everything / one_tag, "ratio", 2.5))
    lab.spark.dataSource.register(TupleSource)
    few = {"startingOffsets": "earliest"}
    part = json.dumps({"orders": {str(queue): ROWS // QUEUES // 10 for queue in range(QUEUES)}})
    options = {"access": "files", "path": str(lab.store), "subscribe": "orders", "endingOffsets": part, **few}
    tuples = lab.spark.read.format("tuples").options(**options).load()
    ours, theirs = quickest(drain(lab.files(endingOffsets=part)), drain(tuples))
    rows.append(Row("source / a reader of tuples", theirs / ours, "ratio", 7.0))
    copied, archived = quickest(
        lambda: read.parquet(slim).write.mode("overwrite").option("compression", "zstd").parquet(f"{slim}-copy"),
        lambda: lab.files(SLIM).write.mode("overwrite").option("compression", "zstd").parquet(f"{slim}-copy"),
    )
    rows.append(Row("archive, slim / Parquet to Parquet", copied / archived, "ratio", 0.6))
    return rows


def writing(lab: Lab) -> list[Row]:
    source = str(lab.folder / "batch")
    lab.files("body binary, keys string, tags string").limit(WRITTEN).repartition(2).write.mode("overwrite").parquet(
        source
    )
    frame = lab.spark.read.parquet(source)
    lab.spark.dataSource.register(DropSource)
    with Admin(lab.name_servers) as admin:
        admin.create_topic("written", queues=QUEUES)
    dropped, exact, loose = quickest(
        lambda: frame.write.format("drop").mode("append").save(),
        lab.save(frame, topic="written", delivery="exactlyOnce"),
        lab.save(frame, topic="written", delivery="atLeastOnce"),
    )
    return [
        Row("sink, exactly once, rows/s", WRITTEN / exact, "1/s"),
        Row("sink, at least once, rows/s", WRITTEN / loose, "1/s"),
        Row("sink, exactly once / at least once", loose / exact, "ratio", 0.7),
        Row("sink, exactly once / rows dropped", dropped / exact, "ratio"),
    ]


def latency(lab: Lab) -> list[Row]:
    """Measure a micro-batch with one row, topic to topic, against Spark's rate source with a sink that drops rows."""
    with Admin(lab.name_servers) as admin:
        admin.create_topic("trickle", queues=1)
        admin.create_topic("trickled", queues=1)
    batches = 1 if SMOKE else 15
    own = lab.spark.readStream.format("rate").option("rowsPerSecond", 1).load().writeStream.format("noop")
    theirs = _batch_ms(own, lab.folder / "rate", batches, lambda: None)
    stream = lab.spark.readStream.format("sparrow").options(nameServers=lab.name_servers, subscribe="trickle")
    ours_to = stream.schema("body binary").load().writeStream.format("sparrow")
    ours_to = ours_to.options(nameServers=lab.name_servers, topic="trickled")
    with Producer(lab.name_servers) as producer:
        ours = _batch_ms(ours_to, lab.folder / "trickle", batches, lambda: producer.send_table("trickle", _one()))
    return [
        Row("a batch of one row, topic to topic, ms", ours, "ms"),
        Row("the same / Spark's own source to nothing", ours / theirs, "ratio", 2.5, at_most=True),
    ]


def _one() -> pa.Table:
    return pa.table({"body": [b"x"]})


def _batch_ms(writer: Any, folder: Path, batches: int, send: Callable[[], object]) -> float:
    query = writer.option("checkpointLocation", str(folder)).trigger(processingTime="0 seconds").start()
    try:
        seen: dict[int, int] = {}
        deadline = time.monotonic() + 180
        while len(seen) < batches + 2 and time.monotonic() < deadline:
            send()
            time.sleep(0.2)
            for progress in query.recentProgress:
                if progress.numInputRows:
                    seen[progress.batchId] = progress.batchDuration
        times = [seen[number] for number in sorted(seen)[2:]]  # the first batches start processes
        return statistics.median(times)
    finally:
        query.stop()


def memory(lab: Lab) -> list[Row]:
    """Measure the memory of the largest Python worker while one task reads everything."""
    peak = 0
    frame = lab.topic(SLIM, maxRecordsPerPartition="0", targetRowsPerTask=str(ROWS * 2))
    import threading

    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("python"):
                        peak = max(peak, process.memory_full_info().uss)
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        drain(frame)()
    finally:
        is_over.set()
        watcher.join()
    return [Row("largest Python worker, one task of all rows", peak / 2**20, "MiB", 400, at_most=True)]


def planning(lab: Lab) -> list[Row]:
    topics = 2 if SMOKE else 10
    with Admin(lab.name_servers) as admin:
        for number in range(topics):
            admin.create_topic(f"wide{number}", queues=100)
    from pyspark.sql.types import LongType, StructField, StructType

    from sparrow.spark.source.batch_reader import TopicBatchReader

    schema = StructType([StructField("queue_offset", LongType())])
    options = {"nameServers": lab.name_servers, "subscribePattern": "wide.*"}
    TopicBatchReader(options, schema).partitions()
    seconds = min(timed(lambda: TopicBatchReader(options, schema).partitions()) for _ in range(3))
    return [Row(f"planning {topics * 100} queues", seconds, "s", 1.0, at_most=True)]


START = """
import sys
from sparrow.spark.source.schema import default_ddl
from sparrow.spark.runtime.session import spark_session
spark = spark_session("start", master="local[2]", use_class_archive=sys.argv[1] == "with")
assert spark.range(10).count() == 10
spark.stop()
"""


def starting() -> list[Row]:
    from sparrow.spark.runtime.class_archive import build_class_archive

    if SMOKE:
        return []
    build_class_archive()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    def start(how: str) -> Callable[[], object]:
        return lambda: subprocess.run(
            [sys.executable, "-c", START, how], env=environment, check=True, capture_output=True
        )

    without, with_it = quickest(start("without"), start("with"))
    return [
        Row("session and first job", with_it, "s"),
        Row("the same / without a class archive", with_it / without, "ratio", 0.65, at_most=True),
    ]


def main() -> None:
    rows = [] if "--only" in sys.argv else starting()
    kept = Path(sys.argv[sys.argv.index("--keep") + 1]) if "--keep" in sys.argv else None
    with folder_on_disk() as scratch:
        data = kept or scratch / "data"
        is_filled = (data / "filled").exists()
        with broker(data) as (_, _, name_servers):
            if not is_filled:
                fill(name_servers, "orders", ROWS)
                (data / "filled").touch()
            options = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
            spark = spark_session("bench", master="local[2]", options=options, quick_start=SMOKE)
            try:
                lab = Lab(spark, name_servers, data, scratch)
                for part in (planning, reading, memory, writing, latency):
                    if "--only" in sys.argv and part.__name__ not in sys.argv:
                        continue
                    rows += part(lab)
                    print(f"  {part.__name__} done", file=sys.stderr)
            finally:
                spark.stop()
    report("spark", rows)


if __name__ == "__main__":
    main()

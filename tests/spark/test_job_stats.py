"""Statistics match the numbers of messages that were sent, stored and handled."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.json_output import decode_printed
from tests.support.wait import wait_until
from typer.testing import CliRunner

from sparrow import client, clock
from sparrow.cli.main import app
from sparrow.client.consume.retry import RetryLater
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.message import Message, StoredMessage
from sparrow.spark.jobs.stats.job import STATS_TOPIC, StatsJob, run
from sparrow.spark.jobs.stats.measures import KEY_COLUMNS, latest_measures
from sparrow.spark.jobs.time_span import JobTimeSpan
from sparrow.testing import RunningPlatform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first batches of a session start Python processes, each of which takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(300)
Row = dict[str, Any]


def send(platform: RunningPlatform, topic: str, count: int, *, body: str = "x" * 100, key: str = "") -> None:
    with client.Producer(platform.name_servers, group="shop", trace=True) as producer:
        for number in range(count):
            producer.send(Message(topic, body, keys=key or f"key-{number}"))


def handle(platform: RunningPlatform, topic: str, group: str, count: int) -> None:
    """Run a traced consumer until it has received this many messages; every fourth is delayed for a long time."""
    seen: list[bytes] = []

    def handler(message: StoredMessage) -> None:
        seen.append(message.body)
        if len(seen) % 4 == 0:
            raise RetryLater(18)

    with client.Consumer(platform.name_servers, group=group, trace=True, consume_from="first") as consumer:
        consumer.subscribe(topic)
        consumer.start(handler, workers=1)
        wait_until(lambda: len(seen) >= count, within_s=30)


def on_progress(platform: RunningPlatform, topic: str = STATS_TOPIC) -> list[Row]:
    """Return the rows of the statistics topic."""
    with client.Admin(platform.name_servers) as admin:
        if topic not in admin.topics():
            return []
    with client.Consumer(platform.name_servers, group="watchers") as consumer:
        table = consumer.read_table(topic, columns=("body", "keys"))
    rows = [msgspec.json.decode(body) for body in table["body"].to_pylist()]
    assert [row["topic"] for row in rows] == table["keys"].to_pylist()
    return rows


def newest(rows: list[Row], kind: str) -> list[Row]:
    """Return the newest value of each measure, as readers of the topic do."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["measured_ms"]):
        found[tuple(row.get(f"{name}_ms", row.get(name)) for name in KEY_COLUMNS[kind])] = row
    return list(found.values())


def total(rows: list[Row], name: str = "messages", **same: str) -> int:
    """Return the sum, because a run may cross a minute."""
    return sum(row[name] for row in rows if all(row.get(key) == value for key, value in same.items()))


@pytest.mark.thorough
def test_statistics_of_a_time_span_are_written_to_parquet_and_to_a_topic(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    before = clock.now_ms()
    send(platform, "T", 30, body="x" * 100)
    send(platform, "T", 70, body="x" * 300, key="hot other")
    send(platform, "U", 5)
    send(platform, "V", 5)
    handle(platform, "T", "readers", 100)
    send(platform, "T", 10, body="x" * 100)
    folder = tmp_path / "stats"
    stats = StatsJob(name_servers=platform.name_servers, topics=("T", "U"), parquet=str(folder))
    measured = run(spark, stats)

    rows = on_progress(platform)
    messages = newest(rows, "messages")
    assert (total(messages, topic="T"), total(messages, topic="U"), total(messages, topic="V")) == (110, 5, 0)
    assert total(messages, "bytes", topic="T") == 40 * 100 + 70 * 300
    of_t = [row for row in messages if row["topic"] == "T"]
    assert max(row["size_max"] for row in of_t) == 300
    assert all(0 <= row["latency_ms_p50"] <= row["latency_ms_p99"] <= row["latency_ms_max"] < 60_000 for row in of_t)
    assert all(row["window_ms"] % 60_000 == 0 and before - 60_000 < row["window_ms"] for row in of_t)
    assert all(row["per_second"] == pytest.approx(row["messages"] / 60) for row in of_t)
    hot = Counter[str]()
    for row in of_t:
        hot.update({each["key"]: each["count"] for each in row["hot_keys"]})
    assert hot.most_common(1) == [("hot", 70)]

    traces = newest(rows, "traces")
    assert total(traces, side="published", topic="T", group="shop", code="all") == 110
    assert total(traces, side="published", topic="T", group="shop", code="success") == 110
    assert total(traces, "bytes", side="published", topic="U", code="all") == 500
    assert total(traces, side="published", topic="V") == 0
    assert total(traces, side="consumed", topic="T", group="readers", code="success") == 75
    assert total(traces, side="consumed", topic="T", group="readers", code="failed") == 25
    every = [row for row in traces if row["side"] == "consumed" and row["code"] == "all"]
    assert total(every, "errors") == 25
    assert all(row["error_share"] == pytest.approx(row["errors"] / row["messages"]) for row in every)
    assert all(0 <= row["end_to_end_ms_p50"] <= row["end_to_end_ms_p99"] < row["measured_ms"] - before for row in every)

    (lag,) = newest(rows, "lag")
    assert (lag["topic"], lag["group"], lag["lag"]) == ("T", "readers", 10)
    assert 0 <= lag["behind_ms"] <= lag["measured_ms"] - before

    kept = {kind: spark.read.parquet(str(folder / kind)) for kind in KEY_COLUMNS}
    assert {kind: table.count() for kind, table in kept.items()} == measured.rows == Counter(r["kind"] for r in rows)
    assert total(list(measured.recent), topic="T") == 110

    run(spark, msgspec.structs.replace(stats, traces=False, topic=None))  # the same minutes, measured later
    again = latest_measures(spark.read.parquet(str(folder / "messages")), "messages")
    assert again.count() == measured.rows["messages"]
    assert total([row.asDict() for row in again.collect()], topic="T") == 110


@pytest.mark.thorough
def test_only_the_time_span_is_measured(spark: SparkSession, platform: RunningPlatform, tmp_path: Path) -> None:
    send(platform, "T", 3)
    since = clock.now_ms() + 1
    wait_until(lambda: clock.now_ms() > since)
    send(platform, "T", 4)
    until = clock.now_ms() + 1
    wait_until(lambda: clock.now_ms() > until)
    send(platform, "T", 5)
    stats = StatsJob(
        name_servers=platform.name_servers,
        topics=("T",),
        span=JobTimeSpan(since, until),
        topic=None,
        parquet=str(tmp_path / "stats"),
        traces=False,
    )
    measured = run(spark, stats)
    assert total(list(measured.recent)) == 4
    assert on_progress(platform) == []


@pytest.mark.thorough
def test_a_second_run_continues_from_the_first(spark: SparkSession, platform: RunningPlatform, tmp_path: Path) -> None:
    send(platform, "T", 20)
    handle(platform, "T", "readers", 20)
    stats = StatsJob(name_servers=platform.name_servers, topics=("T",), checkpoint=str(tmp_path / "progress"))
    run(spark, stats)
    first = on_progress(platform)
    assert total(newest(first, "messages")) == 20
    assert total(newest(first, "traces"), side="consumed", topic="T", code="success") == 15
    send(platform, "T", 7)
    run(spark, stats)
    rows = on_progress(platform)
    assert total(newest(rows, "messages")) == 27  # earlier messages are in the sums and not read again
    assert total(newest(rows, "traces"), side="published", code="all") == 27
    assert {row["lag"] for row in newest(first, "lag")} == {0}
    assert max(row["lag"] for row in newest(rows, "lag")) == 7


def forget(checkpoint: Path) -> None:
    """Make Spark repeat the first batch, as if the driver had died before recording its commit."""
    for path in [*checkpoint.glob("commits/*"), *checkpoint.glob("offsets/*")]:
        if path.name != "0" or path.parent.name == "commits":
            path.unlink()


@pytest.mark.thorough
def test_a_repeated_batch_is_in_the_topic_once(spark: SparkSession, platform: RunningPlatform, tmp_path: Path) -> None:
    send(platform, "T", 20)
    progress = tmp_path / "progress"
    stats = StatsJob(name_servers=platform.name_servers, topics=("T",), checkpoint=str(progress), traces=False)
    run(spark, stats)
    written = Counter(row["kind"] for row in on_progress(platform))
    forget(progress / "messages")
    again = run(spark, stats)
    assert again.rows["messages"] == written["messages"]
    assert Counter(row["kind"] for row in on_progress(platform)) == written


@pytest.mark.thorough
def test_a_stream_follows_until_it_is_stopped(spark: SparkSession, platform: RunningPlatform, tmp_path: Path) -> None:
    send(platform, "T", 1)
    stats = StatsJob(
        name_servers=platform.name_servers,
        topics=("T",),
        checkpoint=str(tmp_path / "progress"),
        span=JobTimeSpan(1),
        interval_s=1,
        traces=False,
        groups=("readers",),
    )
    handle(platform, "T", "readers", 1)
    running = threading.Thread(target=run, args=(spark, stats))
    running.start()
    try:
        wait_until(_sees(platform, "messages", 1), within_s=60)
        send(platform, "T", 4)
        wait_until(_sees(platform, "messages", 5), within_s=60)
        wait_until(lambda: any(row["lag"] == 4 for row in on_progress(platform) if row["kind"] == "lag"), within_s=60)
    finally:
        for query in spark.streams.active:
            query.stop()
        running.join(30)
    assert not running.is_alive()
    assert not spark.streams.active


def _sees(platform: RunningPlatform, kind: str, count: int) -> Callable[[], bool]:
    return lambda: total(newest(on_progress(platform), kind)) == count


@pytest.mark.thorough
def test_a_stream_that_fails_stops_the_others(spark: SparkSession, platform: RunningPlatform, tmp_path: Path) -> None:
    stats = StatsJob(
        name_servers=platform.name_servers,
        topics=("nowhere",),
        checkpoint=str(tmp_path / "progress"),
        interval_s=1,
        traces=False,
    )
    with pytest.raises(SparrowError, match="nowhere"):
        run(spark, stats)
    assert not spark.streams.active


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(Refused, match="no topic selected"):
        StatsJob(name_servers="x", topics=())
    with pytest.raises(Refused, match="no output"):
        StatsJob(name_servers="x", topics=("T",), topic=None)
    with pytest.raises(Refused, match="without a checkpoint"):
        StatsJob(name_servers="x", topics=("T",), interval_s=10)
    with pytest.raises(Refused, match="no end"):
        StatsJob(name_servers="x", topics=("T",), checkpoint="here", span=JobTimeSpan(1, 2))
    with pytest.raises(Refused, match="time span is empty"):
        JobTimeSpan(2, 1)


@pytest.mark.thorough
def test_the_command_shows_the_last_minutes(spark: SparkSession, platform: RunningPlatform) -> None:
    send(platform, "T", 3, key="hot")
    done = CliRunner().invoke(
        app, ["pipeline", "stats", "T", "--name-servers", platform.name_servers, "--no-traces", "--to", "numbers"]
    )
    assert done.exit_code == 0, done.output
    assert "rows of messages, 0 rows of lag" in done.stdout
    assert total(newest(on_progress(platform, "numbers"), "messages")) == 3
    printed = CliRunner().invoke(
        app, ["pipeline", "stats", "T", "--name-servers", platform.name_servers, "--no-traces", "--json"]
    )
    assert printed.exit_code == 0, printed.output
    report = decode_printed("pipeline stats", printed.stdout)
    assert sum(minute.messages for minute in report.minutes) == 3
    assert report.minutes[0].hot_keys[0].key == "hot"

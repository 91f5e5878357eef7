"""The Spark process of `sparrow demo`: aggregates orders to revenue by city and window, exactly once.

1. It writes one `SparkStatus` per line to standard output, for the parent process. Output of Spark, Java and Python
   goes to standard error.
2. SIGTERM stops the query cleanly, and Java exits before this process.
3. The end of standard input means that the parent process is gone: it stops too, within `SHUTDOWN_TIMEOUT_S` at the
   latest. It must be the leader of a process group, so that it can kill Java.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import Literal, NoReturn

import msgspec

from sparrow.model.errors import SparrowError
from sparrow.spark.pipelines import Pipeline, Sink, Source, Step
from sparrow.spark.runtime.progress import JobProgress

ORDERS_TOPIC, REVENUE_TOPIC, SPARK_GROUP = "demo_orders", "demo_revenue", "demo_spark"
SHUTDOWN_TIMEOUT_S = 10.0
"""Without a broker Spark might retry for a minute."""
_JAVA_LEAVES_S = 5.0
_CORES = "2"
SPARK_CONF = {"spark.sql.shuffle.partitions": _CORES}


class SparkStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of the Spark process."""

    state: Literal["starting", "running", "failed"]
    rows: int = 0
    """Orders read in this run."""
    lag: int | None = None
    """Orders not read yet."""
    why: str = ""
    """One line: what failed, and what to do."""


StatusCallback = Callable[[SparkStatus], None]


def revenue_pipeline(name_servers: str, checkpoint: str) -> Pipeline:
    """Return the pipeline that sums orders and euros by city in windows of ten seconds."""
    return Pipeline(
        name="demo",
        name_servers=name_servers,
        checkpoint=checkpoint,
        trigger="2 seconds",
        sources=[
            Source(
                name="orders",
                topic=ORDERS_TOPIC,
                columns="body string, tags string, store_timestamp timestamp",
                json="cents bigint",
                watermark={"store_timestamp": "10 seconds"},
                # A demo that is started again after days continues with what retention has left.
                options={"startingOffsets": "earliest", "groupId": SPARK_GROUP, "failOnDataLoss": False},
            )
        ],
        steps=[
            Step(
                name="by_city",
                sql="""
                    SELECT tags AS city, window.start AS since, count(*) AS orders, sum(cents) / 100 AS euros
                    FROM orders
                    GROUP BY tags, window(store_timestamp, '10 seconds')
                """,
            )
        ],
        sinks=[Sink(name="revenue", input="by_city", topic=REVENUE_TOPIC, key="city", mode="update")],
    )


def main(name_servers: str, checkpoint: str) -> int:
    """Run the pipeline until SIGTERM or the end of standard input."""
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_stop_with_input, daemon=True).start()
    # Redirect the output of Java and others to standard error, so that status lines stay intact.
    status_lines = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    last_status: SparkStatus | None = None

    def report(status: SparkStatus) -> None:
        nonlocal last_status
        if status != last_status:
            last_status = status
            with suppress(BrokenPipeError):
                status_lines.write(msgspec.json.encode(status) + b"\n")

    try:
        _run(revenue_pipeline(name_servers, checkpoint), report)
    except KeyboardInterrupt:
        return 0
    except Exception as failure:
        traceback.print_exc()
        report(SparkStatus(state="failed", why=one_line_error(failure)))
        return 1
    return 0


def _run(pipeline: Pipeline, report: StatusCallback) -> None:
    from sparrow.spark.pipelines.runner import run_pipeline
    from sparrow.spark.runtime.session import spark_session

    report(SparkStatus(state="starting"))
    spark = spark_session(pipeline.name, master=f"local[{_CORES}]", options=SPARK_CONF, quick_start=True)
    gateway = spark.sparkContext._gateway
    try:
        run_pipeline(spark, pipeline, on_progress=lambda done: report(_status_of(done)))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        spark.stop()
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()  # makes Java exit
            with suppress(TimeoutExpired):
                gateway.proc.wait(_JAVA_LEAVES_S)


def _status_of(done: JobProgress) -> SparkStatus:
    return SparkStatus(state="running", rows=done.rows, lag=done.lag)


def one_line_error(failure: Exception) -> str:
    """Return the error as one line: its first line, the problem, and its last, the remedy."""
    if not isinstance(failure, SparrowError):
        return f"{type(failure).__name__}: {failure}".partition("\n")[0]
    first, *more = str(failure).splitlines()
    return f"{first.removesuffix(' Tried:')} {more[-1]}" if more else first


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the shutdown
    raise KeyboardInterrupt


def _stop_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(SHUTDOWN_TIMEOUT_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The Spark process of `sparrow demo`: aggregates orders to revenue by city and window, exactly once.

1. It writes one `SparkStatus` per line to standard output, for the parent process. Output of Spark, Java and Python
   goes to standard error.
2. SIGTERM stops the query cleanly, and Java exits before this process.
3. The end of standard input means that the parent process is gone: it stops too (`cli/pipeline/child_process`).
4. The pipeline is a file in the folder that the console shows, and its state is reported there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Literal

import msgspec

from sparrow.cli.pipeline.child_process import stop_with_input
from sparrow.model.errors import SparrowError
from sparrow.spark.pipelines import Pipeline, load
from sparrow.spark.pipelines.reporter import StatusReporter
from sparrow.spark.pipelines.status import StatusFolder
from sparrow.spark.runtime.progress import JobProgress

ORDERS_TOPIC, REVENUE_TOPIC, SPARK_GROUP = "demo_orders", "demo_revenue", "demo_spark"
_JAVA_LEAVES_S = 5.0
_CORES = "2"


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


PIPELINE_TOML = """\
# The pipeline of `sparrow demo`: orders and euros by city, in windows of ten seconds. The demo writes this file.

[pipeline]
name = "demo"
name_servers = {name_servers}
checkpoint = {checkpoint}
trigger = "2 seconds"

[pipeline.spark]
"spark.sql.shuffle.partitions" = "{cores}"

[[sources]]
name = "orders"
topic = "{orders}"
columns = "body string, tags string, store_timestamp timestamp"
json = "cents bigint"
watermark = {{ store_timestamp = "10 seconds" }}
# A demo that is started again after days continues with what retention has left.
options = {{ startingOffsets = "earliest", groupId = "{group}", failOnDataLoss = false }}

[[steps]]
name = "by_city"
sql = '''
SELECT tags AS city, window.start AS since, count(*) AS orders, sum(cents) / 100 AS euros
FROM orders
GROUP BY tags, window(store_timestamp, '10 seconds')
'''

[[sinks]]
name = "revenue"
from = "by_city"
topic = "{revenue}"
key = "city"
mode = "update"
"""


def pipeline_text(name_servers: str, checkpoint: str) -> str:
    """Return the file of the pipeline that sums orders and euros by city in windows of ten seconds."""
    return PIPELINE_TOML.format(
        name_servers=json.dumps(name_servers),
        checkpoint=json.dumps(checkpoint),
        cores=_CORES,
        orders=ORDERS_TOPIC,
        group=SPARK_GROUP,
        revenue=REVENUE_TOPIC,
    )


def main(file: str, status_folder: str) -> int:
    """Run the pipeline of a file until SIGTERM, the end of standard input, or a request to stop."""
    stop_with_input()
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
        _run(load(file), StatusFolder(Path(status_folder)), report)
    except KeyboardInterrupt:
        return 0
    except Exception as failure:
        traceback.print_exc()
        report(SparkStatus(state="failed", why=one_line_error(failure)))
        return 1
    report(SparkStatus(state="failed", why="it was stopped; the page Pipelines of the console starts it again"))
    return 0


def _run(pipeline: Pipeline, folder: StatusFolder, report: StatusCallback) -> None:
    with StatusReporter(folder, pipeline) as reporter:
        report(SparkStatus(state="starting"))
        _run_on_spark(pipeline, reporter, report)


def _run_on_spark(pipeline: Pipeline, reporter: StatusReporter, report: StatusCallback) -> None:
    from sparrow.spark.pipelines.frames import option_strings
    from sparrow.spark.pipelines.runner import run_pipeline
    from sparrow.spark.runtime.session import spark_session

    options = option_strings(pipeline.spark)
    spark = spark_session(pipeline.name, master=f"local[{_CORES}]", options=options, quick_start=True)
    gateway = spark.sparkContext._gateway
    try:
        run_pipeline(spark, pipeline, on_progress=lambda done: report(_status_of(done)), reporter=reporter)
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

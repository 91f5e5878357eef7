"""Declared pipelines for tests of the console, one of which reports batches as Spark describes them, without Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from sparrow.spark.pipelines.definition import load
from sparrow.spark.pipelines.reporter import StatusReporter
from sparrow.spark.pipelines.status import StatusFolder

REVENUE, NIGHTLY, BROKEN = "revenue", "nightly", "broken"
BATCHES, QUEUES, BATCH_ROWS = 40, 4, 250

_FILE = """
[pipeline]
name = "{name}"
checkpoint = "{folder}/checkpoint"
trigger = "{trigger}"

[[sources]]
name = "orders"
topic = "orders"
columns = "body string, tags string, store_timestamp timestamp"

[[steps]]
name = "by_city"
sql = "SELECT tags AS city, count(*) AS orders FROM orders GROUP BY tags"

[[sinks]]
name = "revenue"
from = "by_city"
topic = "order_revenue"
mode = "update"
"""


class ReportedQuery:
    """What the reporter asks a streaming query."""

    def __init__(self, name: str) -> None:
        self.id, self.name, self.isActive = str(uuid.uuid4()), name, True


def declare_pipelines(folder: Path) -> None:
    """Write the files of two pipelines, and one that is not valid."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "revenue.toml").write_text(_FILE.format(name=REVENUE, folder=folder, trigger="2 seconds"))
    (folder / "nightly.toml").write_text(_FILE.format(name=NIGHTLY, folder=folder, trigger="available-now"))
    (folder / "broken.toml").write_text('[pipeline]\nname = "broken"\n')


def batch(number: int, *, query: ReportedQuery, began: datetime) -> StreamingQueryProgress:
    """Return a batch as Spark reports it: all queues have been read but for a few messages."""
    offsets = {f"orders/sparrow/{queue}": (number + 1) * BATCH_ROWS // QUEUES for queue in range(QUEUES)}
    latest = {name: offset + 3 for name, offset in offsets.items()}
    source: dict[str, Any] = {
        "description": "SparrowSource[orders]",
        "startOffset": None,
        "endOffset": json.dumps({"v": 1, "q": offsets, "from": {}}),
        "latestOffset": json.dumps({"v": 1, "q": latest, "from": {}}),
        "numInputRows": BATCH_ROWS,
        "inputRowsPerSecond": 125.0,
        "processedRowsPerSecond": 431.5,
    }
    progress = {
        "id": query.id,
        "runId": str(uuid.uuid4()),
        "name": query.name,
        "timestamp": f"{began:%Y-%m-%dT%H:%M:%S}.{began.microsecond // 1000:03d}Z",
        "batchId": number,
        "batchDuration": 400 + (number * 137) % 300,
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
        "numInputRows": BATCH_ROWS,
        "inputRowsPerSecond": 125.0,
        "processedRowsPerSecond": 431.5,
    }
    return StreamingQueryProgress.fromJson(progress)


@contextmanager
def reporting_pipeline(folder: Path) -> Iterator[StatusReporter]:
    """Report the pipeline `revenue` as running, until the end or until it is asked to stop."""
    query = ReportedQuery(f"{REVENUE}.revenue")
    began = datetime.now(UTC) - timedelta(seconds=2 * BATCHES)
    with StatusReporter(StatusFolder(folder / "status"), load(folder / "revenue.toml")) as reporter:
        reporter.begin()
        batches = [batch(number, query=query, began=began + timedelta(seconds=2 * number)) for number in range(BATCHES)]
        reporter.report(query, batches)  # type: ignore[arg-type]
        yield reporter

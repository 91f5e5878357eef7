"""`QueryMetrics`: batches, rows and lag of the streaming queries of a Spark session, for `/metrics`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparrow.spark.runtime.progress import query_lag
from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metric import Family
from sparrow.telemetry.metrics import spark as metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES_MAX = 1_000
"""Queries that are kept; the names of queries come from the application."""


class _QueryState:
    """What was read of one query."""

    def __init__(self) -> None:
        self.last_timestamp = ""
        self.batches = self.rows = 0
        self.lag: int | None = None
        self.seconds = DurationHistogram(metrics.BATCH_BOUNDS_S)
        self.is_active = True


class QueryMetrics:
    """The metrics of the streaming queries of a session.

    Spark keeps the last hundred batches of a query; scrape more often than a hundred batches take.

    ```python
    with HealthServer(port=8080, metrics=[QueryMetrics(spark)]):
        query.awaitTermination()
    ```
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, _QueryState] = {}
        self._reading = threading.Lock()

    async def prepare(self) -> None:
        """Read the progress of the queries, in a thread: each call goes to the JVM."""
        await asyncio.to_thread(self.read)

    def read(self) -> None:
        """Read the progress of the queries."""
        with self._reading:
            active = list(self._spark.streams.active)
            running = set()
            for query in active:
                name = query.name or query.id
                running.add(name)
                if name in self._queries or len(self._queries) < QUERIES_MAX:
                    state = self._queries.setdefault(name, _QueryState())
                    for progress in query.recentProgress:
                        _add(state, progress)
            for name, state in self._queries.items():
                state.is_active = name in running

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        queries = list(self._queries.items())
        yield Family(metrics.ACTIVE, [((name,), int(state.is_active)) for name, state in queries])
        yield Family(metrics.BATCHES, [((name,), state.batches) for name, state in queries])
        yield Family(metrics.ROWS, [((name,), state.rows) for name, state in queries])
        yield Family(metrics.LAG, [((name,), state.lag) for name, state in queries if state.lag is not None])
        yield Family(metrics.BATCH_SECONDS, [((name,), state.seconds.value) for name, state in queries])


def _add(state: _QueryState, progress: Any) -> None:
    """Add a batch. Its timestamp is its start, and grows."""
    if progress.timestamp <= state.last_timestamp:
        return
    state.last_timestamp = progress.timestamp
    state.batches += 1
    state.rows += progress.numInputRows
    state.lag = query_lag(progress)
    state.seconds.add(progress.batchDuration / 1000)

"""What a task tells the driver when it has written its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage


class WriteId(NamedTuple):
    """What is written once: a batch of a query and one of its sinks, or a job. Brokers note how far a scope has got."""

    scope: str
    number: int


class StagedRows(NamedTuple):
    """Rows that lie ready on a broker."""

    broker: str
    topic: str
    """One of those the rows are for, by which the broker is found."""
    stage: str
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    transaction: WriteId
    partition: int
    rows: int
    stages: tuple[StagedRows, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    """Brokers that rows could have gone to, each with a topic by which it is found."""

"""Commit messages: what a task reports to the driver after it has written its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage


class WriteId(NamedTuple):
    """Identity of a write in the brokers' ledgers: a query and sink with the batch number, or a job."""

    scope: str
    number: int


class StagedRows(NamedTuple):
    """Rows that a task has staged on a broker."""

    broker: str
    topic: str
    """A topic of the rows. Its route gives the broker's address."""
    stage: str
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The commit message of one task."""

    write_id: WriteId
    partition: int
    rows: int
    stages: tuple[StagedRows, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    """Each broker that rows could go to, with a topic whose route contains it."""

"""An archive back into topics: the same messages, byte for byte, in the order of their queues.

What is new is what a broker gives: offsets, store time, and the host that it comes from. The work is known by its
arguments: running it again, after a failure or by mistake, writes nothing twice. All of it becomes visible at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.spark.jobs.archive import read_archive
from sparrow.spark.jobs.copy.message_copy import READ_COLUMNS, CopyResult, CopyTarget, copy_messages, count_by_queue
from sparrow.spark.jobs.copy.selection import MessageSelection, select_messages
from sparrow.spark.jobs.job_keys import derive_job_key
from sparrow.spark.runtime.progress import ProgressCallback, watch_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RestoreJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to restore, and where to."""

    name_servers: str
    path: str
    """Of an archive."""
    selection: MessageSelection = MessageSelection()
    to: str | None = None
    """One topic for all of it; else each message goes to the topic it came from."""
    job_key: str | None = None
    """Another name for the work than its arguments: so that it may be done once more."""
    options: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.to is not None and len(self.selection.topics) > 1:
            raise Refused("several topics would become one: restore them one by one, or to their own names")

    @property
    def key(self) -> str:
        # Who runs it with which token makes no difference.
        return self.job_key or derive_job_key("restore", msgspec.structs.replace(self, options={}))


def run(
    spark: SparkSession, restore: RestoreJob, *, dry_run: bool = False, on_progress: ProgressCallback
) -> CopyResult:
    """Restore it; `dry_run` only counts."""
    messages = read_selected(spark, restore)
    with watch_job(spark, on_progress, what="count"):
        counts = count_by_queue(messages)
    if dry_run:
        return CopyResult(counts, 0)
    if restore.to is not None and len({count.queue.topic for count in counts}) > 1:
        raise Refused("the archive has several topics: name the one that is to be restored")
    target = CopyTarget(
        name_servers=restore.name_servers, topic=restore.to, job_key=restore.key, options=restore.options
    )
    return copy_messages(spark, messages, counts, target, on_progress=on_progress)


def read_selected(spark: SparkSession, restore: RestoreJob) -> DataFrame:
    return select_messages(read_archive(spark, restore.path), restore.selection).select(*READ_COLUMNS)

"""Restore job: write archived messages to topics again, byte for byte and in the order of their queues.

Only what a broker assigns is new: offset, store time and born host. The job is identified by its arguments: running it
again writes nothing twice. All messages become visible at once.
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
    """Arguments of the restore job."""

    name_servers: str
    """The cluster to write to, which need not be the one that was archived."""
    path: str
    """The folder of an archive."""
    selection: MessageSelection = MessageSelection()
    to: str | None = None
    """One target topic; None: the topic of the original."""
    job_key: str | None = None
    """Replaces the key derived from the arguments, so that the job can run again."""
    options: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.to is not None and len(self.selection.topics) > 1:
            raise Refused(
                "several topics cannot be restored to one: restore them one by one, or without a target topic"
            )

    @property
    def key(self) -> str:
        # The token that runs the job makes no difference.
        """The job key, by which brokers detect a repeated run."""
        return self.job_key or derive_job_key("restore", msgspec.structs.replace(self, options={}))


def run(
    spark: SparkSession, restore: RestoreJob, *, dry_run: bool = False, on_progress: ProgressCallback
) -> CopyResult:
    """Restore the messages; with `dry_run` only count them."""
    messages = read_selected(spark, restore)
    with watch_job(spark, on_progress, what="count"):
        counts = count_by_queue(messages)
    if dry_run:
        return CopyResult(counts, 0)
    if restore.to is not None and len({count.queue.topic for count in counts}) > 1:
        raise Refused("the archive contains several topics, but there is one target topic: select one topic")
    target = CopyTarget(
        name_servers=restore.name_servers, topic=restore.to, job_key=restore.key, options=restore.options
    )
    return copy_messages(spark, messages, counts, target, on_progress=on_progress)


def read_selected(spark: SparkSession, restore: RestoreJob) -> DataFrame:
    """Return the selected messages of the archive."""
    return select_messages(read_archive(spark, restore.path), restore.selection).select(*READ_COLUMNS)

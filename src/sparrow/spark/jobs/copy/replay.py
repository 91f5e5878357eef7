"""Messages once more: a part of a live topic or of an archive, to another topic, or to one group.

A replayed message keeps its id, and everything else, and says where it comes from:

    REPLAY_ID    the name of the replay
    REPLAY_OF    topic/broker/queue/offset of the original

1. To a group, copies go to its retry topic, which its members read besides their own topics; there they have their
   topic's name again. So it also works for messages that are only in an archive. A group that pops reads other retry
   topics: for that, and where no copy is wanted, there is `sparrow resend`.
2. As with `restore`, the work is known by its arguments, is done once, and appears all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.model.errors import Refused, UnknownGroup
from sparrow.model.protocol import PROPERTY_RESENT, PROPERTY_RETRY_TOPIC, RETRY_TOPIC_PREFIX
from sparrow.spark.client_pool import CLIENT_POOL
from sparrow.spark.jobs.archive import read_archive
from sparrow.spark.jobs.copy.message_copy import (
    COLUMNS,
    COUNT_COLUMNS,
    CopyResult,
    CopyTarget,
    check_any_selected,
    copy_messages,
    count_by_queue,
)
from sparrow.spark.jobs.copy.selection import MessageSelection, select_messages
from sparrow.spark.options import parse_client_options, select_client_options
from sparrow.spark.runtime.filesystem import derive_job_key
from sparrow.spark.runtime.progress import ProgressCallback, watch_job
from sparrow.spark.source.schema import COLUMN_TYPES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAY_ID, REPLAY_OF = "REPLAY_ID", "REPLAY_OF"


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay, and to whom."""

    name_servers: str
    selection: MessageSelection
    archive: str | None = None
    """A folder; else the topics are read from the brokers."""
    to: str | None = None
    """A topic."""
    to_group: str | None = None
    """Or a group."""
    replay_id: str | None = None
    """Under this name; else one that its arguments make."""
    options: dict[str, str] = {}

    def __post_init__(self) -> None:
        if (self.to is None) == (self.to_group is None):
            raise Refused("say where the messages go: to a topic, or to a group")
        if self.archive is None and not self.selection.topics:
            raise Refused("say which topic is to be replayed")
        if self.archive is None and self.to in self.selection.topics:
            raise Refused(f"replaying {self.to!r} into itself would double it: name another topic, or a group")

    @property
    def key(self) -> str:
        return self.replay_id or derive_job_key("replay", msgspec.structs.replace(self, options={}))

    @property
    def target(self) -> CopyTarget:
        topic = self.to if self.to is not None else f"{RETRY_TOPIC_PREFIX}{self.to_group}"
        return CopyTarget(name_servers=self.name_servers, topic=topic, job_key=self.key, options=self.options)


def run(spark: SparkSession, replay: ReplayJob, *, dry_run: bool = False, told: ProgressCallback) -> CopyResult:
    """Replay it; `dry_run` only counts."""
    with watch_job(spark, told, what="count"):
        counts = count_by_queue(read_selected(spark, replay, COUNT_COLUMNS))
    if dry_run:
        return CopyResult(counts, 0)
    check_any_selected(counts, replay.archive or ", ".join(replay.selection.topics))
    if replay.to_group is not None:
        _check_group(replay, replay.to_group)
    messages = read_selected(spark, replay, COLUMNS)
    raw = replay_properties(replay.key, to_group=replay.to_group is not None)
    return copy_messages(
        spark, messages, counts, replay.target, told=told, raw=raw, one_queue=replay.to_group is not None
    )


def _check_group(replay: ReplayJob, group: str) -> None:
    """A retry topic of a name with a mistake in it would be made, and nobody would read it."""
    link = CLIENT_POOL.to(parse_client_options(replay.name_servers, select_client_options(replay.options)))
    if group not in link.run(Admin(session=link.session).groups()):
        raise UnknownGroup(group)


def read_selected(spark: SparkSession, replay: ReplayJob, columns: tuple[str, ...]) -> DataFrame:
    """The messages that are meant, with these columns."""
    if replay.archive is not None:
        return select_messages(read_archive(spark, replay.archive), replay.selection).select(*columns)
    selection = replay.selection
    said = {
        "nameserver": replay.name_servers,
        "subscribe": ",".join(selection.topics),
        "decompress": "false",
        **replay.options,
    }
    if selection.from_ms is not None:
        said |= {"startingTimestamp": str(selection.from_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if selection.to_ms is not None:
        said["endingTimestamp"] = str(selection.to_ms)
    if (selection.queue_id is not None or selection.offsets is not None) and _can_push(spark):
        said["pushdown"] = "true"  # reads only the part that is meant
    schema = ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in columns)
    messages = spark.read.format("sparrow").schema(schema).options(**said).load()
    return select_messages(messages, msgspec.structs.replace(selection, topics=()))


def _can_push(spark: SparkSession) -> bool:
    return spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"


def replay_properties(replay_id: str, *, to_group: bool) -> Column:
    """The property string of a message with what a replay adds; for a group also what makes a retry of it."""
    from pyspark.sql import functions as F

    start = F.coalesce("properties_raw", F.lit(""))
    is_open = (F.length(start) > 0) & ~F.endswith(start, F.lit("\x02"))
    place = F.concat_ws("/", "topic", "broker", "queue_id", "queue_offset")
    added = {REPLAY_ID: F.lit(replay_id), REPLAY_OF: place}
    if to_group:
        added |= {PROPERTY_RETRY_TOPIC: F.col("topic"), PROPERTY_RESENT: F.lit("true")}
    words = [word for name, value in added.items() for word in (F.lit(f"{name}\x01"), value, F.lit("\x02"))]
    return F.concat(start, F.when(is_open, "\x02").otherwise(""), *words)

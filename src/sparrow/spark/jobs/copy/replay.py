"""Replay job: write messages of a topic or an archive again, to another topic or to one consumer group.

A replayed message keeps its id, properties and body, and gets two more properties:

    REPLAY_ID    the name of the replay
    REPLAY_OF    topic/broker/queue id/offset of the original

1. For a group, copies go to its retry topic, which its members read besides their subscriptions, and which gives
   messages the name of their own topic. This works for messages that exist only in an archive, too. Groups that use pop
   read other retry topics: use `sparrow resend` for them, or if no copies are wanted.
2. As with `restore`, a job is identified by its arguments, runs once, and becomes visible at once.
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
    COUNT_COLUMNS,
    READ_COLUMNS,
    CopyResult,
    CopyTarget,
    check_any_selected,
    copy_messages,
    count_by_queue,
)
from sparrow.spark.jobs.copy.selection import MessageSelection, select_messages
from sparrow.spark.jobs.job_keys import derive_job_key
from sparrow.spark.jobs.target_cluster import is_same_cluster
from sparrow.spark.options import parse_client_options
from sparrow.spark.runtime.progress import ProgressCallback, watch_job
from sparrow.spark.source.schema import COLUMN_TYPES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAY_ID, REPLAY_OF = "REPLAY_ID", "REPLAY_OF"


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the replay job."""

    name_servers: str
    selection: MessageSelection
    archive: str | None = None
    """The folder of an archive; None: read from the brokers."""
    to: str | None = None
    """The target topic."""
    to_group: str | None = None
    """The target group; an alternative to `to`."""
    to_name_servers: str | None = None
    """The name servers of the target; None: `name_servers`."""
    replay_id: str | None = None
    """The name of the replay; by default derived from the arguments."""
    options: dict[str, str] = {}
    """Client options, `sparrow.*`."""
    to_options: dict[str, str] = {}
    """Client options that differ for the brokers of the target."""

    def __post_init__(self) -> None:
        if (self.to is None) == (self.to_group is None):
            raise Refused("the target is missing or ambiguous: set either a topic or a group")
        if self.archive is None and not self.selection.topics:
            raise Refused("no topic selected: name the topic to replay")
        if self.to_name_servers is None and self.is_source_named_like_target:
            raise Refused(_into_itself(self.to))

    @property
    def key(self) -> str:
        """The job key, by which brokers detect a repeated run."""
        if self.replay_id:
            return self.replay_id
        identity = msgspec.structs.asdict(msgspec.structs.replace(self, options={}))
        # These came later: without them the key is that of version 0.2.0, so that a job that was done stays done.
        del identity["to_options"]
        if self.to_name_servers is None:
            del identity["to_name_servers"]
        return derive_job_key("replay", identity)

    @property
    def target(self) -> CopyTarget:
        """The target of the copies."""
        topic = self.to if self.to is not None else f"{RETRY_TOPIC_PREFIX}{self.to_group}"
        return CopyTarget(
            name_servers=self.to_name_servers or self.name_servers,
            topic=topic,
            job_key=self.key,
            options=self.options | self.to_options,
        )

    @property
    def is_source_named_like_target(self) -> bool:
        """Whether a source topic has the name of the target topic, which only another cluster allows."""
        return self.archive is None and self.to in self.selection.topics


def _into_itself(topic: str | None) -> str:
    return f"topic {topic!r} cannot be replayed into itself: use another topic, a group, or another cluster"


def run(spark: SparkSession, replay: ReplayJob, *, dry_run: bool = False, on_progress: ProgressCallback) -> CopyResult:
    """Replay the messages; with `dry_run` only count them."""
    if replay.to is not None and replay.is_source_named_like_target:
        source = parse_client_options(replay.name_servers, replay.options)
        if is_same_cluster(replay.to, source, replay.target.client):
            raise Refused(_into_itself(replay.to))
    with watch_job(spark, on_progress, what="count"):
        counts = count_by_queue(read_selected(spark, replay, COUNT_COLUMNS))
    if dry_run:
        return CopyResult(counts, 0)
    check_any_selected(counts, replay.archive or ", ".join(replay.selection.topics))
    if replay.to_group is not None:
        _check_group(replay, replay.to_group)
    messages = read_selected(spark, replay, READ_COLUMNS)
    raw = replay_properties(replay.key, to_group=replay.to_group is not None)
    return copy_messages(
        spark, messages, counts, replay.target, on_progress=on_progress, raw=raw, one_queue=replay.to_group is not None
    )


def _check_group(replay: ReplayJob, group: str) -> None:
    """Check that the group exists. For a misspelled name a retry topic would be created that no consumer reads."""
    client = CLIENT_POOL.get(replay.target.client)
    if group not in client.run(Admin(session=client.session).groups()):
        raise UnknownGroup(group)


def read_selected(spark: SparkSession, replay: ReplayJob, columns: tuple[str, ...]) -> DataFrame:
    """Return these columns of the selected messages."""
    if replay.archive is not None:
        return select_messages(read_archive(spark, replay.archive), replay.selection).select(*columns)
    selection = replay.selection
    options = {
        "nameServers": replay.name_servers,
        "subscribe": ",".join(selection.topics),
        "decompress": "false",
        **replay.options,
    }
    if selection.from_ms is not None:
        options |= {"startingTimestamp": str(selection.from_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if selection.to_ms is not None:
        options["endingTimestamp"] = str(selection.to_ms)
    if (selection.queue_id is not None or selection.offsets is not None) and _can_push_down(spark):
        options["pushdown"] = "true"  # reads only the selected part
    schema = ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in columns)
    messages = spark.read.format("sparrow").schema(schema).options(**options).load()
    return select_messages(messages, msgspec.structs.replace(selection, topics=()))


def _can_push_down(spark: SparkSession) -> bool:
    return spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"


def replay_properties(replay_id: str, *, to_group: bool) -> Column:
    """Return the property string of a replayed message. For a group it includes the properties of a retry."""
    from pyspark.sql import functions as F

    start = F.coalesce("properties_raw", F.lit(""))
    is_open = (F.length(start) > 0) & ~F.endswith(start, F.lit("\x02"))
    position = F.concat_ws("/", "topic", "broker", "queue_id", "queue_offset")
    added = {REPLAY_ID: F.lit(replay_id), REPLAY_OF: position}
    if to_group:
        added |= {PROPERTY_RETRY_TOPIC: F.col("topic"), PROPERTY_RESENT: F.lit("true")}
    parts = [part for name, value in added.items() for part in (F.lit(f"{name}\x01"), value, F.lit("\x02"))]
    return F.concat(start, F.when(is_open, "\x02").otherwise(""), *parts)

"""Sent = stored = handled? By topic, group and hour, with the ids for which it is not so.

1. Messages are the same when they have the same id. An id belongs to the hour in which it was sent; if nobody knows, to
   the one in which it was stored.
2. Only ids of the span are judged, but sides are looked at from a little before it, and up to now: what was sent in its
   last second may be stored and handled behind its end.
3. A handler that fails and succeeds later has handled a message once.
4. The report lists a few ids of each finding and hour; the Parquet tables hold all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.model.protocol import TRACE_TOPIC
from sparrow.spark.jobs.audit import sources as sides
from sparrow.spark.jobs.audit.findings import (
    GROUP_FINDINGS,
    AuditFinding,
    count_by_hour,
    judge_ids,
    list_findings,
    sample_ids,
)
from sparrow.spark.jobs.audit.sources import ID, KEYS, NONE, PROPERTY, TOPIC, TRACE
from sparrow.spark.jobs.time_span import JobTimeSpan, open_broker_metadata, read_time_span
from sparrow.spark.jobs.trace_records import TRACE_MESSAGE_SCHEMA, explode_records
from sparrow.spark.runtime.filesystem import join_path
from sparrow.spark.runtime.progress import ProgressCallback, watch_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class AuditJob(msgspec.Struct, frozen=True, kw_only=True):
    name_servers: str
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    """None: handling is not looked at."""
    span: JobTimeSpan = JobTimeSpan()
    sent: str = TRACE
    """`trace`, `none`, `topic:NAME`, or a path of a table."""
    handled: str = TRACE
    match: str = ID
    """What a message is known by: `msg_id`, `keys` or `property:NAME`."""
    id_column: str = "msg_id"
    """Of tables."""
    tags: tuple[str, ...] = ()
    """Only messages with one of them: what the groups subscribe to."""
    margin_ms: int = 600_000
    """How far before the span sides are looked at."""
    ids_max: int = 20
    """In the report, for each finding of an hour."""
    parquet: str | None = None
    """A folder for the tables `hours` and `findings`; what is there is replaced."""
    options: dict[str, str] = {}
    """Of the client, `sparrow.*`."""

    def __post_init__(self) -> None:
        if not self.topics:
            raise Refused("say which topics to audit")
        if self.match not in (ID, KEYS) and self.match.removeprefix(PROPERTY) in ("", self.match):
            raise Refused(f"a message is known by {ID}, {KEYS} or {PROPERTY}NAME, not by {self.match!r}")
        if self.match.startswith(PROPERTY) and TRACE in (self.sent, self.handled if self.groups else NONE):
            raise Refused("traces hold ids and keys of messages, but no properties: give tables of ids")
        if self.tags and self.sent not in (TRACE, NONE):
            raise Refused("a table of what was sent says nothing of tags: leave them out, and give the ids that count")


class FindingIds(msgspec.Struct, frozen=True):
    count: int
    first: tuple[str, ...]
    """In alphabetical order, and no more than asked for."""


class AuditHour(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    group: str | None
    hour_ms: int | None
    """When it began; None: ids of a table without times that are not stored."""
    sent: int | None
    """None: nobody knows."""
    stored: int
    handled: int | None
    ok: int
    """Ids without a finding."""
    findings: dict[str, FindingIds]


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    hours: tuple[AuditHour, ...]
    without_id: int
    """Messages that cannot be judged, because nothing tells them apart."""
    elsewhere: int
    """Ids that the groups handled and that are of no message here: of other topics, or older."""
    notes: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not any(hour.findings for hour in self.hours)


# -- the run ----------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, audit: AuditJob, *, told: ProgressCallback = lambda done: None) -> AuditReport:
    from pyspark.sql import functions as F

    notes = _checked(audit)
    with watch_job(spark, told, what="audit"):
        messages = sides.with_match_id(_read(spark, audit, audit.topics, sides.stored_schema(audit.match)), audit.match)
        traces = explode_records(_read(spark, audit, [TRACE_TOPIC], TRACE_MESSAGE_SCHEMA, **_EVERY_TAG))
        rows = judge_ids(
            sides.stored_ids(messages),
            _sent(spark, audit, traces),
            _handled(spark, audit, traces) if audit.groups else None,
            audit.groups,
            audit.span,
        ).persist()
        try:
            hours, findings = count_by_hour(rows), list_findings(rows)
            if audit.parquet is not None:
                hours.write.mode("overwrite").parquet(join_path(audit.parquet, "hours"))
                findings.write.mode("overwrite").parquet(join_path(audit.parquet, "findings"))
            few = sample_ids(findings, audit.ids_max)
            told_hours = _millis(hours).orderBy("topic", "group", "hour").collect()
            ids = {
                (row.topic, row.group, row.hour, row.finding): tuple(row.ids)
                for row in _millis(few).collect()  # at most `ids_max` for each line of the report
            }
            (left_out,) = rows.select(
                F.sum(F.when(F.col("msg_id").isNull(), F.col("stored"))).alias("without_id"),
                F.count_distinct(F.when(F.col("topic").isNull(), F.col("msg_id"))).alias("elsewhere"),
            ).collect()
        finally:
            rows.unpersist()
    return AuditReport(
        hours=tuple(_hour(row, ids) for row in told_hours),
        without_id=(left_out.without_id or 0) // max(1, len(audit.groups)),  # each group has a row
        elsewhere=left_out.elsewhere,
        notes=tuple(notes),
    )


_EVERY_TAG = {"tags": "*"}


def _read(spark: SparkSession, audit: AuditJob, topics: Sequence[str], schema: str, **options: str) -> DataFrame:
    said = {"tags": " || ".join(audit.tags) or "*", **audit.options, **options}
    span = audit.span.wider(before_ms=audit.margin_ms)
    return read_time_span(spark, span, topics, schema, name_servers=audit.name_servers, options=said)


def _table(spark: SparkSession, audit: AuditJob, where: str) -> DataFrame:
    if where.startswith(TOPIC):
        schema = "body binary, store_timestamp timestamp"
        return sides.read_id_topic(_read(spark, audit, [where.removeprefix(TOPIC)], schema, **_EVERY_TAG))
    return sides.read_id_table(spark, where)


def _sent(spark: SparkSession, audit: AuditJob, traces: DataFrame) -> DataFrame | None:
    if audit.sent == NONE:
        return None
    if audit.sent == TRACE:
        return sides.sent_in_traces(traces, audit.topics, audit.match, audit.tags)
    return sides.sent_in_table(_table(spark, audit, audit.sent), audit.topics, _id_column(audit, audit.sent))


def _handled(spark: SparkSession, audit: AuditJob, traces: DataFrame) -> DataFrame:
    if audit.handled == TRACE:
        return sides.handled_in_traces(traces, audit.groups, audit.match)
    return sides.handled_in_table(_table(spark, audit, audit.handled), audit.groups, _id_column(audit, audit.handled))


def _id_column(audit: AuditJob, where: str) -> str:
    return "msg_id" if where.startswith(TOPIC) else audit.id_column


def _checked(audit: AuditJob) -> list[str]:
    """What the report should say beforehand; refused: what cannot be found out."""
    if audit.groups and audit.handled == NONE:
        raise Refused("say who knows what the groups handled, or leave the groups out")
    places = open_broker_metadata(audit.name_servers, audit.options)
    traced = [side for side, said in (("sent", audit.sent), ("handled", audit.handled)) if said == TRACE]
    if not audit.groups and "handled" in traced:
        traced.remove("handled")
    if traced and TRACE_TOPIC not in places.topics():
        raise Refused(
            f"there are no traces to tell what was {' and '.join(traced)}: open clients with trace=True, or give "
            f"tables of ids; --sent none leaves out what was sent"
        )
    heads = places.heads(audit.topics, is_fresh=True, without_absent=False)
    eaten = sorted({queue.topic for queue, head in heads.items() if head.first > 0})
    if eaten and audit.span.since_ms is None:
        return [f"retention has taken the oldest messages of {', '.join(eaten)}: say since when, or they seem missing"]
    return []


def _millis(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("hour", F.unix_millis("hour"))


def _hour(row: object, ids: dict[tuple[str, str | None, int | None, str], tuple[str, ...]]) -> AuditHour:
    said = row.asDict()  # type: ignore[attr-defined]
    findings = {}
    for finding in AuditFinding:
        if said[finding]:
            group = said["group"] if finding in GROUP_FINDINGS else None
            findings[finding.value] = FindingIds(said[finding], ids[said["topic"], group, said["hour"], finding.value])
    return AuditHour(
        topic=said["topic"],
        group=said["group"],
        hour_ms=said["hour"],
        findings=findings,
        **{name: said[name] for name in ("sent", "stored", "handled", "ok")},
    )

"""Audit job: check by topic, group and hour that every sent message is stored and handled once; list exceptions.

1. Messages are matched by id. An id belongs to the hour in which it was sent or, if that is unknown, stored.
2. Only ids in the span are judged, but data is read from a little before the span until now: a message sent in its last
   second may be stored and handled after its end.
3. A message whose handler fails and later succeeds is handled once.
4. The report lists a few ids of each finding and hour; the Parquet tables contain all.
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
from sparrow.spark.jobs.audit.report import AuditHour, AuditReport, FindingIds
from sparrow.spark.jobs.audit.sources import (
    FROM_NOTHING,
    FROM_TRACE,
    MATCH_KEYS,
    MATCH_MSG_ID,
    MATCH_PROPERTY_PREFIX,
    TOPIC_PREFIX,
)
from sparrow.spark.jobs.time_span import JobTimeSpan, open_broker_metadata, read_time_span
from sparrow.spark.jobs.trace_records import TRACE_MESSAGE_SCHEMA, explode_records
from sparrow.spark.runtime.filesystem import join_path
from sparrow.spark.runtime.progress import ProgressCallback, watch_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class AuditJob(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the audit job."""

    name_servers: str
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    """Empty: handling is not audited."""
    span: JobTimeSpan = JobTimeSpan()
    sent: str = FROM_TRACE
    """`trace`, `none`, `topic:NAME`, or the path of a table."""
    handled: str = FROM_TRACE
    match: str = MATCH_MSG_ID
    """What identifies a message: `msg_id`, `keys` or `property:NAME`."""
    id_column: str = "msg_id"
    """The column with the ids, in tables."""
    tags: tuple[str, ...] = ()
    """Only messages with one of these tags; use the tags that the groups subscribe to."""
    margin_ms: int = 600_000
    """How far before the span data is read."""
    ids_max: int = 20
    """Maximum ids in the report for each finding and hour."""
    parquet: str | None = None
    """A folder for the tables `hours` and `findings`, which are replaced."""
    options: dict[str, str] = {}
    """Client options, `sparrow.*`."""

    def __post_init__(self) -> None:
        if not self.topics:
            raise Refused("no topic selected: name the topics to audit")
        if self.match not in (MATCH_MSG_ID, MATCH_KEYS) and self.match.removeprefix(MATCH_PROPERTY_PREFIX) in (
            "",
            self.match,
        ):
            raise Refused(
                f"cannot match messages by {self.match!r}: use {MATCH_MSG_ID}, {MATCH_KEYS} or "
                f"{MATCH_PROPERTY_PREFIX}NAME"
            )
        if self.match.startswith(MATCH_PROPERTY_PREFIX) and FROM_TRACE in (
            self.sent,
            self.handled if self.groups else FROM_NOTHING,
        ):
            raise Refused(
                "traces contain no properties, so messages cannot be matched by a property: give tables of ids with "
                "--sent and --handled"
            )
        if self.tags and self.sent not in (FROM_TRACE, FROM_NOTHING):
            raise Refused(
                "tags cannot be combined with a table of sent ids, which has no tags: leave the tags out, and give a "
                "table of the relevant ids"
            )


# -- running ----------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, audit: AuditJob, *, on_progress: ProgressCallback = lambda done: None) -> AuditReport:
    """Run the audit."""
    from pyspark.sql import functions as F

    notes = _check_sources(audit)
    with watch_job(spark, on_progress, what="audit"):
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
            samples = sample_ids(findings, audit.ids_max)
            hour_rows = _hour_in_ms(hours).orderBy("topic", "group", "hour").collect()
            ids = {
                (row.topic, row.group, row.hour, row.finding): tuple(row.ids)
                for row in _hour_in_ms(samples).collect()  # at most `ids_max` for each line of the report
            }
            (left_out,) = rows.select(
                F.sum(F.when(F.col("msg_id").isNull(), F.col("stored"))).alias("without_id"),
                F.count_distinct(F.when(F.col("topic").isNull(), F.col("msg_id"))).alias("elsewhere"),
            ).collect()
        finally:
            rows.unpersist()
    return AuditReport(
        hours=tuple(_hour(row, ids) for row in hour_rows),
        without_id=(left_out.without_id or 0) // max(1, len(audit.groups)),  # one row per group
        elsewhere=left_out.elsewhere,
        notes=tuple(notes),
    )


_EVERY_TAG = {"tags": "*"}


def _read(spark: SparkSession, audit: AuditJob, topics: Sequence[str], schema: str, **options: str) -> DataFrame:
    read_options = {"tags": " || ".join(audit.tags) or "*", **audit.options, **options}
    span = audit.span.extend(before_ms=audit.margin_ms)
    return read_time_span(spark, span, topics, schema, name_servers=audit.name_servers, options=read_options)


def _table(spark: SparkSession, audit: AuditJob, where: str) -> DataFrame:
    if where.startswith(TOPIC_PREFIX):
        schema = "body binary, store_timestamp timestamp"
        return sides.read_id_topic(_read(spark, audit, [where.removeprefix(TOPIC_PREFIX)], schema, **_EVERY_TAG))
    return sides.read_id_table(spark, where)


def _sent(spark: SparkSession, audit: AuditJob, traces: DataFrame) -> DataFrame | None:
    if audit.sent == FROM_NOTHING:
        return None
    if audit.sent == FROM_TRACE:
        return sides.sent_in_traces(traces, audit.topics, audit.match, audit.tags)
    return sides.sent_in_table(_table(spark, audit, audit.sent), audit.topics, _id_column(audit, audit.sent))


def _handled(spark: SparkSession, audit: AuditJob, traces: DataFrame) -> DataFrame:
    if audit.handled == FROM_TRACE:
        return sides.handled_in_traces(traces, audit.groups, audit.match)
    return sides.handled_in_table(_table(spark, audit, audit.handled), audit.groups, _id_column(audit, audit.handled))


def _id_column(audit: AuditJob, where: str) -> str:
    return "msg_id" if where.startswith(TOPIC_PREFIX) else audit.id_column


def _check_sources(audit: AuditJob) -> list[str]:
    """Check that the data sources exist, and return notes for the report."""
    if audit.groups and audit.handled == FROM_NOTHING:
        raise Refused("there is no source for handled messages: set it, or leave the groups out")
    metadata = open_broker_metadata(audit.name_servers, audit.options)
    traced = [side for side, source in (("sent", audit.sent), ("handled", audit.handled)) if source == FROM_TRACE]
    if not audit.groups and "handled" in traced:
        traced.remove("handled")
    if traced and TRACE_TOPIC not in metadata.topics():
        raise Refused(
            f"there are no traces of {' and '.join(traced)} messages: open clients with trace=True, or give tables "
            "of ids. --sent none skips the check of sent messages"
        )
    extents = metadata.extents(audit.topics, is_fresh=True, without_absent=False)
    shortened = sorted({queue.topic for queue, extent in extents.items() if extent.first > 0})
    if shortened and audit.span.since_ms is None:
        return [
            f"retention has deleted the oldest messages of {', '.join(shortened)}; they appear as missing. "
            "Set --since to a later time"
        ]
    return []


def _hour_in_ms(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("hour", F.unix_millis("hour"))


def _hour(row: object, ids: dict[tuple[str, str | None, int | None, str], tuple[str, ...]]) -> AuditHour:
    values = row.asDict()  # type: ignore[attr-defined]
    findings = {}
    for finding in AuditFinding:
        if values[finding]:
            group = values["group"] if finding in GROUP_FINDINGS else None
            findings[finding.value] = FindingIds(
                values[finding], ids[values["topic"], group, values["hour"], finding.value]
            )
    return AuditHour(
        topic=values["topic"],
        group=values["group"],
        hour_ms=values["hour"],
        findings=findings,
        **{name: values[name] for name in ("sent", "stored", "handled", "ok")},
    )

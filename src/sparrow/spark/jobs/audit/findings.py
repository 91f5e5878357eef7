"""Findings of an audit: compare the sent, stored and handled ids and classify differences. Functions on DataFrames.

A side without data is None as a frame and null in rows; it never causes a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from sparrow.spark.jobs.time_span import JobTimeSpan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_MS = 3_600_000


class AuditFinding(StrEnum):
    """A difference between the sent, stored and handled messages."""

    MISSING_IN_STORE = "missing_in_store"
    DOUBLED_IN_STORE = "doubled_in_store"
    UNKNOWN = "unknown"
    """Stored, but not in the data about sent messages."""
    MISSING_IN_HANDLING = "missing_in_handling"
    DOUBLED_IN_HANDLING = "doubled_in_handling"


GROUP_FINDINGS = (AuditFinding.MISSING_IN_HANDLING, AuditFinding.DOUBLED_IN_HANDLING)
"""Findings about a consumer group; the others are about a topic."""


def judge_ids(
    stored: DataFrame, sent: DataFrame | None, handled: DataFrame | None, groups: Sequence[str], span: JobTimeSpan
) -> DataFrame:
    """Return one row per id and group with its findings.

    Rows without a topic are ids that were handled only. Rows without an id hold the number of messages of a topic that
    have none.
    """
    from pyspark.sql import functions as F

    found = stored
    if sent is not None:
        found = found.join(sent, ["topic", "msg_id"], "full_outer")
    else:
        found = found.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in _SENT.items()))
    found = found.withColumn("group", F.explode(F.array(*map(F.lit, groups))) if groups else _null("string"))
    if handled is not None:
        found = found.join(handled, ["group", "msg_id"], "full_outer")
    else:
        found = found.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in _HANDLED.items()))
    counts = {"stored": F.coalesce("stored", F.lit(0))}
    if sent is not None:
        counts |= {name: F.coalesce(name, F.lit(0)) for name in ("sent", "tried")}
    if handled is not None:
        counts["handled"] = F.coalesce("handled", F.lit(0))
    found = found.withColumns({**counts, "time": F.coalesce("sent_at", "stored_at", "handled_at")})
    # A failed send that is not stored is not a message: the sender got the error.
    is_message = F.col("topic").isNull() | (F.col("stored") > 0) | (F.col("sent") > 0)
    found = found.where(is_message & (F.col("msg_id").isNull() | _is_in(span))).withColumn("findings", _findings())
    ms = F.unix_millis("time")
    return found.select(
        *("topic", "group", F.timestamp_millis(ms - F.pmod(ms, F.lit(HOUR_MS))).alias("hour"), "msg_id"),
        *("sent", "stored", "handled", "time", "findings"),
    )


_SENT = {"sent": "bigint", "tried": "bigint", "sent_at": "timestamp"}
_HANDLED = {"handled": "bigint", "handled_at": "timestamp"}


def _null(kind: str) -> Column:
    from pyspark.sql import functions as F

    return F.lit(None).cast(kind)


def _is_in(span: JobTimeSpan) -> Column:
    """Return the condition that a row is in the span. Ids without a time are included."""
    from pyspark.sql import functions as F

    condition = F.lit(True)
    if span.since_ms is not None:
        condition &= F.unix_millis("time") >= span.since_ms
    if span.until_ms is not None:
        condition &= F.unix_millis("time") < span.until_ms
    return F.col("time").isNull() | condition


def _findings() -> Column:
    """Return the findings of a row. A side without data is null, so that its conditions are not true."""
    from pyspark.sql import functions as F

    sent, stored, handled = F.col("sent"), F.col("stored"), F.col("handled")
    conditions = {
        AuditFinding.MISSING_IN_STORE: (sent > 0) & (stored == 0),
        AuditFinding.DOUBLED_IN_STORE: stored > 1,
        AuditFinding.UNKNOWN: (stored > 0) & (F.col("tried") == 0),
        AuditFinding.MISSING_IN_HANDLING: (stored > 0) & (handled == 0),
        AuditFinding.DOUBLED_IN_HANDLING: handled > 1,
    }
    labels = [F.when(condition, F.lit(finding.value)) for finding, condition in conditions.items()]
    is_comparable = F.col("topic").isNotNull() & F.col("msg_id").isNotNull()
    return F.when(is_comparable, F.array_compact(F.array(*labels))).otherwise(F.array().cast("array<string>"))


def count_by_hour(rows: DataFrame) -> DataFrame:
    """Count ids and findings by topic, group and hour."""
    from pyspark.sql import functions as F

    return (
        rows.where("topic is not null and msg_id is not null")
        .groupBy("topic", "group", "hour")
        .agg(
            *(F.sum(name).alias(name) for name in ("sent", "stored", "handled")),
            F.count_if(F.size("findings") == 0).alias("ok"),
            *(F.count_if(F.array_contains("findings", each.value)).alias(each.value) for each in AuditFinding),
        )
    )


def list_findings(rows: DataFrame) -> DataFrame:
    """Return one row per finding. Findings about a topic have no group."""
    from pyspark.sql import functions as F

    each = rows.where(F.size("findings") > 0).withColumn("finding", F.explode("findings")).drop("findings")
    is_of_group = F.col("finding").isin(*(finding.value for finding in GROUP_FINDINGS))
    each = each.withColumns(
        {name: F.when(is_of_group, F.col(name)) for name in ("group", "handled")},
    )
    return each.distinct()


def sample_ids(findings: DataFrame, ids_max: int) -> DataFrame:
    """Return a few ids of each finding and hour."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by = ("topic", "group", "hour", "finding")
    rank = F.row_number().over(Window.partitionBy(*by).orderBy("msg_id"))
    sampled = findings.withColumn("place", rank).where(F.col("place") <= ids_max)
    return sampled.groupBy(*by).agg(F.array_sort(F.collect_list("msg_id")).alias("ids"))

"""What can be said about reading topics with Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from sparrow import clock
from sparrow.model.errors import Refused
from sparrow.spark.options import (
    ClientOptions,
    Option,
    choice_parser,
    json_parser,
    parse_boolean,
    parse_client_options,
    parse_count,
    parse_duration_ms,
    parse_options,
    parse_positive,
    parse_size_bytes,
    parse_text,
)

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
"""How offsets in JSON say so, as Kafka's connector has it."""
GROUP_PREFIX = "group:"

OffsetsByQueue = dict[str, dict[str, int | dict[str, int]]]
"""topic -> queue id -> number, or topic -> broker -> queue id -> number."""
_OFFSETS_EXAMPLE = '{"orders": {"broker-a": {"0": 23, "1": -2}}}'
_RELATIVE = re.compile(r"-\s*(\d+\s*(?:ms|s|m|h|d))")


def _time_ms(value: str) -> int:
    """Milliseconds since 1970, ISO 8601 (UTC unless it says otherwise), or relative: `-10m`."""
    if value.isdigit():
        return int(value)
    if matched := _RELATIVE.fullmatch(value):
        return clock.now_ms() - parse_duration_ms(matched[1].replace(" ", ""))
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("say milliseconds, ISO time such as 2026-01-31T12:00:00Z, or -10m") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _offsets(value: str) -> str | OffsetsByQueue:
    if value.lower() in ("earliest", "latest"):
        return value.lower()
    if value.startswith(GROUP_PREFIX) and len(value) > len(GROUP_PREFIX):
        return value
    if not value.startswith("{"):
        raise ValueError(f"say earliest, latest, group:NAME or JSON such as {_OFFSETS_EXAMPLE}")
    return json_parser(OffsetsByQueue, _OFFSETS_EXAMPLE)(value)  # type: ignore[no-any-return]


def _topics(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError("name at least one topic")
    return names


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as cause:
        raise ValueError(f"it is no regular expression: {cause}") from cause
    return value


_times = json_parser(OffsetsByQueue, '{"orders": {"broker-a": {"0": 1767225600000}}}')

SOURCE_OPTIONS: tuple[Option, ...] = (
    Option(
        "nameserver",
        "name_servers",
        parse_text,
        None,
        "Name servers, `;` between them. With `access=pull`.",
        "required",
    ),
    Option("path", "path", parse_text, None, "A store directory. With `access=files`.", "none"),
    Option(
        "subscribe", "subscribe", _topics, None, "Topics, `,` between them. One of these three is required.", "none"
    ),
    Option(
        "subscribePattern", "pattern", _pattern, None, "A Python regular expression that whole names match.", "none"
    ),
    Option(
        "assign",
        "assign",
        json_parser(dict[str, dict[str, list[int]]], '{"orders": {"broker-a": [0, 1]}}'),
        None,
        'Single queues: `{"orders": {"broker-a": [0, 1]}}`.',
        "none",
    ),
    Option(
        "startingOffsets",
        "starting_offsets",
        _offsets,
        None,
        "`earliest`, `latest`, `group:NAME` (where that group is), or JSON by topic, broker and queue with -2 for "
        "earliest and -1 for latest. For new queries; later the checkpoint counts.",
        "latest (stream), earliest (batch)",
    ),
    Option(
        "startingTimestamp", "starting_ms", _time_ms, None, "Milliseconds, ISO time, or `-10m`. Beats offsets.", "none"
    ),
    Option("startingOffsetsByTimestamp", "starting_times", _times, None, "The same for each queue, as JSON.", "none"),
    Option(
        "startingOffsetsByTimestampStrategy",
        "starting_time_strategy",
        choice_parser("error", "latest"),
        "error",
        "When no message is that late: an error, or the end of the queue.",
    ),
    Option("endingOffsets", "ending_offsets", _offsets, None, "As above; batch only.", "latest"),
    Option("endingTimestamp", "ending_ms", _time_ms, None, "Up to, not including, this time; batch only.", "none"),
    Option("endingOffsetsByTimestamp", "ending_times", _times, None, "The same for each queue; batch only.", "none"),
    Option(
        "maxOffsetsPerTrigger",
        "batch_rows_max",
        parse_count,
        1_000_000,
        "Rows of a micro-batch, shared out in proportion to what each queue holds; 0 for no limit.",
    ),
    Option(
        "maxBytesPerTrigger",
        "batch_bytes_max",
        parse_size_bytes,
        None,
        "The same in bytes of records, roughly.",
        "none",
    ),
    Option(
        "minOffsetsPerTrigger",
        "batch_rows_min",
        parse_positive,
        None,
        "Wait for so many rows, but not for longer than ...",
        "none",
    ),
    Option("maxTriggerDelay", "batch_delay_max_ms", parse_duration_ms, 900_000, "... this.", "15m"),
    Option(
        "minPartitions",
        "partitions_min",
        parse_positive,
        None,
        "Cut ranges so that there are at least so many tasks.",
        "none",
    ),
    Option(
        "maxRecordsPerPartition",
        "range_rows_max",
        parse_count,
        1_000_000,
        "Longer ranges of a queue are cut; 0 never cuts, so that a task has whole queues.",
    ),
    Option(
        "targetRowsPerTask",
        "task_rows_target",
        parse_count,
        200_000,
        "Small ranges are joined up to here; 0 never joins.",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        parse_boolean,
        True,
        "Messages that are gone: fail, or skip them, which is logged with their number.",
        "true",
    ),
    Option(
        "groupId",
        "group",
        parse_text,
        None,
        "A consumer group that shows how far the query has got, so that its lag is seen. Progress itself is in Spark's "
        "checkpoint.",
        "none",
    ),
    Option(
        "tags", "tags", parse_text, "*", "`A || B`: only these tags, chosen by the broker. Offsets count all messages."
    ),
    Option(
        "pushdown",
        "pushdown",
        parse_boolean,
        False,
        "Batch: let filters on topic, queue, tag, offset and store time save reading. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`.",
        "false",
    ),
    Option("kafkaSchema", "kafka_schema", parse_boolean, False, "Columns as Kafka's connector names them.", "false"),
    Option("includeHeaders", "headers", parse_boolean, True, "With `kafkaSchema`: a column of headers.", "true"),
    Option(
        "access",
        "access",
        choice_parser("pull", "files", "auto"),
        "pull",
        "From brokers, from the files of a store directory, or from files where `path` is given and there.",
    ),
    Option("batchRows", "arrow_batch_rows", parse_positive, 8192, "Rows of an Arrow batch."),
    Option("verifyChecksum", "verify_checksum", parse_boolean, False, "Compare each body with its checksum.", "false"),
    Option("decompress", "decompress", parse_boolean, True, "Show compressed bodies as they were sent.", "true"),
    Option("pullMaxBytes", "pull_bytes", parse_size_bytes, 4 << 20, "Of one pull.", "4m"),
    Option(
        "pullTimeoutMs", "pull_timeout_ms", parse_positive, 30_000, "How long a task waits for a broker that is away."
    ),
    Option("fetchOffset.numRetries", "offset_retries", parse_count, 3, "When offsets cannot be had at the start."),
    Option("fetchOffset.retryIntervalMs", "offset_retry_ms", parse_count, 200, "Between those tries."),
    Option(
        "offsetPollIntervalMs", "offset_poll_ms", parse_count, 100, "How long a look at the ends of the queues counts."
    ),
    Option(
        "metadataRefreshMs",
        "metadata_refresh_ms",
        parse_count,
        30_000,
        "How soon new queues and matching topics are seen.",
    ),
    Option(
        "topicMissing",
        "topic_missing",
        choice_parser("error", "wait"),
        "error",
        "A topic that is not there: fail, or wait for it.",
    ),
)


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The table above, read."""

    client: ClientOptions
    name_servers: str | None
    path: str | None
    subscribe: tuple[str, ...] | None
    pattern: str | None
    assign: dict[str, dict[str, list[int]]] | None
    starting_offsets: str | OffsetsByQueue | None
    starting_ms: int | None
    starting_times: OffsetsByQueue | None
    starting_time_strategy: str
    ending_offsets: str | OffsetsByQueue | None
    ending_ms: int | None
    ending_times: OffsetsByQueue | None
    batch_rows_max: int
    batch_bytes_max: int | None
    batch_rows_min: int | None
    batch_delay_max_ms: int
    partitions_min: int | None
    range_rows_max: int
    task_rows_target: int
    fail_on_data_loss: bool
    group: str | None
    tags: str
    pushdown: bool
    kafka_schema: bool
    headers: bool
    access: str
    arrow_batch_rows: int
    verify_checksum: bool
    decompress: bool
    pull_bytes: int
    pull_timeout_ms: int
    offset_retries: int
    offset_retry_ms: int
    offset_poll_ms: int
    metadata_refresh_ms: int
    topic_missing: str

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """What the user said, checked as a whole."""
        said: dict[str, Any] = parse_options(SOURCE_OPTIONS, given)
        chosen = [name for name in ("subscribe", "pattern", "assign") if said[name] is not None]
        if len(chosen) != 1:
            raise Refused("say exactly one of the options 'subscribe', 'subscribePattern' and 'assign'")
        if said["access"] == "auto":
            said["access"] = "files" if said["path"] is not None and _is_store(said["path"]) else "pull"
        if said["access"] == "files" and said["path"] is None:
            raise Refused("access=files needs the option 'path': the directory of a store")
        if said["access"] == "pull" and said["name_servers"] is None:
            raise Refused("say where the name server is: .option('nameserver', '127.0.0.1:9876')")
        return cls(client=parse_client_options(said["name_servers"] or "", given), **said)


def _is_store(path: str) -> bool:
    from pathlib import Path

    return (Path(path) / "commitlog").is_dir()

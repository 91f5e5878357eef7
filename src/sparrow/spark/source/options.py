"""Options of the source: the table of option names, and the parsed `SourceOptions`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from sparrow import clock
from sparrow.client.options import default_name_servers
from sparrow.model.errors import Refused
from sparrow.spark.options import (
    ClientOptions,
    Option,
    choice_parser,
    json_parser,
    name_servers_option,
    parse_boolean,
    parse_client_options,
    parse_count,
    parse_duration_ms,
    parse_options,
    parse_positive,
    parse_size_bytes,
    parse_text,
)
from sparrow.wire.undecodable import OnUndecodable

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
"""Special offsets in JSON, the same as in Spark's Kafka connector."""
GROUP_PREFIX = "group:"

OffsetsByQueue = dict[str, dict[str, int | dict[str, int]]]
"""topic -> queue id -> offset, or topic -> broker -> queue id -> offset."""
_OFFSETS_EXAMPLE = '{"orders": {"broker-a": {"0": 23, "1": -2}}}'
_RELATIVE = re.compile(r"-\s*(\d+\s*(?:ms|s|m|h|d))")


def _time_ms(value: str) -> int:
    """Parse milliseconds since 1970, ISO 8601 (UTC by default), or a time relative to now such as `-10m`."""
    if value.isdigit():
        return int(value)
    if matched := _RELATIVE.fullmatch(value):
        return clock.now_ms() - parse_duration_ms(matched[1].replace(" ", ""))
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("use milliseconds, ISO time such as 2026-01-31T12:00:00Z, or -10m") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _offsets(value: str) -> str | OffsetsByQueue:
    if value.lower() in ("earliest", "latest"):
        return value.lower()
    if value.startswith(GROUP_PREFIX) and len(value) > len(GROUP_PREFIX):
        return value
    if not value.startswith("{"):
        raise ValueError(f"use earliest, latest, group:NAME or JSON such as {_OFFSETS_EXAMPLE}")
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
        raise ValueError(f"not a regular expression: {cause}") from cause
    return value


_times = json_parser(OffsetsByQueue, '{"orders": {"broker-a": {"0": 1767225600000}}}')

SOURCE_OPTIONS: tuple[Option, ...] = (
    name_servers_option(" With `access=pull`."),
    Option("path", "path", parse_text, None, "A store directory. With `access=files`.", "none"),
    Option(
        "subscribe",
        "subscribe",
        _topics,
        None,
        "Topics, separated by `,`. Exactly one of `subscribe`, `subscribePattern` and `assign` is required.",
        "none",
    ),
    Option(
        "subscribePattern",
        "pattern",
        _pattern,
        None,
        "Topics whose whole name matches this Python regular expression.",
        "none",
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
        "Where a new query starts: `earliest`, `latest`, `group:NAME` (the committed offsets of that group), or "
        "JSON by topic, broker and queue with -2 for earliest and -1 for latest. A query with a checkpoint "
        "continues from the checkpoint.",
        "latest (stream), earliest (batch)",
    ),
    Option(
        "startingTimestamp",
        "starting_ms",
        _time_ms,
        None,
        "Start at this store time: milliseconds, ISO time, or `-10m`. Takes precedence over `startingOffsets`.",
        "none",
    ),
    Option("startingOffsetsByTimestamp", "starting_times", _times, None, "The same for each queue, as JSON.", "none"),
    Option(
        "startingOffsetsByTimestampStrategy",
        "starting_time_strategy",
        choice_parser("error", "latest"),
        "error",
        "If no message of a queue is that late: `error`, or start at the end of the queue (`latest`).",
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        _offsets,
        None,
        "Where a batch read ends; values as for `startingOffsets`.",
        "latest",
    ),
    Option("endingTimestamp", "ending_ms", _time_ms, None, "End before this store time; batch only.", "none"),
    Option(
        "endingOffsetsByTimestamp",
        "ending_times",
        _times,
        None,
        "The same for each queue, as JSON; batch only.",
        "none",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "batch_rows_max",
        parse_count,
        1_000_000,
        "Maximum rows of a micro-batch, divided among the queues in proportion to their backlogs; 0 for no limit.",
    ),
    Option(
        "maxBytesPerTrigger",
        "batch_bytes_max",
        parse_size_bytes,
        None,
        "Approximate maximum bytes of a micro-batch.",
        "none",
    ),
    Option(
        "minOffsetsPerTrigger",
        "batch_rows_min",
        parse_positive,
        None,
        "Minimum rows of a micro-batch; the stream waits for them at most `maxTriggerDelay`.",
        "none",
    ),
    Option(
        "maxTriggerDelay",
        "batch_delay_max_ms",
        parse_duration_ms,
        900_000,
        "Maximum wait for `minOffsetsPerTrigger`.",
        "15m",
    ),
    Option(
        "minPartitions",
        "partitions_min",
        parse_positive,
        None,
        "Minimum number of tasks; ranges are split to reach it.",
        "none",
    ),
    Option(
        "maxRecordsPerPartition",
        "range_rows_max",
        parse_count,
        1_000_000,
        "Maximum rows of one range; longer ranges are split. 0 never splits, so that one task reads a whole queue.",
    ),
    Option(
        "targetRowsPerTask",
        "task_rows_target",
        parse_count,
        200_000,
        "Short ranges are joined into tasks of up to this many rows; 0 never joins.",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        parse_boolean,
        True,
        "If retention has deleted messages that the query has to read: fail, or skip them and log how many.",
        "true",
    ),
    Option(
        "groupId",
        "group",
        parse_text,
        None,
        "A consumer group to which the query commits its progress, so that its lag is visible. The query itself "
        "continues from Spark's checkpoint.",
        "none",
    ),
    Option("tags", "tags", parse_text, "*", "Tag expression such as `A || B`, evaluated by the broker."),
    Option(
        "pushdown",
        "pushdown",
        parse_boolean,
        False,
        "Batch: use filters on topic, queue, tag, offset and store time to read less. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`.",
        "false",
    ),
    Option("kafkaSchema", "kafka_schema", parse_boolean, False, "Use the columns of Spark's Kafka connector.", "false"),
    Option("includeHeaders", "headers", parse_boolean, True, "With `kafkaSchema`: add the column `headers`.", "true"),
    Option(
        "access",
        "access",
        choice_parser("pull", "files", "auto"),
        "pull",
        "`pull` reads from brokers, `files` from a store directory, `auto` from `path` if it is a store directory, "
        "else from brokers.",
    ),
    Option("batchRows", "arrow_batch_rows", parse_positive, 8192, "Rows of an Arrow batch."),
    Option("verifyChecksum", "verify_checksum", parse_boolean, False, "Verify the checksum of each body.", "false"),
    Option("decompress", "decompress", parse_boolean, True, "Decompress compressed bodies.", "true"),
    Option(
        "onUndecodable",
        "on_undecodable",
        choice_parser("null", "skip", "raise"),
        "null",
        "If a compressed body does not decompress: read a null body, whose column `decode_error` says why (`null`), "
        "leave out the row (`skip`), or fail (`raise`).",
    ),
    Option("pullMaxBytes", "pull_bytes", parse_size_bytes, 4 << 20, "Maximum bytes of one pull.", "4m"),
    Option(
        "pullTimeoutMs",
        "pull_timeout_ms",
        parse_positive,
        30_000,
        "How long a task retries while a broker is unavailable.",
    ),
    Option(
        "fetchOffset.numRetries",
        "offset_retries",
        parse_count,
        3,
        "Retries when the offsets cannot be fetched at the start.",
    ),
    Option("fetchOffset.retryIntervalMs", "offset_retry_ms", parse_count, 200, "Delay between those retries."),
    Option(
        "offsetPollIntervalMs",
        "offset_poll_ms",
        parse_count,
        100,
        "How long the fetched end offsets are used before they are fetched again.",
    ),
    Option(
        "metadataRefreshMs",
        "metadata_refresh_ms",
        parse_count,
        30_000,
        "How often new queues and new matching topics are looked up.",
    ),
    Option(
        "topicMissing",
        "topic_missing",
        choice_parser("error", "wait"),
        "error",
        "If a topic does not exist: fail (`error`), or wait for it (`wait`).",
    ),
)


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed options of `SOURCE_OPTIONS`."""

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
    on_undecodable: OnUndecodable
    pull_bytes: int
    pull_timeout_ms: int
    offset_retries: int
    offset_retry_ms: int
    offset_poll_ms: int
    metadata_refresh_ms: int
    topic_missing: str

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse the options and check that they fit together."""
        parsed: dict[str, Any] = parse_options(SOURCE_OPTIONS, given)
        chosen = [name for name in ("subscribe", "pattern", "assign") if parsed[name] is not None]
        if len(chosen) != 1:
            raise Refused("set exactly one of the options 'subscribe', 'subscribePattern' and 'assign'")
        if parsed["access"] == "auto":
            parsed["access"] = "files" if parsed["path"] is not None and _is_store(parsed["path"]) else "pull"
        if parsed["access"] == "files" and parsed["path"] is None:
            raise Refused("access=files needs the option 'path': the directory of a store")
        if parsed["access"] == "pull" and parsed["name_servers"] is None:
            parsed["name_servers"] = default_name_servers()
        return cls(client=parse_client_options(parsed["name_servers"] or "", given), **parsed)


def _is_store(path: str) -> bool:
    from pathlib import Path

    return (Path(path) / "commitlog").is_dir()

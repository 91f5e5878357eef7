"""Options of the sink: the table of option names, and the parsed `SinkOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from sparrow.client.options import default_name_servers
from sparrow.model.errors import Refused
from sparrow.model.topic import validate_topic_name
from sparrow.spark import options as kinds
from sparrow.spark.options import ClientOptions, Option, parse_client_options
from sparrow.wire.compression import Compression


class DeliveryGuarantee(StrEnum):
    """Values of the option `delivery`."""

    EXACTLY_ONCE = "exactlyOnce"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "atLeastOnce"


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed options of `SINK_OPTIONS`."""

    client: ClientOptions
    topic: str | None
    delivery: DeliveryGuarantee
    sink_name: str
    job_key: str | None
    max_in_flight_bytes: int
    fills_checksum: bool
    compression: Compression | None
    compress_min_bytes: int
    ignores_extra_columns: bool
    commit_timeout_ms: int
    chunk_rows: int
    topic_queues: int
    group: str


def _parse_delivery(value: str) -> DeliveryGuarantee:
    return DeliveryGuarantee(kinds.choice_parser(*DeliveryGuarantee)(value))


def _parse_checksum(value: str) -> bool:
    return kinds.choice_parser("client", "broker")(value) == "broker"


def _parse_compression(value: str) -> Compression | None:
    choice = kinds.choice_parser("none", "zlib", "zstd")(value)
    return None if choice == "none" else Compression[choice.upper()]


def _parse_name(value: str) -> str:
    if not 0 < len(value) <= _NAME_CHARS_MAX or set("/#") & set(value) or not value.isprintable():
        raise ValueError(f"use a name of 1 to {_NAME_CHARS_MAX} characters, without '/' and '#'")
    return value


_NAME_CHARS_MAX = 120
_NAMES_CHARS_MAX = 160
"""Maximum length of job key and sink name together, both of which a broker's ledger stores."""

SINK_OPTIONS: tuple[Option, ...] = (
    kinds.name_servers_option(),
    Option(
        "topic",
        "topic",
        kinds.parse_text,
        None,
        "The topic of all rows; if not set, the column `topic` is used.",
        "the column",
    ),
    Option(
        "delivery",
        "delivery",
        _parse_delivery,
        DeliveryGuarantee.EXACTLY_ONCE,
        "`exactlyOnce`: rows are staged on the brokers and published when Spark commits the batch or the job. "
        "`idempotent`: rows are appended at once and repeated chunks are dropped; exact as long as a recomputed "
        "partition has the same rows in the same order. `atLeastOnce`: rows are sent as ordinary messages, to any "
        "RocketMQ broker.",
        "exactlyOnce",
    ),
    Option(
        "sinkName",
        "sink_name",
        _parse_name,
        None,
        "Distinguishes two writes of one `foreachBatch`. Do not change it once the query has run.",
        "the topic, or `default`",
    ),
    Option(
        "jobKey",
        "job_key",
        _parse_name,
        None,
        "Identifies a batch job: running it again under the same key writes nothing.",
        "none: every run writes",
    ),
    Option(
        "maxInFlightBytes",
        "max_in_flight_bytes",
        kinds.parse_size_bytes,
        16 << 20,
        "Maximum bytes that a task has in flight to the brokers.",
        "16m",
    ),
    Option(
        "checksum",
        "fills_checksum",
        _parse_checksum,
        True,
        "Who computes the checksums of bodies: the `broker` on arrival, or the `client`.",
        "broker",
    ),
    Option("compress", "compression", _parse_compression, None, "`none`, `zlib` or `zstd`.", "none"),
    Option(
        "compressMinBytes",
        "compress_min_bytes",
        kinds.parse_size_bytes,
        4096,
        "Shorter bodies are not compressed.",
        "4k",
    ),
    Option(
        "ignoreExtraColumns",
        "ignores_extra_columns",
        kinds.parse_boolean,
        False,
        "Ignore columns that are not message columns, instead of refusing them.",
        "false",
    ),
    Option(
        "commitTimeoutMs",
        "commit_timeout_ms",
        kinds.parse_duration_ms,
        60_000,
        "How long calls to an unavailable broker are retried, in tasks and at the commit.",
    ),
    Option("chunkRows", "chunk_rows", kinds.parse_positive, 10_000, "With `idempotent`: rows of one chunk."),
    Option(
        "topicQueues",
        "topic_queues",
        kinds.parse_positive,
        4,
        "Queues on each broker of a topic that the sink creates.",
    ),
    Option("group", "group", kinds.parse_text, "sparrow_spark", "With `atLeastOnce`: the producer group."),
)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options and check that they fit together."""
    parsed = kinds.parse_options(SINK_OPTIONS, given)
    name_servers = parsed.pop("name_servers") or default_name_servers()
    if parsed["topic"] is not None:
        validate_topic_name(parsed["topic"])
    if parsed["delivery"] is DeliveryGuarantee.AT_LEAST_ONCE:
        if parsed["compression"] is not None:
            raise Refused(
                "the option 'compress' needs delivery=exactlyOnce or idempotent: batches of ordinary messages cannot "
                "mix compressed and plain bodies"
            )
        if parsed["job_key"] is not None:
            raise Refused(
                "the option 'jobKey' needs delivery=exactlyOnce or idempotent: with atLeastOnce every run writes"
            )
    parsed["sink_name"] = parsed["sink_name"] or parsed["topic"] or "default"
    if parsed["job_key"] is not None and len(parsed["job_key"]) + len(parsed["sink_name"]) > _NAMES_CHARS_MAX:
        raise Refused(
            f"the options 'jobKey' and 'sinkName' are too long: at most {_NAMES_CHARS_MAX} characters together"
        )
    return SinkOptions(client=parse_client_options(name_servers, given), **parsed)

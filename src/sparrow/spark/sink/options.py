"""What a sink can be told: the options of `df.write.format("sparrow")` and of `df.writeStream`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from sparrow.model.errors import Refused
from sparrow.model.topic import validate_topic_name
from sparrow.spark import options as kinds
from sparrow.spark.options import ClientOptions, Option, parse_client_options
from sparrow.wire.compression import Compression


class DeliveryGuarantee(StrEnum):
    EXACTLY_ONCE = "exactlyOnce"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "atLeastOnce"


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
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


def _delivery(value: str) -> DeliveryGuarantee:
    return DeliveryGuarantee(kinds.choice_parser(*DeliveryGuarantee)(value))


def _is_by_broker(value: str) -> bool:
    return kinds.choice_parser("client", "broker")(value) == "broker"


def _compression(value: str) -> Compression | None:
    word = kinds.choice_parser("none", "zlib", "zstd")(value)
    return None if word == "none" else Compression[word.upper()]


def _name(value: str) -> str:
    if not 0 < len(value) <= _NAME_CHARS_MAX or set("/#") & set(value) or not value.isprintable():
        raise ValueError(f"say a name of 1 to {_NAME_CHARS_MAX} characters, without '/' and '#'")
    return value


_NAME_CHARS_MAX = 120
_NAMES_CHARS_MAX = 160
"""Of a job's key and the sink's name together: a broker's ledger keeps both."""

SINK_OPTIONS: tuple[Option, ...] = (
    Option(
        "nameserver", "name_servers", kinds.parse_text, None, "Name servers, `host:port`, with `;` between.", "required"
    ),
    Option(
        "topic",
        "topic",
        kinds.parse_text,
        None,
        "Where all rows go; without it, the column `topic` says so.",
        "the column",
    ),
    Option(
        "delivery",
        "delivery",
        _delivery,
        DeliveryGuarantee.EXACTLY_ONCE,
        "`exactlyOnce`: rows are staged on the brokers and published when Spark commits the batch, or the job. "
        "`idempotent`: written at once; chunks that come again are dropped, which is exact as long as a partition that "
        "is computed again has the same rows in the same order. `atLeastOnce`: sent, with any RocketMQ broker.",
        "exactlyOnce",
    ),
    Option(
        "sinkName",
        "sink_name",
        _name,
        None,
        "Tells two writes of one `foreachBatch` apart. Once a query has run, it stays.",
        "the topic, or `default`",
    ),
    Option(
        "jobKey",
        "job_key",
        _name,
        None,
        "Of a batch job: once it has been written under this key, running it again writes nothing.",
        "none: every run writes",
    ),
    Option(
        "maxInFlightBytes",
        "max_in_flight_bytes",
        kinds.parse_size_bytes,
        16 << 20,
        "What a task may have on its way to the brokers.",
        "16m",
    ),
    Option(
        "checksum",
        "fills_checksum",
        _is_by_broker,
        True,
        "Who computes the checksums of bodies: `broker` when they arrive, or `client`.",
        "broker",
    ),
    Option("compress", "compression", _compression, None, "`none`, `zlib` or `zstd`.", "none"),
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
        "Leave out columns that mean nothing to a sink, instead of refusing them.",
        "false",
    ),
    Option(
        "commitTimeoutMs",
        "commit_timeout_ms",
        kinds.parse_duration_ms,
        60_000,
        "How long a broker that is away is waited for, in tasks and when a batch is committed.",
    ),
    Option(
        "chunkRows", "chunk_rows", kinds.parse_positive, 10_000, "With `idempotent`: rows that are written together."
    ),
    Option(
        "topicQueues",
        "topic_queues",
        kinds.parse_positive,
        4,
        "Queues on each broker of a topic that is not there yet.",
    ),
    Option("group", "group", kinds.parse_text, "sparrow_spark", "With `atLeastOnce`: the name of the producer group."),
)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """From what the user said."""
    said = kinds.parse_options(SINK_OPTIONS, given)
    name_servers = said.pop("name_servers")
    if name_servers is None:
        raise Refused("the option 'nameserver' is missing: say where the name servers are, such as 127.0.0.1:9876")
    if said["topic"] is not None:
        validate_topic_name(said["topic"])
    if said["delivery"] is DeliveryGuarantee.AT_LEAST_ONCE:
        if said["compression"] is not None:
            raise Refused("the option 'compress' needs delivery exactlyOnce or idempotent: in batches all or none are")
        if said["job_key"] is not None:
            raise Refused("the option 'jobKey' needs delivery exactlyOnce or idempotent: else every run writes")
    said["sink_name"] = said["sink_name"] or said["topic"] or "default"
    if said["job_key"] is not None and len(said["job_key"]) + len(said["sink_name"]) > _NAMES_CHARS_MAX:
        raise Refused(f"the options 'jobKey' and 'sinkName' may have {_NAMES_CHARS_MAX} characters together")
    return SinkOptions(client=parse_client_options(name_servers, given), **said)

"""The time span that a job covers, and the part of a topic stored in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused
from sparrow.spark.client_pool import CLIENT_POOL
from sparrow.spark.options import parse_client_options, parse_options
from sparrow.spark.source.metadata import BrokerMetadata
from sparrow.spark.source.options import SOURCE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class JobTimeSpan(msgspec.Struct, frozen=True):
    """A half-open span of store time."""

    since_ms: int | None = None
    """None: from the beginning."""
    until_ms: int | None = None
    """Exclusive; None: up to what exists now."""

    def __post_init__(self) -> None:
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise Refused(
                f"the time span is empty: it ends at {self.until_ms} ms and starts at {self.since_ms} ms. Use an end "
                "after the start"
            )

    @classmethod
    def parse(cls, since: str | None, until: str | None) -> JobTimeSpan:
        """Parse milliseconds since 1970, ISO time, or a relative time such as `-10m`."""
        return cls(_ms("startingTimestamp", since), _ms("endingTimestamp", until))

    def extend(self, *, before_ms: int) -> JobTimeSpan:
        """Return a span that starts earlier and has no end."""
        return JobTimeSpan(None if self.since_ms is None else max(0, self.since_ms - before_ms))


def _ms(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    parsed = parse_options(SOURCE_OPTIONS, {option: text})
    found: int | None = parsed["starting_ms"] if option == "startingTimestamp" else parsed["ending_ms"]
    return found


def read_time_span(
    spark: SparkSession,
    span: JobTimeSpan,
    topics: Iterable[str],
    schema: str,
    *,
    name_servers: str,
    options: Mapping[str, str],
) -> DataFrame:
    """Return what was stored in the span, as a table with this schema."""
    read_options = {"nameServers": name_servers, "subscribe": ",".join(topics), **options}
    if span.since_ms is not None:
        # A queue without messages that recent is empty, not an error.
        read_options |= {"startingTimestamp": str(span.since_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if span.until_ms is not None:
        read_options["endingTimestamp"] = str(span.until_ms)
    return spark.read.format("sparrow").schema(schema).options(**read_options).load()


def open_broker_metadata(name_servers: str, options: Mapping[str, str]) -> BrokerMetadata:
    """Return the metadata of topics from the brokers."""
    return BrokerMetadata(CLIENT_POOL.get(parse_client_options(name_servers, options)))

"""Which messages a job means: of which topics, from when to when, which offsets of a queue, which keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS_MAX = 100_000
"""Keys in one selection: they travel with every task."""


class MessageSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, as far as nothing is said."""

    topics: tuple[str, ...] = ()
    from_ms: int | None = None
    """Stored then or later."""
    to_ms: int | None = None
    """Stored before."""
    queue_id: int | None = None
    offsets: tuple[int, int] | None = None
    """First and last, both included."""
    keys: tuple[str, ...] = ()
    """With one of these among their keys, or as their unique id."""

    def __post_init__(self) -> None:
        if self.offsets is not None and not 0 <= self.offsets[0] <= self.offsets[1]:
            raise Refused(f"{self.offsets[0]} to {self.offsets[1]} is no range of offsets: 0 or more, and in order")
        if self.from_ms is not None and self.to_ms is not None and self.from_ms > self.to_ms:
            raise Refused(f"the time ends ({self.to_ms} ms) before it begins ({self.from_ms} ms)")
        if len(self.keys) > KEYS_MAX:
            raise Refused(f"{len(self.keys):,} keys are more than {KEYS_MAX:,}: select in several runs")


def select_messages(messages: DataFrame, selection: MessageSelection) -> DataFrame:
    """The messages that are meant. Filters are plain comparisons where they can be, so that sources can use them."""
    from pyspark.sql import functions as F

    found = messages
    if selection.topics:
        found = found.where(F.col("topic").isin(*selection.topics))
    if selection.from_ms is not None:
        found = found.where(F.col("store_timestamp") >= F.timestamp_millis(F.lit(selection.from_ms)))
    if selection.to_ms is not None:
        found = found.where(F.col("store_timestamp") < F.timestamp_millis(F.lit(selection.to_ms)))
    if selection.queue_id is not None:
        found = found.where(F.col("queue_id") == selection.queue_id)
    if selection.offsets is not None:
        first, last = selection.offsets
        found = found.where((F.col("queue_offset") >= first) & (F.col("queue_offset") <= last))
    if selection.keys:
        wanted = list(selection.keys)
        words = F.split(F.coalesce("keys", F.lit("")), " ")
        found = found.where(F.exists(words, lambda word: word.isin(wanted)) | F.col("msg_id").isin(wanted))
    return found

"""Selection of messages by topic, store time, queue, offsets and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS_MAX = 100_000
"""Maximum number of keys, which are sent to every task."""


class MessageSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that all apply; the default selects everything."""

    topics: tuple[str, ...] = ()
    from_ms: int | None = None
    """Stored at this time or later."""
    to_ms: int | None = None
    """Stored before this time."""
    queue_id: int | None = None
    offsets: tuple[int, int] | None = None
    """First and last offset, inclusive."""
    keys: tuple[str, ...] = ()
    """Messages with one of these as a key or as the unique id."""

    def __post_init__(self) -> None:
        if self.offsets is not None and not 0 <= self.offsets[0] <= self.offsets[1]:
            raise Refused(
                f"{self.offsets[0]} to {self.offsets[1]} is not a range of offsets: use two numbers of 0 or more, the "
                "smaller first"
            )
        if self.from_ms is not None and self.to_ms is not None and self.from_ms > self.to_ms:
            raise Refused(
                f"the time span is empty: it ends at {self.to_ms} ms and starts at {self.from_ms} ms. Use an end after "
                "the start"
            )
        if len(self.keys) > KEYS_MAX:
            raise Refused(
                f"too many keys: {len(self.keys):,}, at most {KEYS_MAX:,} are allowed. Select in several runs"
            )


def select_messages(messages: DataFrame, selection: MessageSelection) -> DataFrame:
    """Return the selected messages. Conditions are plain comparisons, which the source can push down."""
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
        message_keys = F.split(F.coalesce("keys", F.lit("")), " ")
        found = found.where(F.exists(message_keys, lambda key: key.isin(wanted)) | F.col("msg_id").isin(wanted))
    return found

"""Settings of the stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from sparrow.settings.section import GIB, KIB, MIB, HiddenText, Section

FlushPolicy = Literal["async", "sync"]
Watermark = Literal["written", "durable", "replicated"]
"""How far the log has got; `replicated` is set by the store's owner and cannot be chosen in the settings yet."""
VisibleAfter = Literal["written", "durable"]
TopicNames = Literal["lower", "any"]


class LogSettings(Section):
    """The log store."""

    OLD_NAMES: ClassVar[Mapping[str, str]] = {
        "offsets_interval_ms": "offset_flush_interval_ms",
        "dead_letter_hours": "dead_letter_retention_hours",
        "ledger_keep_days": "ledger_retention_days",
        "retention_waits_for": "retention_group",
    }

    # -- fixed when a store is created: the store keeps them, and its values win over the settings -------------------
    segment_bytes: int = Field(default=GIB, ge=4 * KIB, le=GIB, description="Size of a commit-log file.")
    queue_file_entries: int = Field(default=300_000, ge=1, description="Entries in a consume-queue file.")
    index_slots: int = Field(default=5_000_000, ge=1, le=1 << 28, description="Hash slots in a key-index file.")
    index_entries: int = Field(default=20_000_000, ge=2, le=1 << 28, description="Entries in a key-index file.")

    message_bytes_max: int = Field(default=4 * MIB, ge=1, le=16 * MIB, description="Largest message body.")

    flush: FlushPolicy = Field(default="async", description="`sync`: acknowledge a send once it is on disk.")
    flush_interval_ms: int = Field(default=500, ge=1, description="Interval of flushes with `async`.")
    flush_timeout_ms: int = Field(default=5_000, ge=1, description="Longest wait for a flush with `sync`.")
    visible_after: VisibleAfter = Field(
        default="written", description="Consumers see a message once it is `written`, or once it is `durable`."
    )

    preallocate: bool = Field(
        default=False,
        description="Allocate commit-log files completely when they are created, instead of in steps as they fill.",
    )
    warm_bytes: int = Field(
        default=64 * MIB, ge=0, description="Bytes after the end of the log whose pages are pre-faulted."
    )
    lock_memory: bool = Field(default=False, description="Lock the pages near the end of the log in memory (mlock).")
    hot_bytes: int = Field(
        default=GIB,
        ge=0,
        description=(
            "Bytes before the end of the log that are returned as they are in memory. Older ones are checked, and"
            " read in a thread unless the page cache has them."
        ),
    )

    checkpoint_interval_ms: int = Field(default=10_000, ge=1, description="Interval of checkpoints.")
    checkpoint_bytes: int = Field(default=256 * MIB, ge=1, description="New log bytes that cause an early checkpoint.")
    offset_flush_interval_ms: int = Field(
        default=1_000, ge=1, description="Interval at which committed offsets are written to the log."
    )

    retention_hours: float = Field(default=72, ge=0, description="Age at which messages are deleted.")
    dead_letter_retention_hours: float = Field(
        default=72, ge=0, description="Age at which dead letters become unreadable, if `retention_hours` is longer."
    )
    ledger_retention_days: float = Field(
        default=90, ge=0, description="Time without a commit after which a scope leaves the ledger of staged writes."
    )
    retention_group: str = Field(
        default="",
        description="Consumer group, such as that of an archive, whose unread messages are not deleted.",
    )
    retention_hour_of_day: int = Field(
        default=4, ge=0, le=23, description="Local hour in which old segments are deleted."
    )
    disk_clean_ratio: float = Field(
        default=0.75, gt=0, le=1, description="Disk usage above which old segments are deleted at any hour."
    )
    disk_force_ratio: float = Field(
        default=0.85, gt=0, le=1, description="Disk usage above which segments are deleted before their age."
    )
    disk_refuse_ratio: float = Field(default=0.90, gt=0, le=1, description="Disk usage above which sends are refused.")


class SqlSettings(Section):
    """The SQL store."""

    OLD_NAMES: ClassVar[Mapping[str, str]] = {"wait_ms": "database_wait_ms", "waits_for_groups": "retains_unread"}

    message_bytes_max: int = Field(default=4 * MIB, ge=1, le=16 * MIB - 1, description="Largest message body.")
    topic_names: TopicNames = Field(
        default="lower",
        description="Names of new topics: `lower`, legal in a table name; `any`, like RocketMQ (others by digest).",
    )
    connections_max: int = Field(default=8, ge=2, le=1_000, description="Connections to the database.")
    database_wait_ms: int = Field(
        default=5_000, ge=0, description="Longest time that a send waits for an unreachable database."
    )
    lease_ms: int = Field(
        default=10_000, ge=500, description="Lease of the leading broker; after it, another broker takes over."
    )
    leader_busy_delay_ms: float = Field(
        default=50,
        ge=0,
        description="Mean delay of the leader's event loop above which it advises clients to pull from the other "
        "brokers on the database; 0: never.",
    )
    partition_rows: int = Field(default=1_000_000, ge=100, description="Messages in one partition of a table.")
    retention_hours: float = Field(default=168, ge=0, description="Age at which messages are deleted.")
    retains_unread: bool = Field(
        default=True, description="Keep messages that a group has not read, unless it is inactive for 30 days."
    )
    dead_letter_retention_hours: float = Field(
        default=72, ge=0, description="Age at which dead letters are deleted, read or not."
    )
    transaction_retention_hours: float = Field(
        default=72,
        ge=0,
        description="Time after which half messages that were rolled back or given up are deleted.",
    )
    token_keys: HiddenText | None = Field(
        default=None,
        description="Fernet keys, separated by commas, that encrypt the secrets of tokens: the first encrypts, "
        "all decrypt. Without them, secrets are stored as they are.",
    )

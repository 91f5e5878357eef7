"""What can be set: each with a sentence, a unit in its name, and bounds. A room gets its own section by constructor."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

FlushPolicy = Literal["async", "sync"]
Watermark = Literal["written", "durable", "replicated"]


class LogSettings(BaseModel):
    """The log store."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # -- fixed for a store's life: kept in it, and what is kept wins over what is set --------------------------------
    segment_bytes: int = Field(default=GIB, ge=4 * KIB, le=GIB, description="Size of a commit-log file.")
    queue_file_entries: int = Field(default=300_000, ge=1, description="Entries in a consume-queue file.")
    index_slots: int = Field(default=5_000_000, ge=1, le=1 << 28, description="Hash slots in a key-index file.")
    index_entries: int = Field(default=20_000_000, ge=2, le=1 << 28, description="Entries in a key-index file.")

    message_bytes_max: int = Field(default=4 * MIB, ge=1, le=16 * MIB, description="Largest body.")

    flush: FlushPolicy = Field(default="async", description="`sync`: a send is acknowledged once it is on disk.")
    flush_interval_ms: int = Field(default=500, ge=1, description="How long an asynchronous flush may lag.")
    flush_timeout_ms: int = Field(default=5_000, ge=1, description="How long a synchronous flush may take.")
    visible_after: Watermark = Field(default="written", description="How safe a message must be before readers see it.")

    warm_bytes: int = Field(default=64 * MIB, ge=0, description="How far ahead of the tail pages are made ready.")
    lock_memory: bool = Field(default=False, description="Keep the pages near the tail from being swapped out (mlock).")
    hot_bytes: int = Field(default=GIB, ge=0, description="How far behind the tail reads are served on the event loop.")

    checkpoint_interval_ms: int = Field(default=10_000, ge=1, description="How often views are made durable.")
    checkpoint_bytes: int = Field(
        default=256 * MIB, ge=1, description="After how much new log they are, at the latest."
    )
    offsets_interval_ms: int = Field(default=1_000, ge=1, description="How often changed group offsets go to the log.")

    retention_hours: float = Field(default=72, ge=0, description="How long messages are kept.")
    retention_hour_of_day: int = Field(
        default=4, ge=0, le=23, description="The local hour in which old segments are deleted."
    )
    disk_clean_ratio: float = Field(
        default=0.75, gt=0, le=1, description="Fuller than this, old segments go at any hour."
    )
    disk_force_ratio: float = Field(
        default=0.85, gt=0, le=1, description="Fuller than this, segments go before their time."
    )
    disk_refuse_ratio: float = Field(default=0.90, gt=0, le=1, description="Fuller than this, writes are refused.")

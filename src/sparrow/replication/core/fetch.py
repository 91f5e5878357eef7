"""What followers ask and what leaders answer. A fetch also acknowledges: it says what the follower has."""

from __future__ import annotations

import msgspec


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """A follower asks for the bytes behind its end."""

    set_id: str
    replica_id: int
    incarnation: str
    epoch: int
    """The epoch of the leader that it follows."""
    offset: int
    """Its end: all before it is written."""
    last_epoch: int
    """The epoch of its last byte; 0 if it has none."""
    safe_end: int
    """Its bytes before this offset survive what the flush policy promises to survive."""
    high_watermark: int
    bytes_max: int
    wait_ms: int


class SafeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A follower acknowledges a finished flush, between two fetches."""

    set_id: str
    replica_id: int
    incarnation: str
    epoch: int
    safe_end: int


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one epoch, or none: then the answer only carries the marks."""

    epoch: int
    """The leader's epoch."""
    offset: int
    length: int
    chunk_epoch: int
    """The epoch that wrote these bytes."""
    high_watermark: int
    first: int
    """The oldest byte that the leader has; 0 while followers must not delete what it has deleted."""
    end: int


class Diverged(msgspec.Struct, frozen=True, kw_only=True):
    """The follower's last bytes are not the leader's. It cuts its log, and asks again."""

    epoch: int
    offset: int
    """The end of the follower's log, as of the fetch that this answers."""
    last_epoch: int
    """The epoch before that end."""
    common_epoch: int
    """The newest epoch of the leader that is not above the follower's last."""
    common_end: int
    """Where the leader's bytes of that epoch end."""


class OutOfRange(msgspec.Struct, frozen=True, kw_only=True):
    """The leader has deleted what the follower needs next. It starts again, empty, at `first`."""

    epoch: int
    offset: int
    """As in `Diverged`."""
    last_epoch: int
    first: int


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """The fetch cannot be answered here."""

    epoch: int
    """The newest epoch that the answering replica has heard of."""
    reason: str


FetchAnswer = Chunk | Diverged | OutOfRange | Rejected

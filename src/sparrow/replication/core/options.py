"""What is configured for one replica."""

from __future__ import annotations

import msgspec

CHUNK_BYTES_MAX = 8 << 20
"""A fetch may ask for so much at most."""
TICK_MS_MAX = 250
"""The longest time between two ticks: whether the disk still works is looked at so often."""
SETTLED_READS = 3
"""The state is read so many times less often while this replica leads, or its leader answers."""


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one replica takes part in its set. Times are ms."""

    set_id: str
    replica_id: int
    lag_ms: int = 1000
    """A follower that has not caught up for so long leaves the in-sync set."""
    read_every_ms: int = 1000
    """How often the state is read, beside the watch."""
    election_delay_ms: int = 10
    """How long a candidate waits for news that are on their way: it is part of every fail-over."""
    resign_after_ms: int = 5000
    """A leader without enough followers resigns after so long, if another replica could lead."""
    successor_delay_ms: int = 1000
    """How long the others wait when a leader has handed over to one of them."""
    fetch_bytes_max: int = 4 << 20
    fetch_wait_ms: int = 500
    fetch_timeout_ms: int = 1000

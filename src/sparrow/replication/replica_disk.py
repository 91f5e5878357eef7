"""What a replica keeps on disk: its copy of the log, and its identity. It carries out what the state machine asks for.

1. A new incarnation is durable before the bytes are deleted for which the old one vouched.
2. That a log is damaged is forgotten last: until it is deleted, a start must not trust it.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from sparrow.replication.core.epochs import EpochHistory, EpochStart
from sparrow.replication.core.fetch import Chunk
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.identity import ReplicaIdentity, make_incarnation, save_identity
from sparrow.store.log import LogStore

log = logging.getLogger(__name__)


class ReplicaDisk:
    """The open store of a replica, and who the replica is. Its methods may block, except the properties."""

    def __init__(self, store: LogStore, identity: ReplicaIdentity) -> None:
        self.store, self.identity = store, identity
        self.is_flushed = store.settings.flush == "sync"
        """Whether only durable bytes are safe."""
        if any(damage.end > damage.start for damage in store.damage):
            log.error("the log of replica %(id)s is damaged: it is copied again", {"id": identity.replica_id})
            self.note_identity(incarnation=make_incarnation(), must_copy=True)

    def position(self) -> LogPosition:
        """Return what the log has, as of a start."""
        store, end = self.store, self.store.written
        return LogPosition(
            store.first,
            end,
            store.watermark("durable") if self.is_flushed else end,
            min(max(store.first, store.watermark("replicated")), end),
            EpochHistory(EpochStart(*start) for start in store.replica.epochs),
        )

    def safe_end(self, end: int) -> int:
        """Return how much of the log up to `end` is safe. A start would cut the beginning of an atomic append off."""
        durable = min(int(self.store.watermark("durable")), end) if self.is_flushed else end
        return self.store.replica.complete_end(durable)

    def append(self, chunk: Chunk, body: bytes | memoryview) -> int:
        """Append the bytes of a chunk, and return where the last whole record ends."""
        replica = self.store.replica
        if replica.end != chunk.offset:
            replica.discard_incomplete()  # begun by another leader
        return replica.append(chunk.offset, body)

    def restart_at(self, first: int, incarnation: str) -> None:
        """Delete the log, and start an empty one at this offset, with a new incarnation."""
        log.warning("the leader has deleted what this replica needs next: copying from %(first)s on", {"first": first})
        self.note_identity(incarnation=incarnation)
        self.store.replica.restart_at(first)
        self.note_identity(must_copy=False)

    def truncate(self, end: int) -> None:
        """Cut what the leader does not have."""
        log.warning(
            "the log is cut to %(end)s: the leader has other records; %(bytes)s bytes are gone",
            {"end": end, "bytes": self.store.written - end},
        )
        self.store.replica.truncate(end)

    def note_identity(self, **changed: object) -> None:
        """Write changed fields of the identity to disk."""
        identity = msgspec.structs.replace(self.identity, **changed)
        if identity != self.identity:
            self.identity = identity
            save_identity(Path(self.store.path), identity)

"""What a replica keeps on disk: its copy of the log, and its identity. It carries out what the state machine asks for.

1. A new incarnation is durable before the bytes are deleted for which the old one vouched.
2. That a log is damaged is forgotten last: until it is deleted, a start must not trust it.
3. What the state machine counts on is written, or the replica takes no further step: on a full disk it waits for space.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from sparrow.model.errors import SparrowError, StoreFull
from sparrow.replication.core.epochs import EpochHistory, EpochStart
from sparrow.replication.core.fetch import Chunk
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.output import Output
from sparrow.replication.identity import ReplicaIdentity, make_incarnation, save_identity
from sparrow.store.log import LogStore

log = logging.getLogger(__name__)

_RETRY_S = 0.5
"""How soon a write is repeated that found the disk full."""


def is_full(error: SparrowError | OSError) -> bool:
    """Return whether the disk had no space."""
    return isinstance(error, StoreFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))


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

    async def write(self, output: Output, incarnation: str, report: Callable[[str, str], None]) -> None:
        """Note what was heard, and cut the log, as a step asks for. While the disk is full, report that and wait."""
        writes: list[Callable[[], None]] = []
        if output.heard_epoch is not None:
            writes.append(partial(self.note_identity, incarnation=incarnation, heard_epoch=output.heard_epoch))
        if output.restart_at is not None:
            writes.append(partial(self.restart_at, output.restart_at, incarnation))
        if output.truncate_to is not None:
            writes.append(partial(self.truncate, output.truncate_to))
        while writes:
            try:
                await asyncio.to_thread(writes[0])
                del writes[0]
            except (SparrowError, OSError) as error:
                if not is_full(error):
                    raise
                report("full disk", f"the replica takes no part in its set until its disk has space: {error}")
                await asyncio.sleep(_RETRY_S)

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
        before = self.store.written
        self.store.replica.truncate(end)
        if before > end:
            log.warning(
                "the log is cut to %(end)s: the leader has other records; %(bytes)s bytes are gone",
                {"end": end, "bytes": before - end},
            )

    def start_epoch(self, epoch: int, heard_epoch: int | None) -> tuple[int, int]:
        """Note that the epoch was heard of, append its record, make it durable, and return its start and end."""
        if heard_epoch is not None:
            self.note_identity(heard_epoch=heard_epoch)
        start, end = self.store.replica.start_epoch(epoch)
        log.info("replica %(id)s leads epoch %(epoch)s", {"id": self.identity.replica_id, "epoch": epoch})
        return start, end

    def delete_before(self, first: int) -> None:
        """Delete whole segments, as the leader has. If that fails, the next deletion includes it."""
        try:
            self.store.replica.delete_before(first)
        except (SparrowError, OSError) as error:
            log.warning("segments before %(first)s are not deleted: %(error)s", {"first": first, "error": error})

    def note_identity(self, **changed: object) -> None:
        """Write changed fields of the identity to disk."""
        identity = msgspec.structs.replace(self.identity, **changed)
        if identity != self.identity:
            save_identity(Path(self.store.path), identity)
            self.identity = identity

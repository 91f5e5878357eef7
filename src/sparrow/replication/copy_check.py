"""The check of a copied log: a replica compares the old records that it has copied with those of other replicas.

The checksum of a record covers its body only, so that damage in the topic or the properties of an old record on the
leader's disk cannot be seen in the bytes. But the other replicas got these bytes when they were new, from the leader's
memory. A replica that has copied what was written before it started compares it with them once, in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from sparrow.model.errors import SparrowError
from sparrow.net.access.peer_access import PeerAccess
from sparrow.replication.replica_connection import ReplicaConnection
from sparrow.store.log import LogStore, checksums
from sparrow.wire.headers import ChecksumLog

log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 20
_REQUEST_BYTES = 16 << 20
_PAUSE_S = 0.05
"""Between two requests: the check takes a part of a disk and of a core only."""
_ATTEMPTS = 20
_ATTEMPT_S = 0.5
"""Another replica may learn a little later that everything copied is committed."""


class CopyCheck:
    """What one replica has copied since its start, and what was found out about it."""

    def __init__(self, store: LogStore, set_id: str, replica_id: int, access: PeerAccess) -> None:
        self._store, self._set_id, self._replica_id, self._access = store, set_id, replica_id, access
        self._start: int | None = int(store.written)
        self.end: int | None = None
        """Where the copy ends; None if nothing is to be checked (any more)."""
        self.differences: list[str] = []
        """What the operator must know: where this replica differs from which other one."""

    def restart_at(self, first: int) -> None:
        """Note that everything is copied again, from this offset on."""
        self._start, self.end = first, None

    def begin(self, end: int) -> None:
        """Note where the leader's log ends when the first bytes of it arrive."""
        if self._start is not None and self.end is None:
            self.end = end

    def is_due(self, high_watermark: int) -> bool:
        """Return whether everything that was copied is committed, and not checked yet."""
        return self.end is not None and high_watermark >= self.end

    def run(self, addresses: Mapping[int, str]) -> Coroutine[Any, Any, None]:
        """Compare the copy, once, with the logs of all replicas at these addresses."""
        start, end = self._start, self.end
        self._start = self.end = None
        assert start is not None
        assert end is not None, "it is due"
        return self._run(addresses, start, end)

    async def _run(self, addresses: Mapping[int, str], start: int, end: int) -> None:
        for number, address in sorted(addresses.items()):
            try:
                await self._compare(number, address, start, end)
            except SparrowError as error:
                log.info(
                    "the copied log is not compared with replica %(number)s: %(error)s",
                    {"number": number, "error": error},
                )

    async def _compare(self, number: int, address: str, start: int, end: int) -> None:
        async with ReplicaConnection(address, self._access, timeout_ms=30_000) as replica:
            for _ in range(_ATTEMPTS):
                status = await replica.status()
                if status.set_id != self._set_id or status.high_watermark >= end:
                    break
                await asyncio.sleep(_ATTEMPT_S)
            start = max(start, status.first, int(self._store.first))
            for offset in range(start, min(end, status.high_watermark), _REQUEST_BYTES):
                until = min(offset + _REQUEST_BYTES, end, status.high_watermark)
                theirs = await replica.log_checksums(ChecksumLog(self._set_id, offset, until, _BLOCK_BYTES))
                ours = await asyncio.to_thread(checksums.log_checksums, self._store, offset, until, _BLOCK_BYTES)
                if ours != theirs:
                    block = next(at for at, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other)
                    self._report(number, offset + block * _BLOCK_BYTES)
                    return
                await asyncio.sleep(_PAUSE_S)

    def _report(self, number: int, offset: int) -> None:
        text = (
            f"replica {self._replica_id} has copied bytes of the log that replica {number} does not have, in the "
            f"{_BLOCK_BYTES} bytes from {offset} on: a disk has changed them; run `sparrow cluster verify`"
        )
        self.differences.append(text)
        log.critical("%(text)s", {"text": text})

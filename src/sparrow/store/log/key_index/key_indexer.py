"""The key indexer: puts keys that wait in memory into the key index, in the background or before a reader uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparrow.store.log.key_index.key_index import KeyIndex
from sparrow.store.log.maintenance import INDEX_KEYS, LogMaintenance
from sparrow.store.log.parts import LogParts
from sparrow.store.log.threads import LogThreads

KEY_BACKLOG_BYTES_MAX = 64 << 20
"""Memory for keys of encoded runs that are not in the key index yet; beyond it, the appending thread indexes them."""


class KeyIndexer:
    """Brings the key index up to date with the log."""

    def __init__(self, parts: LogParts, maintenance: LogMaintenance, threads: LogThreads) -> None:
        self._index, self._backlog = parts.index, parts.writer.key_backlog
        self._maintenance, self._thread = maintenance, threads.maintenance

    def run_soon(self) -> None:
        """Start indexing of keys that wait in memory; do it in this thread if there are too many."""
        if self._backlog.held_bytes > KEY_BACKLOG_BYTES_MAX:
            with self._thread.paused():
                self._maintenance.catch_up_key_index()
        elif self._backlog.held_bytes:
            self._thread.run_soon(INDEX_KEYS)

    @contextmanager
    def complete_index(self) -> Iterator[KeyIndex]:
        """Yield the index with the keys of all appended records. Maintenance does not run meanwhile."""
        with self._thread.paused():
            self._maintenance.catch_up_key_index()
            yield self._index

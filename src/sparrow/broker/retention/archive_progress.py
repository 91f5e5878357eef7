"""The progress of an archive, for which retention waits before it deletes messages."""

from __future__ import annotations

from typing import Protocol


class GroupProgressStore(Protocol):
    def consumed_to(self, group: str) -> int | None: ...


class ArchiveProgress:
    """Returns, in the store's maintenance thread, up to which physical offset an archive is complete.

    The archive's progress is that of its consumer group. A group that has read nothing stands at the start, so nothing
    is deleted before the archive has run for the first time.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._store: GroupProgressStore | None = None

    def attach_store(self, store: GroupProgressStore) -> None:
        """Set the store, which needs this object before it is open. Until then, nothing counts as archived."""
        self._store = store

    def __call__(self) -> int | None:
        """Return the offset; None if retention waits for no archive."""
        if not self._group:
            return None
        return (self._store.consumed_to(self._group) if self._store is not None else None) or 0

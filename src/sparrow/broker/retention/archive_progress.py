"""What retention waits for: the group that shows how far an archive has got."""

from __future__ import annotations

from typing import Protocol


class GroupProgressStore(Protocol):
    def consumed_to(self, group: str) -> int | None: ...


class ArchiveProgress:
    """Asked by the store's keeper, in its thread, up to which physical offset an archive holds everything.

    A group that has read nothing yet stands at the start: until its archive runs for the first time, nothing goes.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._store: GroupProgressStore | None = None

    def attach_store(self, store: GroupProgressStore) -> None:
        """A store wants to know whom to ask before it is open; before that, nothing is archived."""
        self._store = store

    def __call__(self) -> int | None:
        """None: retention waits for nobody."""
        if not self._group:
            return None
        return (self._store.consumed_to(self._group) if self._store is not None else None) or 0

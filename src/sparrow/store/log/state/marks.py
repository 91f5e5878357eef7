"""Marks of a log store: named integers that survive a restart, written through the log."""

from __future__ import annotations

from sparrow.store.log.state.state_store import StateStore
from sparrow.store.log.state.updates import MarkUpdate


class LogMarks:
    """Reads from the state tables; writes through the log."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    async def get(self, name: str) -> int | None:
        return self._state.tables.marks.get(name)

    async def put(self, name: str, value: int) -> None:
        self.put_nowait(name, value)

    def put_nowait(self, name: str, value: int) -> None:
        """Append the mark after everything appended so far: if it survives a crash, so do those records."""
        self._state.append([MarkUpdate(name, value)])

"""The key backlog: appended records whose keys are not in the key index yet, in log order."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple, Union

import numpy as np
import numpy.typing as npt

from sparrow.wire import columns


class KeyedRun(NamedTuple):
    """An encoded run that was parsed when it was appended: its keys need not be read from the log."""

    keys: columns.RecordKeys
    places: npt.NDArray[np.int64]
    """Physical offsets of its records."""
    store_ms: int | npt.NDArray[np.int64]
    """When they were stored: all at one time, or each at its own."""


BacklogItem = Union["array[int]", KeyedRun]
"""Physical offsets of single records, whose keys are read from the log later in bulk; or a run."""


class KeyBacklog:
    """Appends add to it under the writer's lock; maintenance takes everything."""

    def __init__(self) -> None:
        self._items: list[BacklogItem] = []
        self.count = 0
        """The number of records."""
        self.held_bytes = 0
        """The memory that runs use."""

    def add_offsets(self, physical_offsets: Iterable[int]) -> None:
        if not self._items or isinstance(self._items[-1], KeyedRun):
            self._items.append(array("q"))
        places = self._items[-1]
        assert not isinstance(places, KeyedRun)
        before = len(places)
        places.extend(physical_offsets)
        self.count += len(places) - before

    def add_offset(self, physical_offset: int) -> None:
        items = self._items
        if not items or items[-1].__class__ is KeyedRun:
            items.append(array("q"))
        items[-1].append(physical_offset)  # type: ignore[union-attr]
        self.count += 1

    def add_run(
        self, keys: columns.RecordKeys, places: npt.NDArray[np.int64], store_ms: int | npt.NDArray[np.int64]
    ) -> None:
        self._items.append(KeyedRun(keys, places, store_ms))
        self.count += len(places)
        self.held_bytes += keys.held_bytes

    def take(self) -> list[BacklogItem]:
        """Remove and return everything."""
        taken, self._items, self.count, self.held_bytes = self._items, [], 0, 0
        return taken

    def put_back(self, items: list[BacklogItem]) -> None:
        """Put items back at the front, after a failure to index them."""
        self._items = items + self._items
        self.count = sum(len(part.places) if isinstance(part, KeyedRun) else len(part) for part in self._items)
        self.held_bytes = sum(part.keys.held_bytes for part in self._items if isinstance(part, KeyedRun))

    def truncate(self, end: int) -> None:
        """Drop records from `end` on, where the log was truncated. The keys of a partly dropped run are read again."""
        kept: list[BacklogItem] = []
        for part in self.take():
            if isinstance(part, KeyedRun) and len(part.places) and int(part.places[-1]) < end:
                kept.append(part)
            else:
                places = part.places.tolist() if isinstance(part, KeyedRun) else part
                kept.append(array("q", [at for at in places if at < end]))
        self.put_back(kept)

"""What the key index still has to file, in log order."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Keys(NamedTuple):
    """Keys of a run of records, already hashed: the run was read anyway when it was appended."""

    hashes: npt.NDArray[np.int32]
    physical_offsets: npt.NDArray[np.int64]
    store_ms: int


class Unfiled:
    """Portions in order: places of single records, whose keys are read later and together, and keys of runs.

    Grown under the store's lock by whoever appends, emptied by the keeper.
    """

    def __init__(self) -> None:
        self._portions: list[array[int] | Keys] = []
        self.count = 0

    def add_places(self, physical_offsets: Iterable[int]) -> None:
        if not self._portions or isinstance(self._portions[-1], Keys):
            self._portions.append(array("q"))
        places = self._portions[-1]
        assert not isinstance(places, Keys)
        before = len(places)
        places.extend(physical_offsets)
        self.count += len(places) - before

    def add_keys(self, keys: Keys) -> None:
        self._portions.append(keys)
        self.count += len(keys.hashes)

    def take(self) -> list[array[int] | Keys]:
        """Everything, handed over."""
        taken, self._portions, self.count = self._portions, [], 0
        return taken

    def put_back(self, portions: list[array[int] | Keys]) -> None:
        """What could not be filed goes first next time."""
        self._portions = portions + self._portions
        self.count = sum(len(part.hashes) if isinstance(part, Keys) else len(part) for part in self._portions)

    def cut(self, end: int) -> None:
        """The log was cut at `end`: what lay behind it will not be filed."""
        kept: list[array[int] | Keys] = []
        for part in self.take():
            if isinstance(part, Keys):
                count = int(np.searchsorted(part.physical_offsets, end))
                kept.append(Keys(part.hashes[:count], part.physical_offsets[:count], part.store_ms))
            else:
                kept.append(array("q", [at for at in part if at < end]))
        self.put_back(kept)

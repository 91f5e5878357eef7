"""Which process has which broker id among the slaves of a master, as the slaves have announced it."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparrow.model.errors import Refused

SLAVES_MAX = 64
ANNOUNCED_S = 10
"""How long a master remembers a slave that is silent."""


class SlaveAddresses:
    """The addresses of slaves by their broker ids. An address that is not announced again is forgotten."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._announced: dict[int, tuple[str, float]] = {}
        """The address of each slave, and when it was last announced."""

    def announce(self, broker_id: int, address: str, replacing: str = "") -> str | None:
        """Note the address of a slave, and return None; or return the address of another process with its id.

        `replacing`: the address of a process that is gone.
        """
        _check_id(broker_id)
        holder, at_s = self._announced.get(broker_id, ("", 0.0))
        now_s = self._now_s()
        if holder not in ("", address, replacing) and now_s - at_s < ANNOUNCED_S:
            return holder
        self._announced[broker_id] = address, now_s
        return None

    def withdraw(self, broker_id: int, address: str) -> None:
        """Forget the address of a slave, unless another process has its id now."""
        if self._announced.get(broker_id, ("", 0.0))[0] == address:
            del self._announced[broker_id]


def _check_id(broker_id: int) -> None:
    if not 1 <= broker_id <= SLAVES_MAX:
        raise Refused(f"a slave has a broker id from 1 to {SLAVES_MAX}, not {broker_id}: choose another --broker-id")

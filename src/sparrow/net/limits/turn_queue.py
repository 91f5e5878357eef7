"""Turns of connections whose requests must wait: the address that was served least comes first.

A connection that sends much, or asks for much, is served for a short while, and then waits here with the rest of its
requests. However many such connections there are, they hold an iteration of the event loop only for `TURNS_S`
together, so that all others are read in between. Addresses get equal shares of the time, not connections.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

TURNS_S = 0.005
"""How long the connections that wait are served in one iteration of the event loop."""
READS_S = 0.005
"""If requests were served for so long in an iteration, those of connections that are read later must wait, too."""
NOTED_S = 0.0002
"""Shorter services are not counted."""


class TurnTaker(Protocol):
    """A connection that waits for its turn."""

    @property
    def host(self) -> str:
        """The address of its peer, without its port."""

    def take_turn(self) -> None:
        """Serve some requests."""


class TurnQueue:
    """The connections of a listener that wait for a turn."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._waiting: dict[str, deque[TurnTaker]] = {}
        self._served_s: dict[str, float] = {}
        """How long each address was served, since no connection waited."""
        self._least_s = 0.0
        """How long the address that was chosen last had been served. An address that comes later starts with it."""
        self._is_serving = False
        """Whether turns are given in the next iteration of the event loop, or in this one."""
        self.spent_s = 0.0
        """How long requests were served in this iteration of the event loop."""

    def note(self, served_s: float) -> None:
        """Note that requests were served."""
        if not self.spent_s:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        self.spent_s += served_s

    def _begin_iteration(self) -> None:
        self.spent_s = 0.0

    def wait(self, taker: TurnTaker) -> None:
        """Give a connection a turn, in one of the next iterations of the event loop. It waits once at a time."""
        takers = self._waiting.get(taker.host)
        if takers is None:
            takers = self._waiting[taker.host] = deque()
            self._served_s[taker.host] = max(self._served_s.get(taker.host, 0.0), self._least_s)
        takers.append(taker)
        if not self._is_serving:
            self._is_serving = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        began_s = self._now_s()
        ends_s = began_s + TURNS_S
        while self._waiting:
            host = min(self._waiting, key=self._served_s.__getitem__)
            self._least_s = self._served_s[host]
            takers = self._waiting[host]
            taker = takers.popleft()
            if not takers:
                del self._waiting[host]
            try:
                taker.take_turn()  # it may wait again
            except Exception:  # all others still want their turns
                log.exception("requests of %(host)s failed in their turn", {"host": host})
            now_s = self._now_s()
            self._served_s[host] += now_s - began_s
            began_s = now_s
            if now_s > ends_s and self._waiting:
                asyncio.get_running_loop().call_soon(self._serve)
                return
        self._served_s.clear()
        self._least_s, self._is_serving = 0.0, False

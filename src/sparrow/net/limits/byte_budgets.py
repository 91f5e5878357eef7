"""The byte budgets of a listener: what its peers may keep in memory, in all and by address; by token: `token_budget`.

1. Incomplete frames and unsent responses can only be dropped with their connection. Above the budget, the largest
   connection of the address that holds the most is closed.
2. An address may hold as many bytes of requests in progress as are free then. So one address alone gets half of the
   budget, the next one half of the rest at least, and there is always room for an address that holds nothing.
3. Before anything is closed or refused, connections that hold much are not read from (`ReadGate`); how much that is
   becomes less as a budget fills up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, get_args

from sparrow.model.errors import Busy
from sparrow.model.errors.base import LimitName
from sparrow.net.limits.refusals import RefusalCounts, close_connection
from sparrow.net.limits.token_budget import TokenBudget
from sparrow.net.limits.turn_queue import TurnQueue

if TYPE_CHECKING:
    from sparrow.net.channel import Channel
    from sparrow.settings import NetSettings

UNSENT_COUNTED_BYTES = 1 << 16
"""The unsent bytes of a connection from which on they are counted; fewer are those of a connection that is read."""
BROKEN_FRAMES = "broken_frames"
"""The name of a refusal: a connection that was closed because of a frame that is none, or is too large."""


class ConnectionBytes:
    """Bytes that connections hold until they send more, read more, or are closed."""

    def __init__(self, kind: str, setting: str, bytes_max: int) -> None:
        """`kind`: what the bytes are. `setting`: the name of the limit of all connections, for the log."""
        self.bytes_max, self._kind, self._setting = bytes_max, kind, setting
        self._held: dict[Channel, int] = {}
        self._of_host: dict[str, int] = {}
        self.total_bytes = 0
        self.refused = 0
        """Connections that were closed because of the budget."""

    @property
    def share_bytes(self) -> int:
        """How much one connection should hold at most: its share of what is free."""
        return max(0, self.bytes_max - self.total_bytes) // (len(self._held) or 1)

    def update(self, channel: Channel, held_bytes: int) -> None:
        """Note what a connection holds now."""
        self._set(channel, held_bytes)
        if self.total_bytes > self.bytes_max:
            host = max(self._of_host, key=self._of_host.__getitem__)
            largest = max((one for one in self._held if one.host == host), key=self._held.__getitem__)
            self._refuse(
                largest,
                f"all connections together hold {self.total_bytes} bytes of {self._kind} (limit {self._setting} ="
                f" {self.bytes_max}), its address {self._of_host[host]} of them",
            )

    def _set(self, channel: Channel, held_bytes: int) -> None:
        grown = held_bytes - self._held.get(channel, 0)
        if held_bytes:
            self._held[channel] = held_bytes
        else:
            self._held.pop(channel, None)
        self.total_bytes += grown
        of_host = self._of_host.get(channel.host, 0) + grown
        if of_host:
            self._of_host[channel.host] = of_host
        else:
            self._of_host.pop(channel.host, None)

    def forget(self, channel: Channel) -> None:
        """Note that a connection is closed."""
        self._set(channel, 0)

    def _refuse(self, channel: Channel, reason: str) -> None:
        self.refused += 1
        self.forget(channel)
        close_connection(channel, reason)


class IncompleteFrames(ConnectionBytes):
    """Bytes that peers have sent before a request is whole. They are held before anything is authenticated."""

    def __init__(self, bytes_max: int, *, timeout_s: float) -> None:
        """`timeout_s`: how long a frame may take to be whole."""
        super().__init__("incomplete frames", "net.incomplete_bytes_max", bytes_max)
        self._timeout_s = timeout_s
        self._since: dict[Channel, float] = {}

    def note(self, channel: Channel, held_bytes: int, *, is_new: bool) -> None:
        """Note what a connection holds now. `is_new`: of another frame than before."""
        if not held_bytes:
            self._since.pop(channel, None)
        elif is_new or channel not in self._since:
            self._since[channel] = asyncio.get_running_loop().time()
        self.update(channel, held_bytes)

    def forget(self, channel: Channel) -> None:
        super().forget(channel)
        self._since.pop(channel, None)

    def close_overdue(self) -> None:
        """Close the connections whose frame takes too long."""
        begun_before = asyncio.get_running_loop().time() - self._timeout_s
        for channel in [channel for channel, since in self._since.items() if since < begun_before]:
            self._refuse(channel, f"its frame was not whole after {self._timeout_s:.0f} s")


class RequestBytes:
    """Bytes of requests in progress, and of those that wait for their turn."""

    def __init__(self, bytes_max: int, *, connection_bytes_max: int) -> None:
        self.bytes_max, self._connection_bytes_max = bytes_max, connection_bytes_max
        self._of_host: dict[str, int] = {}
        self.total_bytes = 0
        self.is_tight = False
        """Whether more than a quarter of the budget is used. Otherwise no address can hold more than is free."""
        self.refused = 0
        """Requests that were refused, and connections that were closed, because of the budget."""

    @property
    def connection_bytes(self) -> int:
        """Above how many bytes a connection is not read from."""
        if not self.is_tight:
            return self._connection_bytes_max
        return min(self._connection_bytes_max, max(0, self.bytes_max - self.total_bytes) // 4)

    def hold(self, host: str, size: int) -> None:
        """Note that a request of an address is in progress."""
        self._of_host[host] = self._of_host.get(host, 0) + size
        self.total_bytes += size
        self.is_tight = self.total_bytes > self.bytes_max >> 2

    def release(self, host: str, size: int) -> None:
        """Note that a request is answered."""
        left = self._of_host[host] - size
        if left:
            self._of_host[host] = left
        else:
            del self._of_host[host]
        self.total_bytes -= size
        self.is_tight = self.total_bytes > self.bytes_max >> 2

    def refusal(self, host: str, size: int) -> Busy | None:
        """Return why an address may not have another request of that size in progress; None if it may."""
        held, free = self._of_host.get(host, 0), self.bytes_max - self.total_bytes
        if held + size <= free - size:
            return None
        self.refused += 1
        return Busy(
            f"requests in progress of all connections hold {self.total_bytes} bytes (limit net.request_bytes_max ="
            f" {self.bytes_max}), those of your address {held}, and your request has {size}: try again later"
        )


class ByteBudgets:
    """All byte budgets of a listener, and the turns of connections that wait because of them."""

    def __init__(self, settings: NetSettings, *, counts_tokens: bool = False) -> None:
        """`counts_tokens`: whether requests are signed, so that tokens have budgets, too."""
        self.tokens = TokenBudget(settings.token_bytes_max) if counts_tokens else None
        self.incomplete_frames = IncompleteFrames(
            settings.incomplete_bytes_max, timeout_s=settings.frame_timeout_ms / 1000
        )
        self.requests = RequestBytes(
            settings.request_bytes_max, connection_bytes_max=settings.connection_request_bytes_max
        )
        self.unsent = ConnectionBytes("unsent responses", "net.unsent_bytes_max", settings.unsent_bytes_max)
        self.connection_unsent_bytes_max = settings.connection_unsent_bytes_max
        self.turns = TurnQueue()
        self.counts = RefusalCounts()
        """Other refusals of the listener."""

    def held(self) -> list[tuple[tuple[str], float]]:
        """Return the bytes that are held now, by kind, as a metric has them."""
        return [
            (("incomplete_frames",), self.incomplete_frames.total_bytes),
            (("requests",), self.requests.total_bytes),
            (("unsent",), self.unsent.total_bytes),
        ]

    def refusals(self) -> dict[str, int]:
        """Return the requests that were refused, and the connections that were closed, by limit."""
        return {
            "incomplete_frames": self.incomplete_frames.refused,
            "request_bytes": self.requests.refused,
            "unsent_bytes": self.unsent.refused,
            "token_bytes": self.tokens.refused if self.tokens is not None else 0,
            **dict.fromkeys((*get_args(LimitName), BROKEN_FRAMES), 0),
            **self.counts.by_limit,
        }

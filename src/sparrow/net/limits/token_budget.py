"""The byte budgets of tokens: what all connections that are signed with one access key may keep in memory together.

1. Counted are requests in progress, requests that wait for their turn, and responses that are not sent, as in the
   budgets of addresses; and 1 KiB for each parked request.
2. A request above the budget is answered with busy. Unsent responses above it close the connection of the token that
   has the most of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sparrow.model.errors import Busy
from sparrow.net.limits.refusals import close_connection

if TYPE_CHECKING:
    from sparrow.net.channel import Channel


class TokenBytes:
    """The bytes that the connections of one token hold."""

    def __init__(self, budget: TokenBudget, access_key: str) -> None:
        self._budget, self._access_key = budget, access_key
        self.held_bytes = 0
        self._unsent: dict[Channel, int] = {}

    def refusal(self, size: int) -> Busy | None:
        """Return why the token may not have another request of that size in progress; None if it may."""
        if self.held_bytes + size <= self._budget.bytes_max:
            return None
        self._budget.refused += 1
        return Busy(f"{self._holds()}, and your request has {size}: read the responses, or try again later")

    def note_unsent(self, channel: Channel, unsent_bytes: int) -> None:
        """Note how much the peer of a connection has not read yet."""
        self.held_bytes += unsent_bytes - self._unsent.pop(channel, 0)
        if unsent_bytes:
            self._unsent[channel] = unsent_bytes
        if self.held_bytes > self._budget.bytes_max and self._unsent:
            largest = max(self._unsent, key=self._unsent.__getitem__)
            reason = f"{self._holds()}, and its peer has not read {self._unsent[largest]} of them"
            self._budget.refused += 1
            self.note_unsent(largest, 0)
            close_connection(largest, reason)

    def _holds(self) -> str:
        return (
            f"requests in progress and unsent responses of all connections with access key {self._access_key!r} hold "
            f"{self.held_bytes} bytes (limit net.token_bytes_max = {self._budget.bytes_max})"
        )


class TokenBudget:
    """The budgets of all tokens of a listener."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._by_token: WeakValueDictionary[str, TokenBytes] = WeakValueDictionary()
        """Those of tokens with a connection; each connection refers to its own."""
        self.refused = 0
        """Requests that were refused, and connections that were closed, because of the budget."""

    def of(self, access_key: str) -> TokenBytes:
        """Return the bytes of a token whose signature was verified."""
        found = self._by_token.get(access_key)
        if found is None:
            found = self._by_token[access_key] = TokenBytes(self, access_key)
        return found

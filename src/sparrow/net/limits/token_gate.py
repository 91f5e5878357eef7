"""`TokenReadGate`: the gate of a connection whose requests are signed. What it holds counts for its token, too.

A connection counts for the token of its first request with a valid signature. Listeners without signatures use
`ReadGate`, so budgets of tokens cost them nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparrow.model.errors import Busy
from sparrow.net.limits.byte_budgets import ByteBudgets
from sparrow.net.limits.read_gate import REQUEST_COST_BYTES, ReadGate, request_bytes_of
from sparrow.net.limits.token_budget import TokenBudget, TokenBytes
from sparrow.wire.frame import RemotingCommand

if TYPE_CHECKING:
    from sparrow.net.channel import Channel


class TokenReadGate(ReadGate):
    """The gate of one connection of a listener that verifies signatures."""

    def __init__(self, channel: Channel, budgets: ByteBudgets, tokens: TokenBudget) -> None:
        super().__init__(channel, budgets)
        self._tokens, self._tight_bytes = tokens, tokens.bytes_max >> 1  # below, every request fits
        self._bytes = TokenBytes(tokens, "")  # of this connection alone, until a signature is verified
        self._has_token = False
        self.token_gate = self

    def token_refusal(self, access_key: str | None, command: RemotingCommand) -> Busy | None:
        if not self._has_token and access_key is not None:
            self._join(self._tokens.of(access_key))
        if self._bytes.held_bytes <= self._tight_bytes or not self._has_token:
            return None
        return self._bytes.refusal(request_bytes_of(command))

    def _join(self, token: TokenBytes) -> None:
        held_bytes = self._request_bytes + self._postponed_bytes
        token.held_bytes += held_bytes
        token.note_unsent(self._channel, self._bytes.held_bytes - held_bytes)
        self._bytes, self._has_token = token, True

    def hold(self, size: int) -> None:
        self._bytes.held_bytes += size
        super().hold(size)

    def release(self, size: int) -> None:
        super().release(size)
        self._bytes.held_bytes -= size

    def _hold_postponed(self, size: int) -> None:
        super()._hold_postponed(size)
        self._bytes.held_bytes += size

    def _release_postponed(self) -> None:
        self._bytes.held_bytes -= self._postponed_bytes
        super()._release_postponed()

    def hold_parked(self, count: int) -> None:
        """Note that requests are parked, without their bodies; a negative number: they are not any more."""
        self._bytes.held_bytes += count * REQUEST_COST_BYTES

    def note_unsent(self, unsent_bytes: int) -> None:
        super().note_unsent(unsent_bytes)
        self._bytes.note_unsent(self._channel, unsent_bytes)

    def forget_unsent(self) -> None:
        super().forget_unsent()
        self._bytes.note_unsent(self._channel, 0)


def make_gate(channel: Channel, budgets: ByteBudgets) -> ReadGate:
    """Return the gate of a connection of a listener."""
    return ReadGate(channel, budgets) if budgets.tokens is None else TokenReadGate(channel, budgets, budgets.tokens)

"""`ReadGate`: when a listener reads from a peer, and the requests that wait meanwhile.

A connection is not read from, in this order of causes, while

1. other connections have a turn;
2. its peer does not read the responses, and more of them are unsent than it may have;
3. its requests in progress hold more bytes than they may.

A connection without unsent responses and without requests in progress is always read from: it cannot be starved.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Raw

from sparrow.model.errors import Busy
from sparrow.net.limits.byte_budgets import BROKEN_FRAMES, UNSENT_COUNTED_BYTES, ByteBudgets
from sparrow.net.limits.refusals import close_connection
from sparrow.net.limits.turn_queue import READS_S
from sparrow.wire.frame import RemotingCommand

if TYPE_CHECKING:
    from sparrow.net.channel import Channel
    from sparrow.net.limits.token_gate import TokenReadGate

_RESUME_POLL_S = 0.01
DEFERRED_BYTES_MAX = 1 << 16
"""With more deferred bytes than this, `settle` must be called."""
REQUEST_COST_BYTES = 1024
"""What a request in progress costs besides its body and its ext fields, roughly."""


class ReadGate:
    """The gate of one connection."""

    token_gate: TokenReadGate | None = None
    """The gate itself, if what it holds counts for a token."""

    def __init__(self, channel: Channel, budgets: ByteBudgets) -> None:
        self._channel, self._budgets = channel, budgets
        self._loop = asyncio.get_running_loop()
        self.requests, self.refusals, self.turns = budgets.requests, budgets.counts, budgets.turns
        self.postponed: deque[RemotingCommand] = deque()
        """Requests that wait for the next turn, or until the peer has read the responses to earlier ones."""
        self._postponed_bytes = 0
        self._request_bytes = 0
        self.deferred_bytes = 0
        """Bytes of requests that are held but not counted yet: counting each send would cost too much."""
        self._is_full = False
        """Whether the requests in progress hold too many bytes."""
        self.incomplete_bytes = 0
        """Bytes of a frame that is not whole, as noted last."""
        self._awaits_turn = False
        """Whether the turn queue has it."""

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""
        return self._channel.host

    # -- incoming -----------------------------------------------------------------------------------------------------

    def note_incomplete(self, held_bytes: int, *, is_new: bool) -> None:
        """Note the bytes of a frame that is not whole; 0: it is whole now. `is_new`: it is another one than before."""
        self.incomplete_bytes = held_bytes
        self._budgets.incomplete_frames.note(self._channel, held_bytes, is_new=is_new)

    def note_broken_frame(self) -> None:
        """Note that the connection is closed because of what the peer has sent."""
        self.refusals.by_limit[BROKEN_FRAMES] += 1

    @property
    def must_wait(self) -> bool:
        """Whether requests that have been read must wait: for earlier ones, or because others have taken long."""
        return bool(self.postponed) or self.turns.spent_s > READS_S

    def postpone(self, commands: Collection[RemotingCommand]) -> None:
        """Let requests wait for the next turn, after those that wait already; read no more until then."""
        if not commands and self.postponed:
            return
        self.postponed += commands
        size = sum(map(request_bytes_of, commands))
        refusal = self.requests.refusal(self._channel.host, size) if self.requests.is_tight else None
        self._hold_postponed(size)
        if refusal is not None:
            close_connection(self._channel, str(refusal))
            return
        self._channel.pause_reading()
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._awaits_turn:
            self._awaits_turn = True
            self.turns.wait(self)

    def resume(self) -> None:
        """Continue with postponed requests, and then to read, unless there is a cause not to."""
        if self.postponed:
            self._wait_for_turn()
        elif self._may_continue():
            self._channel.resume_reading()

    def take_turn(self) -> None:
        """Serve postponed requests for a while."""
        self._awaits_turn = False
        if self.postponed and self._may_continue():
            self._channel.take(self._take_postponed())
        if not self.postponed:
            self.resume()

    def _may_continue(self) -> bool:
        channel = self._channel
        if not channel.is_open or self._is_full:
            return False
        if channel.unsent_bytes > self.unsent_bytes_max:
            if not channel.is_blocked:
                self._loop.call_later(_RESUME_POLL_S, self.resume)
            return False
        return True

    def _take_postponed(self) -> deque[RemotingCommand]:
        waiting, self.postponed = self.postponed, deque()
        self._release_postponed()
        return waiting

    def _hold_postponed(self, size: int) -> None:
        self._postponed_bytes += size
        self.requests.hold(self._channel.host, size)

    def _release_postponed(self) -> None:
        self.requests.release(self._channel.host, self._postponed_bytes)
        self._postponed_bytes = 0

    # -- requests in progress -----------------------------------------------------------------------------------------

    def hold(self, size: int) -> None:
        """Note that a request is in progress."""
        requests = self.requests
        self._request_bytes += size
        requests.hold(self._channel.host, size)
        if self._request_bytes > requests.connection_bytes and not self._is_full:
            self._is_full = True
            self._channel.pause_reading()

    def token_refusal(self, access_key: str | None, command: RemotingCommand) -> Busy | None:
        """Return why the sender of a request must try again later; None if its token has no budget, or has room.

        `access_key`: whose signature of the request was verified; None: it needs none.
        """
        return None

    def settle(self) -> None:
        """Count the deferred bytes."""
        size, self.deferred_bytes = self.deferred_bytes, 0
        self.hold(size)

    def release(self, size: int) -> None:
        """Note that requests are answered."""
        if self.deferred_bytes:
            self.settle()
        self._request_bytes -= size
        self.requests.release(self._channel.host, size)
        if self._is_full and (not self._request_bytes or self._request_bytes <= self.requests.connection_bytes):
            self._is_full = False
            self._loop.call_soon(self.resume)

    # -- unsent responses ---------------------------------------------------------------------------------------------

    @property
    def unsent_bytes_max(self) -> int:
        """How many bytes may be unsent while requests of the peer are read."""
        share = self._budgets.unsent.share_bytes
        return max(UNSENT_COUNTED_BYTES, min(self._budgets.connection_unsent_bytes_max, share))

    def note_unsent(self, unsent_bytes: int) -> None:
        """Note how much the peer has not read yet."""
        self._budgets.unsent.update(self._channel, unsent_bytes)
        if unsent_bytes > self.unsent_bytes_max:
            self._channel.pause_reading()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Drop the requests that wait. Those in progress are held until they are answered."""
        if self.postponed:
            self._take_postponed()
        self._budgets.incomplete_frames.forget(self._channel)

    def forget_unsent(self) -> None:
        """Note that nothing will be sent any more."""
        self._budgets.unsent.forget(self._channel)


def request_bytes_of(command: RemotingCommand) -> int:
    """Return how much memory a request costs, roughly."""
    ext = command.ext
    if type(ext) is Raw:
        return len(command.body) + len(ext) + REQUEST_COST_BYTES
    ext_bytes = sum(map(len, ext.values())) if ext else 0
    return len(command.body) + ext_bytes + REQUEST_COST_BYTES

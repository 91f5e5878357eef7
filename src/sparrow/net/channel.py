"""One connection that exchanges frames with a peer: requests, responses and one-way requests in both directions.

1. Everything written in one iteration of the event loop is sent by one write.
2. A request has a deadline, and the number of pending requests a limit. One timer per channel checks all deadlines.
3. A listener does not always read from a peer (`ReadGate`): one that does not read its responses must wait, so that
   they do not pile up, and one whose requests take long, so that others have a turn.
4. When the connection ends, every pending request fails with `ConnectionLost`, once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast

from sparrow.model.errors import Busy, ConnectionLost, RequestTimeout
from sparrow.net.address import peer_of
from sparrow.net.limits.byte_budgets import UNSENT_COUNTED_BYTES, ByteBudgets
from sparrow.net.limits.token_gate import make_gate
from sparrow.net.limits.turn_queue import NOTED_S
from sparrow.wire import headers
from sparrow.wire.codes import ADVERTISED_VERSION, Language, request_code_name
from sparrow.wire.connection import Connection
from sparrow.wire.frame import FRAME_BYTES_MAX, ONE_WAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode
from sparrow.wire.headers import Header
from sparrow.wire.signing import Challenge

if TYPE_CHECKING:
    from sparrow.net.loop_watchdog import LoopWatchdog

log = logging.getLogger(__name__)

RequestReceiver = Callable[[RemotingCommand, "Channel"], None]
"""Receives a request of the peer. It must not raise."""
RequestSigner = Callable[[int, Header | None, bytes | memoryview], Header]
"""Returns the header of the next request with a signature."""

PENDING_REQUESTS_MAX = 65_536
WRITE_HIGH_WATER_BYTES = 4 << 20
"""With more unsent bytes than this, a client waits (`writable`); a listener has a setting."""
_LARGE_PIECE_BYTES = 1 << 18
"""Pieces that are so large on average are written one by one."""
_LARGE_READ_BYTES = 1 << 16
"""After a read of so many bytes, the next one may follow at once, in the same iteration of the event loop."""
_TURN_S = 0.002
"""How long the requests of one connection are served before others have a turn."""
CLOSE_LINGER_S = 5.0
"""How long a peer may take to read the buffered data after we close the connection."""
_OPAQUE_MASK = 0x7FFF_FFFF


class _PendingRequest(NamedTuple):
    """A request that waits for its response."""

    future: asyncio.Future[RemotingCommand]
    deadline: float
    code: int
    timeout_ms: int


class Channel(asyncio.Protocol):
    """A connection, made by `connect`, or by a `Listener` for each peer."""

    def __init__(
        self,
        serve: RequestReceiver | None = None,
        *,
        on_open: Callable[[Channel], None] | None = None,
        on_close: Callable[[Channel], None] | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = FRAME_BYTES_MAX,
        budgets: ByteBudgets | None = None,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        """Create a channel. `budgets` are those of a listener; a client always reads, because one of the two must."""
        self.address = "unconnected"
        """The address of the peer, as `ip:port`."""
        self.host = ""
        """The address of the peer without its port."""
        self.packed_host = b""
        """The address of the peer in the binary form of records."""
        self.last_active_s = 0.0
        """When bytes were last sent or received, on the loop's clock."""
        self.read_began_s = 0.0
        """When the requests that are being dispatched arrived, by `time.monotonic`."""
        self.on_read_end: Callable[[float], None] | None = None
        """Called once, at the end of this read, when ready responses are written, with the seconds since it began."""
        self.requests_in_progress = 0
        """Requests of the peer that are being handled."""
        self.ready_bytes = 0
        """Bytes of responses that are made, and written in the next iteration of the event loop."""
        self.gate = make_gate(self, budgets) if budgets is not None else None
        """Decides when a listener reads from the peer; None at clients."""
        self.watchdog = watchdog
        """Finds the requests that hold the event loop."""
        self.is_open = False
        self.sign: RequestSigner | None = None
        """Signs the requests of this side."""
        self.challenge: Challenge | None = None
        """What the peer's signatures contain, if it has asked for a challenge."""
        self._serve, self._on_open, self._on_close = serve, on_open, on_close
        self._stream = Connection(frame_bytes_max=frame_bytes_max, header_bytes_max=header_bytes_max)
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._turn_ends_s = 0.0
        self._is_turn_open = False  # whether the next read belongs to the same turn
        self._is_flushing = False
        self._pending: dict[int, _PendingRequest] = {}
        self._opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._abort_timer: asyncio.TimerHandle | None = None
        self._blocked: asyncio.Future[None] | None = None
        self._unsent_bytes_max = budgets.connection_unsent_bytes_max if budgets is not None else WRITE_HIGH_WATER_BYTES
        self._closed = self._loop.create_future()

    # -- sending ------------------------------------------------------------------------------------------------------

    def request(
        self, code: int, header: Header | None = None, body: bytes | memoryview = b"", *, timeout_ms: int = 3_000
    ) -> asyncio.Future[RemotingCommand]:
        """Send a request and return a future of the response, whatever its code.

        It fails with `RequestTimeout`, `ConnectionLost` or `Busy`.
        """
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(ConnectionLost(self.address, "it is closed"))
            return future
        if len(self._pending) >= PENDING_REQUESTS_MAX:
            future.set_exception(Busy(f"{len(self._pending)} requests to {self.address} are pending already"))
            return future
        frame = self._encode(code, header, body)
        deadline = self._loop.time() + timeout_ms / 1000
        self._pending[self._opaque] = _PendingRequest(future, deadline, code, timeout_ms)
        if self._timer is None or deadline < self._timer_at:
            self._watch(deadline)
        self.write(frame)
        return future

    def send_one_way(self, code: int, header: Header | None = None, body: bytes | memoryview = b"") -> None:
        """Send a request that gets no response."""
        self.write(self._encode(code, header, body, ONE_WAY_FLAG))

    def _encode(self, code: int, header: Header | None, body: bytes | memoryview, flag: int = 0) -> bytes:
        """Return the frame of the next request, whose number is `_opaque` then."""
        opaque = self._opaque = self._opaque + 1 & _OPAQUE_MASK
        if self.sign is not None:
            header = self.sign(code, header, body)
        ext = headers.write(header) if header is not None else None
        return encode(RemotingCommand(code, opaque, flag, Language.PYTHON, ADVERTISED_VERSION, None, ext, body))

    def write(self, data: bytes | memoryview) -> None:
        """Buffer the bytes of whole frames, to be sent at the end of this iteration. A closed channel drops them."""
        if not self.is_open:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    async def writable(self) -> None:
        """Wait while too many bytes are unsent."""
        while self.is_open and self.is_crowded:
            if self._blocked is not None:
                await asyncio.shield(self._blocked)
            else:  # what this iteration wrote has not reached the transport yet
                await asyncio.sleep(0)

    @property
    def descriptor(self) -> int:
        """The file descriptor of the connection; -1 if it has none."""
        connected = self._transport.get_extra_info("socket") if self._transport is not None else None
        return connected.fileno() if connected is not None else -1

    @property
    def is_blocked(self) -> bool:
        """Whether the peer does not read what we send."""
        return self._blocked is not None

    @property
    def is_crowded(self) -> bool:
        """Whether so many bytes are unsent that no more should be written."""
        waiting = self._out_bytes + self.ready_bytes
        if self._blocked is not None:
            waiting += self.unsent_bytes
        return waiting > self._unsent_bytes_max

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written, and not sent."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _flush(self) -> None:
        self._is_flushing = False
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        is_large = self._out_bytes > _LARGE_PIECE_BYTES * len(out)
        self._out, self._out_bytes = [], 0
        if transport.is_closing():  # the peer will not read it
            return
        self.last_active_s = self._loop.time()
        if len(out) == 1:
            transport.write(out[0])
        elif is_large:  # copying them costs more than one call each
            for piece in out:
                transport.write(piece)
        else:
            transport.write(b"".join(out))
        if self._blocked is not None and self.gate is not None:
            self.gate.note_unsent(self.unsent_bytes)

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail overdue requests, and set the timer for the next deadline."""
        now = self._loop.time()
        self._timer = None
        overdue = [opaque for opaque, request in self._pending.items() if request.deadline <= now]
        for opaque in overdue:
            future, _, code, timeout_ms = self._pending.pop(opaque)
            if not future.done():
                future.set_exception(RequestTimeout(self.address, request_code_name(code), timeout_ms))
        if self._pending:
            self._watch(min(request.deadline for request in self._pending.values()))

    # -- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        high_water = WRITE_HIGH_WATER_BYTES if self.gate is None else UNSENT_COUNTED_BYTES
        self._transport.set_write_buffer_limits(high=high_water)
        self.address, self.packed_host = peer_of(transport)
        self.host = self.address.rpartition(":")[0]
        self.last_active_s = self._loop.time()
        self.is_open = True
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        # Loops use the same clock; uvloop's own time stands still during an iteration.
        self.read_began_s = self.last_active_s = now_s = time.monotonic()
        if not self._is_turn_open:
            self._turn_ends_s = now_s + _TURN_S
        # uvloop reads up to 32 times from a connection, in one iteration, as long as its buffer is full.
        self._is_turn_open = len(data) >= _LARGE_READ_BYTES
        stream = self._stream
        commands = stream.feed(data)
        gate = self.gate
        if gate is not None and (stream.held_bytes or gate.incomplete_bytes):
            gate.note_incomplete(stream.held_bytes, is_new=bool(commands))
        if gate is not None and commands and gate.must_wait:
            gate.postpone(commands)
        else:
            self.take(commands, now_s)
        if stream.error is not None and self.is_open:
            log.warning(
                "%(peer)s broke the protocol: %(error)s; its connection is closed",
                {"peer": self.address, "error": stream.error},
            )
            if gate is not None:
                gate.note_broken_frame()
            self.close(str(stream.error))

    def take(self, commands: Collection[RemotingCommand], began_s: float | None = None) -> None:
        """Dispatch requests and responses. Responses that are ready at once are sent at the end, in one write.

        `began_s`: when they were read; None: they were postponed, and this is their turn.
        """
        if began_s is None:
            began_s = time.monotonic()
            self._turn_ends_s = began_s + _TURN_S
        was_flushing, self._is_flushing = self._is_flushing, True
        serve = self._serve
        gate = self.gate
        turn_ends_s = self._turn_ends_s if gate is not None else math.inf
        waiting = iter(commands)
        for command in waiting:
            if command.flag & RESPONSE_FLAG:
                open_request = self._pending.pop(command.opaque, None)
                if open_request is not None and not open_request.future.done():
                    open_request.future.set_result(command)
            elif serve is not None:
                serve(command, self)
                if self._out_bytes > self._unsent_bytes_max and gate is not None:
                    self._flush()
                    if self.unsent_bytes > gate.unsent_bytes_max:
                        gate.postpone(list(waiting))
                elif time.monotonic() > turn_ends_s and gate is not None:
                    gate.postpone(list(waiting))
        self._is_flushing = was_flushing
        if not was_flushing:
            self._flush()
        now_s = time.monotonic()
        on_read_end = self.on_read_end
        if on_read_end is not None:
            self.on_read_end = None
            on_read_end(now_s - self.read_began_s)
        if gate is not None and (held_s := now_s - began_s) > NOTED_S:
            gate.turns.note(held_s)
            if self.watchdog is not None and held_s > self.watchdog.limit_s:
                served = islice(commands, len(commands) - len(gate.postponed))
                self.watchdog.note_read(self, (command.code for command in served), held_s)

    def pause_writing(self) -> None:
        self._blocked = self._loop.create_future()
        if self.gate is not None:
            self.gate.note_unsent(self.unsent_bytes)

    def resume_writing(self) -> None:
        if self._blocked is not None:
            self._blocked.set_result(None)
            self._blocked = None
        if self.gate is not None:
            self.gate.forget_unsent()
            self.gate.resume()

    def pause_reading(self) -> None:
        """Read no more from the peer, until `resume_reading`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again."""
        self._is_turn_open = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, cause: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._end(str(cause) if cause is not None else "the peer closed the connection")
        if self.gate is not None:
            self.gate.forget_unsent()
            if not self.requests_in_progress:  # else their handlers release what they hold
                self.gate = None  # a cycle would wait for the garbage collector
        self._transport = None  # with TLS, Python 3.11.2 fails to abort a transport that is closed
        if not self._closed.done():
            self._closed.set_result(None)

    def close(self, why: str = "this side closed the connection") -> None:
        """Send what is buffered, then close. Pending requests fail now.

        A peer that does not read is aborted after a while.
        """
        if self.is_open:
            self._flush()
        self._end(why)
        if self._transport is not None:
            self._transport.close()
            if self._abort_timer is None and not self._closed.done():
                self._abort_timer = self._loop.call_later(CLOSE_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Close at once, dropping buffered data."""
        self._end("this side closed the connection")
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the transport is closed."""
        await asyncio.shield(self._closed)

    def _end(self, why: str) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self.gate is not None:
            self.gate.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._blocked is not None:
            self._blocked.set_result(None)
            self._blocked = None
        open_requests, self._pending = self._pending, {}
        for request in open_requests.values():
            if not request.future.done():
                request.future.set_exception(ConnectionLost(self.address, why))
        if self._on_close is not None:
            began_s = time.monotonic()
            self._on_close(self)
            if self.watchdog is not None:
                self.watchdog.note_close(self, began_s)

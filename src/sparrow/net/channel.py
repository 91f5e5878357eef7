"""One connection that exchanges frames with a peer: requests, responses and one-way requests in both directions.

1. Everything written in one iteration of the event loop is sent by one write.
2. A request has a deadline, and the number of pending requests a limit. One timer per channel checks all deadlines.
3. A listener stops reading from a peer that does not read its responses, so that they do not pile up.
4. When the connection ends, every pending request fails with `ConnectionLost`, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

from sparrow.model.errors import Busy, ConnectionLost, RequestTimeout
from sparrow.model.message import Host
from sparrow.net.address import Address
from sparrow.wire import headers
from sparrow.wire.codes import ADVERTISED_VERSION, Language, RequestCode
from sparrow.wire.connection import Connection
from sparrow.wire.frame import FRAME_BYTES_MAX, ONE_WAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode
from sparrow.wire.headers import Header
from sparrow.wire.record import pack_host

log = logging.getLogger(__name__)

RequestReceiver = Callable[[RemotingCommand, "Channel"], None]
"""Receives a request of the peer. It must not raise."""

PENDING_REQUESTS_MAX = 65_536
WRITE_HIGH_WATER_BYTES = 4 << 20
"""With more unsent bytes than this, a listener stops reading from the peer."""
_UNREACHABLE_REMEDY = "start the server, or check the address and the firewall"
_RESUME_POLL_S = 0.01
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
        reads_while_blocked: bool = True,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """Create a channel. `reads_while_blocked=False` is for listeners: one of the two ends must always read."""
        self.address = "unconnected"
        """The address of the peer, as `ip:port`."""
        self.packed_host = b""
        """The address of the peer in the binary form of records."""
        self.last_active_s = 0.0
        """When bytes were last sent or received, on the loop's clock."""
        self.requests_in_progress = 0
        """Requests of the peer that are being handled."""
        self.is_open = False
        self._serve, self._on_open, self._on_close = serve, on_open, on_close
        self._reads_while_blocked = reads_while_blocked
        self._stream = Connection(frame_bytes_max=frame_bytes_max)
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._postponed: deque[RemotingCommand] = deque()
        """Requests that wait until the peer has read the responses to earlier ones."""
        self._is_flushing = False
        self._pending: dict[int, _PendingRequest] = {}
        self._opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._abort_timer: asyncio.TimerHandle | None = None
        self._blocked: asyncio.Future[None] | None = None
        self._closed = self._loop.create_future()

    # -- sending ------------------------------------------------------------------------------------------------------

    def request(
        self,
        code: int,
        header: Header | None = None,
        body: bytes | memoryview = b"",
        *,
        timeout_ms: int = 3_000,
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
        opaque = self._opaque = self._opaque + 1 & _OPAQUE_MASK
        ext = headers.write(header) if header is not None else None
        frame = encode(RemotingCommand(code, opaque, 0, Language.PYTHON, ADVERTISED_VERSION, None, ext, body))
        deadline = self._loop.time() + timeout_ms / 1000
        self._pending[opaque] = _PendingRequest(future, deadline, code, timeout_ms)
        if self._timer is None or deadline < self._timer_at:
            self._watch(deadline)
        self.write(frame)
        return future

    def send_one_way(self, code: int, header: Header | None = None, body: bytes | memoryview = b"") -> None:
        """Send a request that gets no response."""
        opaque = self._opaque = self._opaque + 1 & _OPAQUE_MASK
        ext = headers.write(header) if header is not None else None
        self.write(
            encode(RemotingCommand(code, opaque, ONE_WAY_FLAG, Language.PYTHON, ADVERTISED_VERSION, None, ext, body))
        )

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
        while self.is_open and self._out_bytes + self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
            if self._blocked is not None:
                await asyncio.shield(self._blocked)
            else:  # what this iteration wrote has not reached the transport yet
                await asyncio.sleep(0)

    @property
    def is_blocked(self) -> bool:
        """Whether the peer does not read what we send."""
        return self._blocked is not None

    def _flush(self) -> None:
        self._is_flushing = False
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        self._out = []
        self._out_bytes = 0
        if transport.is_closing():  # the peer will not read it
            return
        self.last_active_s = self._loop.time()
        transport.write(out[0] if len(out) == 1 else b"".join(out))

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
                future.set_exception(RequestTimeout(self.address, _name_of(code), timeout_ms))
        if self._pending:
            self._watch(min(request.deadline for request in self._pending.values()))

    # -- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self.address, self.packed_host = _peer_of(transport)
        self.last_active_s = self._loop.time()
        self.is_open = True
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_active_s = self._loop.time()
        stream = self._stream
        commands = stream.feed(data)
        if self._postponed:
            self._postponed += commands
        else:
            self._take(commands)
        if stream.error is not None and self.is_open:
            log.warning(
                "%(peer)s broke the protocol: %(error)s; its connection is closed",
                {"peer": self.address, "error": stream.error},
            )
            self.close(str(stream.error))

    def _take(self, commands: Iterable[RemotingCommand]) -> None:
        """Dispatch requests and responses. Responses that are ready at once are sent at the end, in one write."""
        was_flushing, self._is_flushing = self._is_flushing, True
        serve = self._serve
        waiting = iter(commands)
        for command in waiting:
            if command.flag & RESPONSE_FLAG:
                open_request = self._pending.pop(command.opaque, None)
                if open_request is not None and not open_request.future.done():
                    open_request.future.set_result(command)
            elif serve is not None:
                serve(command, self)
                if self._out_bytes > WRITE_HIGH_WATER_BYTES and not self._reads_while_blocked:
                    self._flush()
                    if self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
                        self._postponed = deque(waiting)
                        self._pause_reading()
                        self._loop.call_soon(self._resume_postponed)
        self._is_flushing = was_flushing
        if not was_flushing:
            self._flush()

    @property
    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _resume_postponed(self) -> None:
        """Continue with postponed requests once the peer has read enough responses."""
        if not self.is_open or self._blocked is not None or self._reads_while_blocked:
            return
        if self._postponed:
            if self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
                self._loop.call_later(_RESUME_POLL_S, self._resume_postponed)
                return
            waiting, self._postponed = self._postponed, deque()
            self._take(waiting)
        if not self._postponed:
            self._resume_reading()

    def pause_writing(self) -> None:
        self._blocked = self._loop.create_future()
        if not self._reads_while_blocked:
            self._pause_reading()

    def resume_writing(self) -> None:
        if self._blocked is not None:
            self._blocked.set_result(None)
            self._blocked = None
        self._resume_postponed()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, cause: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._end(str(cause) if cause is not None else "the peer closed the connection")
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
        self._postponed.clear()
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
            self._on_close(self)


async def connect(
    address: Address,
    serve: RequestReceiver | None = None,
    *,
    timeout_ms: int = 3_000,
    on_close: Callable[[Channel], None] | None = None,
) -> Channel:
    """Connect to a listener; raise `ConnectionLost` if that fails."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, channel = await loop.create_connection(lambda: Channel(serve, on_close=on_close), *address)
    except TimeoutError as cause:
        raise ConnectionLost(str(address), f"no connection within {timeout_ms} ms; {_UNREACHABLE_REMEDY}") from cause
    except OSError as cause:
        raise ConnectionLost(str(address), f"{cause.strerror or cause}; {_UNREACHABLE_REMEDY}") from cause
    return channel


def _peer_of(transport: asyncio.BaseTransport) -> tuple[str, bytes]:
    name = transport.get_extra_info("peername")
    if not name:
        return "unconnected", pack_host(Host())
    address = Address(name[0], name[1])
    return str(address), pack_host(address.as_host())


def _name_of(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"

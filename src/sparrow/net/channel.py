"""One connection that speaks frames, seen from either end: requests, answers and one-way words go both ways on it.

1. Whatever is written in one turn of the loop goes out in one write.
2. A request has a deadline, and the table of open requests a bound. One timer a channel watches over all of them.
3. A peer that does not read what we answer is not read from either: its answers stop piling up.
4. When the connection ends, every open request fails with `ConnectionLost`, once.
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
"""Takes a request of the peer's. It must not raise."""

PENDING_REQUESTS_MAX = 65_536
WRITE_HIGH_WATER_BYTES = 4 << 20
"""More than this waiting to be sent, and a listener stops reading from the peer."""
_LOOK_AGAIN_S = 0.01
CLOSE_LINGER_S = 5.0
"""How long a peer has to read the rest of what we said, once we have hung up."""
_OPAQUE_MASK = 0x7FFF_FFFF


class _Open(NamedTuple):
    future: asyncio.Future[RemotingCommand]
    deadline: float
    code: int
    timeout_ms: int


class Channel(asyncio.Protocol):
    """A connection. Made by `connect`, or by a `Listener` for each peer that comes."""

    def __init__(
        self,
        serve: RequestReceiver | None = None,
        *,
        on_open: Callable[[Channel], None] | None = None,
        on_close: Callable[[Channel], None] | None = None,
        reads_while_blocked: bool = True,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """`reads_while_blocked=False` is for listeners: of two ends, one at least must always read."""
        self.address = "nowhere"
        """The peer's, as `ip:port`."""
        self.packed_host = b""
        """The same, as records keep it."""
        self.last_active_s = 0.0
        """When bytes last went either way, on the loop's clock."""
        self.requests_in_progress = 0
        """Requests of the peer's that are being worked on."""
        self.is_open = False
        self._serve, self._on_open, self._on_close = serve, on_open, on_close
        self._reads_while_blocked = reads_while_blocked
        self._stream = Connection(frame_bytes_max=frame_bytes_max)
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._not_taken: deque[RemotingCommand] = deque()
        """Requests that came with others whose answers the peer must read first."""
        self._is_flushing = False
        self._open: dict[int, _Open] = {}
        self._opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._cutting: asyncio.TimerHandle | None = None
        self._blocked: asyncio.Future[None] | None = None
        self._closed = self._loop.create_future()

    # -- asking -------------------------------------------------------------------------------------------------------

    def request(
        self,
        code: int,
        header: Header | None = None,
        body: bytes | memoryview = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> asyncio.Future[RemotingCommand]:
        """Ask, and get the answer whatever its code. Fails with `RequestTimeout`, `ConnectionLost` or `Busy`."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(ConnectionLost(self.address, "it is closed"))
            return future
        if len(self._open) >= PENDING_REQUESTS_MAX:
            future.set_exception(Busy(f"{len(self._open)} requests to {self.address} are open already"))
            return future
        opaque = self._opaque = self._opaque + 1 & _OPAQUE_MASK
        ext = headers.write(header) if header is not None else None
        frame = encode(RemotingCommand(code, opaque, 0, Language.PYTHON, ADVERTISED_VERSION, None, ext, body))
        deadline = self._loop.time() + timeout_ms / 1000
        self._open[opaque] = _Open(future, deadline, code, timeout_ms)
        if self._timer is None or deadline < self._timer_at:
            self._watch(deadline)
        self.write(frame)
        return future

    def send_one_way(self, code: int, header: Header | None = None, body: bytes | memoryview = b"") -> None:
        """Say something that needs no answer."""
        opaque = self._opaque = self._opaque + 1 & _OPAQUE_MASK
        ext = headers.write(header) if header is not None else None
        self.write(
            encode(RemotingCommand(code, opaque, ONE_WAY_FLAG, Language.PYTHON, ADVERTISED_VERSION, None, ext, body))
        )

    def write(self, data: bytes | memoryview) -> None:
        """Bytes of whole frames, to go out at the end of this turn. Into a closed channel they vanish."""
        if not self.is_open:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    async def writable(self) -> None:
        """Wait while more is waiting to be sent than should be."""
        while self.is_open and self._out_bytes + self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
            if self._blocked is not None:
                await asyncio.shield(self._blocked)
            else:  # what is written in this turn has not reached the transport yet
                await asyncio.sleep(0)

    @property
    def is_blocked(self) -> bool:
        """Whether the peer does not read what we say."""
        return self._blocked is not None

    def _flush(self) -> None:
        self._is_flushing = False
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        self._out = []
        self._out_bytes = 0
        if transport.is_closing():  # nobody would read it
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
        """Fail what is overdue, and look again when the next request will be."""
        now = self._loop.time()
        self._timer = None
        overdue = [opaque for opaque, request in self._open.items() if request.deadline <= now]
        for opaque in overdue:
            future, _, code, timeout_ms = self._open.pop(opaque)
            if not future.done():
                future.set_exception(RequestTimeout(self.address, _name_of(code), timeout_ms))
        if self._open:
            self._watch(min(request.deadline for request in self._open.values()))

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
        if self._not_taken:
            self._not_taken += commands
        else:
            self._take(commands)
        if stream.error is not None and self.is_open:
            log.warning("peer broke the protocol", extra={"peer": self.address, "why": str(stream.error)})
            self.close(str(stream.error))

    def _take(self, commands: Iterable[RemotingCommand]) -> None:
        """Serve requests and hand out answers. What is answered on the spot goes out at the end, in one write."""
        was_flushing, self._is_flushing = self._is_flushing, True
        serve = self._serve
        waiting = iter(commands)
        for command in waiting:
            if command.flag & RESPONSE_FLAG:
                open_request = self._open.pop(command.opaque, None)
                if open_request is not None and not open_request.future.done():
                    open_request.future.set_result(command)
            elif serve is not None:
                serve(command, self)
                if self._out_bytes > WRITE_HIGH_WATER_BYTES and not self._reads_while_blocked:
                    self._flush()
                    if self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
                        self._not_taken = deque(waiting)
                        self._pause_reading()
                        self._loop.call_soon(self._go_on)
        self._is_flushing = was_flushing
        if not was_flushing:
            self._flush()

    @property
    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _go_on(self) -> None:
        """With requests that were put off, once the peer has read enough of the answers before them."""
        if not self.is_open or self._blocked is not None or self._reads_while_blocked:
            return
        if self._not_taken:
            if self._unsent_bytes > WRITE_HIGH_WATER_BYTES:
                self._loop.call_later(_LOOK_AGAIN_S, self._go_on)
                return
            waiting, self._not_taken = self._not_taken, deque()
            self._take(waiting)
        if not self._not_taken:
            self._resume_reading()

    def pause_writing(self) -> None:
        self._blocked = self._loop.create_future()
        if not self._reads_while_blocked:
            self._pause_reading()

    def resume_writing(self) -> None:
        if self._blocked is not None:
            self._blocked.set_result(None)
            self._blocked = None
        self._go_on()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, cause: Exception | None) -> None:
        if self._cutting is not None:
            self._cutting.cancel()
        self._end(str(cause) if cause is not None else "the peer hung up")
        if not self._closed.done():
            self._closed.set_result(None)

    def close(self, why: str = "we hung up") -> None:
        """Send what is written, then hang up. Open requests fail now. A peer that does not read is cut off."""
        if self.is_open:
            self._flush()
        self._end(why)
        if self._transport is not None:
            self._transport.close()
            if self._cutting is None and not self._closed.done():
                self._cutting = self._loop.call_later(CLOSE_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Hang up at once."""
        self._end("we hung up")
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    def _end(self, why: str) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._not_taken.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._blocked is not None:
            self._blocked.set_result(None)
            self._blocked = None
        open_requests, self._open = self._open, {}
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
    """A channel to a listener, or `ConnectionLost`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, channel = await loop.create_connection(lambda: Channel(serve, on_close=on_close), *address)
    except TimeoutError as cause:
        raise ConnectionLost(str(address), f"it did not accept within {timeout_ms} ms") from cause
    except OSError as cause:
        raise ConnectionLost(str(address), f"{cause.strerror or cause}") from cause
    return channel


def _peer_of(transport: asyncio.BaseTransport) -> tuple[str, bytes]:
    name = transport.get_extra_info("peername")
    if not name:
        return "nowhere", pack_host(Host())
    address = Address(name[0], name[1])
    return str(address), pack_host(address.as_host())


def _name_of(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"

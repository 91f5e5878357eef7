"""A TCP listener that accepts connections and keeps their channels: limited in number, closed when idle.

To stop in order, call `stop_accepting`, then `RequestDispatcher.stop` (new requests are refused, running ones may
finish), then `stop` (every channel sends what is buffered and closes).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import CannotListen
from sparrow.net.address import Address
from sparrow.net.channel import Channel, RequestReceiver

if TYPE_CHECKING:
    from sparrow.settings import NetSettings

log = logging.getLogger(__name__)

_BACKLOG = 4096


class Listener:
    """One listening port."""

    def __init__(
        self,
        serve: RequestReceiver | None = None,
        settings: NetSettings | None = None,
        *,
        on_open: Callable[[Channel], None] | None = None,
        on_close: Callable[[Channel], None] | None = None,
    ) -> None:
        self.channels: set[Channel] = set()
        self.port = 0
        self.serve = serve
        """Receives the requests. It may be set after `bind`, because a server that opens a store needs the port
        first."""
        self._settings = settings or _default_settings()
        self._on_open, self._on_close = on_open, on_close
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._failures = LogIntervals()

    def bind(self, host: str, port: int) -> int:
        """Bind the port (a free one for 0) and return it. Connections wait until `start`."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as cause:
            raise CannotListen(f"{host}:{port}", (cause.strerror or str(cause)).partition(" (while")[0]) from cause
        self.port = self._socket.getsockname()[1]
        return self.port

    async def start(self) -> None:
        """Accept connections."""
        assert self._socket is not None, "call bind first"
        assert self.serve is not None, "set serve first"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=self._socket, backlog=_BACKLOG)
        self._sweep = loop.call_later(self._sweep_s, self._close_idle)

    def _accept(self) -> Channel:
        return Channel(
            self.serve,
            on_open=self._opened,
            on_close=self._closed,
            reads_while_blocked=False,
            frame_bytes_max=self._settings.frame_bytes_max,
        )

    def _opened(self, channel: Channel) -> None:
        if len(self.channels) >= self._settings.connections_max:
            if self._failures.is_due("connections"):
                log.warning(
                    "a connection of %(peer)s is refused: there are %(connections)s already;"
                    " raise net.connections_max, or close some",
                    {"peer": channel.address, "connections": len(self.channels)},
                )
            channel.abort()
            return
        self.channels.add(channel)
        if self._on_open is not None:
            self._on_open(channel)

    def _closed(self, channel: Channel) -> None:
        if channel in self.channels:
            self.channels.discard(channel)
            if self._on_close is not None:
                self._on_close(channel)

    @property
    def _sweep_s(self) -> float:
        return min(10.0, self._settings.idle_timeout_ms / 2000)

    def _close_idle(self) -> None:
        """Close idle connections. One timer serves all of them, so thousands of idle connections cost nothing."""
        loop = asyncio.get_running_loop()
        silent_since = loop.time() - self._settings.idle_timeout_ms / 1000
        for channel in [channel for channel in self.channels if channel.last_active_s < silent_since]:
            if channel.is_blocked:
                channel.abort()  # it does not read, so it would not read the rest either
            else:
                channel.close("the connection was idle for too long")
        self._sweep = loop.call_later(self._sweep_s, self._close_idle)

    def stop_accepting(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        if self._sweep is not None:
            self._sweep.cancel()

    async def stop(self) -> None:
        """Close every channel once its buffered data is sent."""
        self.stop_accepting()
        closing = list(self.channels)
        for channel in closing:
            channel.close("the server is stopping")
        if closing:
            # A peer that does not read would delay the stop, so its connection is aborted.
            await asyncio.wait([asyncio.ensure_future(channel.wait_closed()) for channel in closing], timeout=1)
            for channel in closing:
                channel.abort()


def advertised_address(listen_host: str, port: int, advertised: str | None = None) -> Address:
    """Return the address under which peers should connect."""
    return Address(advertised or ("127.0.0.1" if listen_host in ("", "0.0.0.0") else listen_host), port)


def _default_settings() -> NetSettings:
    from sparrow.settings import NetSettings  # here: a client does not listen, and need not load pydantic

    return NetSettings()

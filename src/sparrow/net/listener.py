"""Accepts connections and keeps them: bounded in number, closed when idle.

Stopping in order: `stop_accepting`, then `Serving.stop` (what is new is refused, what is in hand gets a while), then
`stop` (every channel sends what it has and hangs up).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparrow.model.errors import SettingsError
from sparrow.net.address import Address
from sparrow.net.channel import Channel, RequestReceiver

if TYPE_CHECKING:
    from sparrow.settings import NetSettings

log = logging.getLogger(__name__)

_BACKLOG = 4096


class Listener:
    """One port."""

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
        """Who takes requests. May be set after `bind`: a server that opens a store first knows its port by then."""
        self._settings = settings or _usual()
        self._on_open, self._on_close = on_open, on_close
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    def bind(self, host: str, port: int) -> int:
        """Take the port, a free one if 0 is asked for, and answer which. Who connects now waits until `start`."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as cause:
            raise SettingsError(
                "address", f"{host}:{port}", "the settings", f"another one (here: {cause.strerror or cause})"
            ) from cause
        self.port = self._socket.getsockname()[1]
        return self.port

    async def start(self) -> None:
        assert self._socket is not None, "bind comes first"
        assert self.serve is not None, "somebody must serve"
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
            log.warning("connection refused: too many", extra={"peer": channel.address})
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
        """One timer for all connections: thousands that say nothing cost nothing."""
        loop = asyncio.get_running_loop()
        silent_since = loop.time() - self._settings.idle_timeout_ms / 1000
        for channel in [channel for channel in self.channels if channel.last_active_s < silent_since]:
            if channel.is_blocked:
                channel.abort()  # it would never read the rest either
            else:
                channel.close("nothing was said for too long")
        self._sweep = loop.call_later(self._sweep_s, self._close_idle)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        if self._sweep is not None:
            self._sweep.cancel()

    async def stop(self) -> None:
        """Hang up on everyone, once what is written has gone out."""
        self.stop_accepting()
        leaving = list(self.channels)
        for channel in leaving:
            channel.close("the server is stopping")
        if leaving:
            # A peer that does not read would keep us here: it is cut off.
            await asyncio.wait([asyncio.ensure_future(channel.wait_closed()) for channel in leaving], timeout=1)
            for channel in leaving:
                channel.abort()


def advertised_address(listen_host: str, port: int, advertised: str | None = None) -> Address:
    """What peers are told to connect to."""
    return Address(advertised or ("127.0.0.1" if listen_host in ("", "0.0.0.0") else listen_host), port)


def _usual() -> NetSettings:
    from sparrow.settings import NetSettings  # late: a plain client listens to nobody, and need not load pydantic

    return NetSettings()

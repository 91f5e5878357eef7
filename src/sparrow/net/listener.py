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
from sparrow.net.access.tls import TlsAcceptor
from sparrow.net.address import Address
from sparrow.net.channel import Channel, RequestReceiver
from sparrow.net.limits.byte_budgets import ByteBudgets
from sparrow.net.limits.descriptors import prepare_descriptors
from sparrow.net.loop_watchdog import LoopWatchdog

if TYPE_CHECKING:
    from sparrow.settings import NetSettings

log = logging.getLogger(__name__)

_BACKLOG = 4096
_ACCEPTS_AT_ONCE = 8
"""Connections that are accepted in one iteration of the loop. A few iterations pass until one that is refused has
returned its descriptor; meanwhile they may not use up the reserve."""


class Listener:
    """One listening port."""

    def __init__(
        self,
        serve: RequestReceiver | None = None,
        settings: NetSettings | None = None,
        *,
        on_open: Callable[[Channel], None] | None = None,
        on_close: Callable[[Channel], None] | None = None,
        counts_tokens: bool = False,
    ) -> None:
        """Create a listener. `counts_tokens`: whether its requests are signed, so that tokens have budgets of bytes."""
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
        self._tls: TlsAcceptor | None = None
        self.budgets = ByteBudgets(self._settings, counts_tokens=counts_tokens)
        self.watchdog = LoopWatchdog(self._settings.loop_hold_ms)
        self.refused = 0
        """Connections that were refused because of a limit."""
        self._descriptors_end = 0

    def bind(self, host: str, port: int) -> int:
        """Bind the port (a free one for 0) and return it. Connections wait until `start`.

        Raise `SettingsError` for a certificate that cannot be used.
        """
        if self._settings.tls_certificate is not None:
            self._tls = TlsAcceptor(self._settings, self._accept, is_full=self._is_full)
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
        self._descriptors_end = prepare_descriptors(self._settings.connections_max)
        accept = self._accept if self._tls is None else self._tls
        # asyncio accepts as many connections at once as its backlog says, which is no reason for a short queue.
        self._server = await loop.create_server(accept, sock=self._socket, backlog=_ACCEPTS_AT_ONCE)
        self._socket.listen(_BACKLOG)
        self._sweep = loop.call_later(self._sweep_s, self._close_idle)
        self.watchdog.start()

    def _accept(self) -> Channel:
        return Channel(
            self.serve,
            on_open=self._opened,
            on_close=self._closed,
            frame_bytes_max=self._settings.frame_bytes_max,
            header_bytes_max=self._settings.header_bytes_max,
            budgets=self.budgets,
            watchdog=self.watchdog,
        )

    def limits_hit(self) -> dict[str, int]:
        """Return the connections and requests that were refused because of a limit, by its name."""
        return {"connections": self.refused, **self.budgets.refusals()}

    def access_refusals(self) -> list[tuple[tuple[str], float]]:
        """Return the connections and requests that were refused for want of access, as a metric has them."""
        counts = self.budgets.counts
        counts.by_access["tls"] = self._tls.refused if self._tls is not None else 0
        return counts.access_samples()

    def _is_full(self, peer: str, descriptor: int) -> bool:
        """Tell whether there is no place for a connection of that peer. Handshakes take places too."""
        if descriptor >= self._descriptors_end:
            self.refused += 1
            if self._failures.is_due("descriptors"):
                log.warning(
                    "a connection of %(peer)s is refused: too few file descriptors are left for the files of the"
                    " store; raise the limit of open files (ulimit -n), or close some connections",
                    {"peer": peer},
                )
            return True
        connections = len(self.channels) + (self._tls.openings if self._tls is not None else 0)
        if connections < self._settings.connections_max:
            return False
        self.refused += 1
        if self._failures.is_due("connections"):
            log.warning(
                "a connection of %(peer)s is refused: there are %(connections)s already;"
                " raise net.connections_max, or close some",
                {"peer": peer, "connections": connections},
            )
        return True

    def _opened(self, channel: Channel) -> None:
        if self._tls is None and self._is_full(channel.address, channel.descriptor):
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
        return min(10.0, self._settings.idle_timeout_ms / 2000, self._settings.frame_timeout_ms / 2000)

    def _close_idle(self) -> None:
        """Close idle connections. One timer serves all of them, so thousands of idle connections cost nothing."""
        self.budgets.incomplete_frames.close_overdue()
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
        self.watchdog.stop()

    async def stop(self) -> None:
        """Close every channel once its buffered data is sent."""
        self.stop_accepting()
        if self._tls is not None:
            await self._tls.stop()
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

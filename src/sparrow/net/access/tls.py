"""TLS of connections: the contexts of both sides, and the acceptance of connections with and without TLS on one port.

The first byte tells them apart: a TLS handshake starts with 0x16, and a frame with the upper byte of its length, which
is 0 or 1. Certificates and keys are loaded again when their files change; a file that cannot be used is reported, and
the one before stays in use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SettingsError
from sparrow.model.tls import Tls
from sparrow.net.address import Address
from sparrow.net.channel import Channel

if TYPE_CHECKING:
    from sparrow.settings import NetSettings
    from sparrow.settings.section import ListenerTls

log = logging.getLogger(__name__)

_HANDSHAKE_BYTE = b"\x16"
_RELOAD_INTERVAL_S = 1.0
HANDSHAKE_TIMEOUT_S = 10.0
"""How long a peer may take from the connection to the end of its handshake."""


def client_context(tls: Tls | None) -> ssl.SSLContext | None:
    """Return the context of a client; None without TLS. Raise `SettingsError` for files that cannot be used."""
    return None if tls is None else load_client_context(tls)


def load_client_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a client that uses TLS. Raise `SettingsError` for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=tls.authorities)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = tls.verifies and tls.checks_host
        context.verify_mode = ssl.CERT_REQUIRED if tls.verifies else ssl.CERT_NONE
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except OSError as cause:
        raise _unusable("tls", (tls.authorities, tls.certificate, tls.key), cause) from cause
    return context


def server_tls(settings: NetSettings) -> Tls | None:
    """Return how a server connects to name servers and other brokers; None without TLS."""
    if settings.tls_authorities is None:
        return None
    return Tls(authorities=settings.tls_authorities, certificate=settings.tls_certificate, key=settings.tls_key)


class ReloadedContext:
    """A context of one side, made again when its files change."""

    def __init__(self, files: Iterable[str | None], load: Callable[[], ssl.SSLContext]) -> None:
        """Load the files; `load` raises `SettingsError` if they cannot be used."""
        self._files, self._load = [file for file in files if file is not None], load
        self._changed_at = self._read_times()
        self._look_at_s = 0.0
        self._context = load()

    async def get(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        if self._is_due():
            await asyncio.to_thread(self._reload)
        return self._context

    def get_nowait(self) -> ssl.SSLContext:
        """Return the context for a new connection; files that have changed are read in this thread."""
        if self._is_due():
            self._reload()
        return self._context

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._look_at_s:
            return False
        self._look_at_s = now + _RELOAD_INTERVAL_S
        return True

    def _reload(self) -> None:
        changed_at = self._read_times()
        if changed_at == self._changed_at:
            return
        try:
            self._context = self._load()
        except SettingsError as error:
            log.warning("the new certificate is not used: %(error)s. The one before stays in use", {"error": error})
            return  # tried again at the next look: a certificate and its key are rarely replaced at once
        self._changed_at = changed_at
        log.info("certificates were loaded again: %(files)s", {"files": ", ".join(self._files)})

    def _read_times(self) -> list[int]:
        try:
            return [os.stat(file).st_mtime_ns for file in self._files]
        except OSError:
            return []  # the load says which file is missing


def http_context(settings: ListenerTls) -> ssl.SSLContext | None:
    """Return the context of a port for HTTP, which follows changes of its files; None without a certificate.

    Raise `SettingsError` for files that cannot be used.
    """
    if settings.tls_certificate is None:
        return None
    current = _listener_context(settings)
    context = current.get_nowait()

    def use_current(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = current.get_nowait()

    # OpenSSL calls it in every handshake, also if the client names no server.
    context.sni_callback = use_current
    return context


def _listener_context(settings: ListenerTls) -> ReloadedContext:
    """Return the context of a listener; raise `SettingsError` if its certificate cannot be used."""
    certificate, key, client_authorities = settings.tls_certificate, settings.tls_key, settings.tls_client_authorities
    assert certificate is not None
    files = (certificate, key, client_authorities)

    def load() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(certificate, key)
            if client_authorities is not None:
                context.load_verify_locations(client_authorities)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as cause:
            raise _unusable("tls_certificate", files, cause) from cause
        return context

    return ReloadedContext(files, load)


class TlsAcceptor:
    """Opens the channel of each new connection, after its handshake if it starts one."""

    def __init__(
        self, settings: NetSettings, make_channel: Callable[[], Channel], *, is_full: Callable[[str, int], bool]
    ) -> None:
        """`is_full` tells whether a connection must be refused, by its address and its file descriptor."""
        self._tls = _listener_context(settings)
        self._is_required = settings.tls_required
        self._make_channel, self._is_full = make_channel, is_full
        self._opening: set[asyncio.Task[None]] = set()
        self._failures = LogIntervals()
        self.refused = 0
        """Connections that do not use TLS, or whose handshake failed."""

    @property
    def openings(self) -> int:
        """Connections whose first byte or handshake is awaited."""
        return len(self._opening)

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a connection that a server has accepted."""
        return _Accepted(self._accept)

    def _accept(self, transport: asyncio.BaseTransport) -> None:
        peer = str(Address(*transport.get_extra_info("peername", ("unknown", 0))[:2]))
        try:
            if not self._is_full(peer, transport.get_extra_info("socket").fileno()):
                # The transport has not read yet. It is replaced: with TLS, another kind of transport is needed.
                connection = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
                connection.setblocking(False)
                task = asyncio.get_running_loop().create_task(self._open(connection, peer))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
        except OSError as error:
            self._report(peer, error.strerror or str(error))
        finally:
            cast(asyncio.Transport, transport).abort()

    async def _open(self, connection: socket.socket, peer: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                first = await _peek(connection)
                if first == _HANDSHAKE_BYTE:
                    context: ssl.SSLContext | None = await self._tls.get()
                elif self._is_required and first:
                    raise ConnectionRefusedError("it does not use TLS, and net.tls_required is true")
                else:
                    context = None
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(self._make_channel, connection, ssl=context)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):  # which TimeoutError is, too
                self.refused += 1
            if isinstance(error, TimeoutError):
                self._report(peer, f"no handshake within {HANDSHAKE_TIMEOUT_S:.0f} s")
            elif isinstance(error, OSError):
                self._report(peer, str(error))
            else:
                raise

    def _report(self, peer: str, reason: str) -> None:
        if self._failures.is_due(reason):
            log.warning("a connection of %(peer)s is refused: %(reason)s", {"peer": peer, "reason": reason})

    async def stop(self) -> None:
        """Close connections that are being opened."""
        opening = list(self._opening)
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)


class _Accepted(asyncio.Protocol):
    """Hands over the transport of a connection before anything is read from it."""

    def __init__(self, accept: Callable[[asyncio.BaseTransport], None]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._accept(transport)


async def _peek(connection: socket.socket) -> bytes:
    """Return the first byte without taking it; none if the peer has closed the connection."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK)


def _unusable(key: str, files: Iterable[str | None], cause: OSError) -> SettingsError:
    names = ", ".join(file for file in files if file is not None)
    return SettingsError(key, names, "the settings", "files with a certificate and its key (PEM)", str(cause))

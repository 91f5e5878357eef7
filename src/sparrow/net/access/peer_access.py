"""How a server or an operator connects to other servers: with TLS or without, and with which signatures."""

from __future__ import annotations

from functools import partial

from sparrow.model.access.token import Credentials
from sparrow.model.tls import Tls
from sparrow.net.access.tls import ReloadedContext, load_client_context
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.net.dialer import connect


class PeerAccess:
    """TLS and credentials of connections to other servers. Certificates are loaded again when their files change."""

    def __init__(self, tls: Tls | None = None, credentials: Credentials | None = None) -> None:
        """Load the certificates; raise `SettingsError` if they cannot be used. `credentials` sign every request."""
        self._credentials = credentials
        self._context: ReloadedContext | None = None
        if tls is not None:
            files = (tls.authorities, tls.certificate, tls.key)
            self._context = ReloadedContext(files, partial(load_client_context, tls))

    async def connect(self, address: Address, *, timeout_ms: int = 3_000) -> Channel:
        """Connect to a server; raise `ConnectionLost` if that fails."""
        context = None if self._context is None else await self._context.get()
        return await connect(address, timeout_ms=timeout_ms, tls=context, credentials=self._credentials)

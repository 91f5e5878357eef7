"""Connections to a listener: TCP, then TLS, then the challenge that signatures need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLContext

from sparrow.model.access.token import Credentials
from sparrow.model.errors import ConnectionLost
from sparrow.net.access.signatures import make_signer
from sparrow.net.address import Address
from sparrow.net.channel import Channel, RequestReceiver

UNREACHABLE_REMEDY = "start the server, or check the address and the firewall"
_TLS_REMEDY = "check that the server has net.tls_certificate, and that the authorities of this side have signed it"


async def connect(
    address: Address,
    serve: RequestReceiver | None = None,
    *,
    timeout_ms: int = 3_000,
    on_close: Callable[[Channel], None] | None = None,
    tls: SSLContext | None = None,
    credentials: Credentials | None = None,
) -> Channel:
    """Connect to a listener; raise `ConnectionLost` if that fails. `credentials` sign every request of the channel."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, channel = await loop.create_connection(
                lambda: Channel(serve, on_close=on_close),
                *address,
                ssl=tls,
                server_hostname=address.host if tls is not None else None,
            )
    except TimeoutError as cause:
        raise ConnectionLost(str(address), f"no connection within {timeout_ms} ms; {UNREACHABLE_REMEDY}") from cause
    except OSError as cause:
        if tls is not None and not isinstance(cause, ConnectionRefusedError):
            raise ConnectionLost(str(address), f"no TLS connection: {cause}; {_TLS_REMEDY}") from cause
        raise ConnectionLost(str(address), f"{cause.strerror or cause}; {UNREACHABLE_REMEDY}") from cause
    if credentials is not None:
        try:
            channel.sign = await make_signer(channel, credentials, timeout_ms=timeout_ms)
        except BaseException:
            channel.abort()
            raise
    return channel

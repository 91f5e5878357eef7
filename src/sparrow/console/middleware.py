"""What surrounds every request: security headers and a limit for request bodies.

Both are plain ASGI: Starlette's `BaseHTTPMiddleware` would break event streams.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

REQUEST_BYTES_MAX = 24 * 1024 * 1024
"""A message of 16 MiB as base64, and a little more."""
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers post our own forms with `Origin: null`
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class SecurityHeaders:
    """Adds security headers to every response. It is no `BaseHTTPMiddleware`, which would break event streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class BodyLimit:
    """Refuses request bodies that are too large, whatever length they claim."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        received = 0

        async def receive_within_limit() -> ASGIMessage:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > REQUEST_BYTES_MAX:
                    raise HTTPException(413, f"the request has more than {REQUEST_BYTES_MAX} bytes")
            return message

        await self._app(scope, receive_within_limit if scope["type"] == "http" else receive, send)

"""A small HTTP server on the event loop, for health checks and metrics: GET and HEAD, one request per connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qs

import msgspec

from sparrow.model.errors import CannotListen, Closed

_REQUEST_BYTES_MAX = 16 * 1024
_REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64
"""Connections that are served at a time; others are closed."""


class HttpRequest(msgspec.Struct, frozen=True):
    """A request, without its body."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    """By lower-case name."""


class HttpResponse(msgspec.Struct, frozen=True):
    """A response."""

    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK

    @classmethod
    def json(cls, value: object, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
        """Return a response with a JSON body."""
        return cls(msgspec.json.encode(value), status=status)


HttpRoute = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpEndpoint:
    """One listening port with a few paths."""

    def __init__(
        self, routes: Mapping[str, HttpRoute], *, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Create an endpoint; port 0 is any free one."""
        self._routes, self._host, self._port, self._tls = routes, host, port, tls
        self._server: asyncio.Server | None = None
        self._connections = 0

    @property
    def port(self) -> int:
        """The port on which the endpoint listens."""
        if self._server is None:
            raise Closed("the HTTP endpoint")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        """Host and port, for a log line."""
        return f"{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}"

    @property
    def url(self) -> str:
        """Its address, such as `http://127.0.0.1:5557`."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    async def open(self) -> None:
        """Start to listen; raise `CannotListen` if the port is taken."""
        if self._server is not None:
            return
        try:
            self._server = await asyncio.start_server(
                self._serve,
                self._host,
                self._port,
                limit=_REQUEST_BYTES_MAX,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _REQUEST_TIMEOUT_S,
            )
        except OSError as error:
            raise CannotListen(f"{self._host}:{self._port}", error.strerror or str(error)) from error

    async def close(self) -> None:
        """Stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > CONNECTIONS_MAX:
                return
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await self._answer(head))
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the peer went away, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        request = parse_request(head)
        if request.method not in ("GET", "HEAD"):
            refusal = {"error": f"{request.method[:20]} is not allowed: use GET"}
            return _encode(HttpResponse.json(refusal, HTTPStatus.METHOD_NOT_ALLOWED), request.method)
        route = self._routes.get(request.path)
        if route is None:
            known = ", ".join(self._routes)
            refusal = {"error": f"there is no {request.path[:200]}: use one of {known}"}
            return _encode(HttpResponse.json(refusal, HTTPStatus.NOT_FOUND), request.method)
        return _encode(await route(request), request.method)


def parse_request(head: bytes) -> HttpRequest:
    """Parse the head of a request. Anything gives a request; a senseless one has a method that nobody serves."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target = rest.partition(" ")[0]
    path, _, query = target.partition("?")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return HttpRequest(method, path, parse_qs(query, keep_blank_values=True), headers)


def _encode(response: HttpResponse, method: str) -> bytes:
    status, content = response.status, response.body
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {response.content_type}\r\n"
        f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else content)

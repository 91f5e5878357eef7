"""`HealthServer`: answers the liveness and readiness probes of a container platform over HTTP.

| Request | Answer |
| --- | --- |
| `GET /live` | 200 as long as the event loop runs |
| `GET /ready` | 200 if everything that is watched is ok, otherwise 503; the findings as JSON in both cases |
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Protocol, Self

import msgspec

from sparrow.model.errors import CannotListen, Closed
from sparrow.model.health import Health

DEFAULT_PORT = 8080
_REQUEST_BYTES_MAX = 16 * 1024
_REQUEST_TIMEOUT_S = 5.0


class HasHealth(Protocol):
    """A consumer, a producer or a bus."""

    def health(self) -> Health:
        """Return whether it can do its work, and what hinders it."""
        ...


class HealthServer:
    """An HTTP server on the running event loop, for probes of Kubernetes, Docker and the like.

    ```python
    async with Consumer(group="billing") as consumer, HealthServer(consumer, port=8080):
        ...
    ```
    """

    def __init__(self, *watched: HasHealth, host: str = "0.0.0.0", port: int = DEFAULT_PORT) -> None:
        """Create a server for consumers, producers or buses; port 0 is any free one."""
        self._host, self._port = host, port
        self._watched = watched
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        if self._server is None:
            raise Closed("the health server")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        """Host and port, for a log line."""
        return f"{self._host}:{self.port}"

    async def open(self) -> None:
        """Start to listen; raise `CannotListen` if the port is taken."""
        if self._server is not None:
            return
        try:
            self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=_REQUEST_BYTES_MAX)
        except OSError as error:
            raise CannotListen(f"{self._host}:{self._port}", error.strerror or str(error)) from error

    async def close(self) -> None:
        """Stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the peer went away, or does not speak HTTP
        finally:
            writer.close()

    async def _response(self, head: bytes) -> bytes:
        method, _, rest = head.decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"{method} is not allowed: use GET"}, method)
        if path == "/live":
            return _response(HTTPStatus.OK, {"live": True}, method)
        if path == "/ready":
            healths = await self._healths()
            is_ready = all(health.ok for health in healths)
            findings = [msgspec.to_builtins(finding) for health in healths for finding in health.findings]
            status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
            return _response(status, {"ready": is_ready, "findings": findings}, method)
        return _response(HTTPStatus.NOT_FOUND, {"error": f"there is no {path}: use /live or /ready"}, method)

    async def _healths(self) -> list[Health]:
        return [each.health() for each in self._watched]


def _response(status: HTTPStatus, body: object, method: str) -> bytes:
    content = msgspec.json.encode(body)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else content)

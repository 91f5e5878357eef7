"""The HTTP server of the console: uvicorn on a socket of ours, started and stopped like Sparrow's other servers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from sparrow.model.errors import CannotListen, SparrowError

STOP_GRACE_S = 2
"""How long requests in progress may take when the server stops; event streams are cut then."""


class _Server(uvicorn.Server):
    """Reports when it is ready, and leaves signals to its owner."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ConsoleServer:
    """Serves an application. In `async with ConsoleServer(app, host, port) as server:` it answers at `server.url`."""

    def __init__(self, app: FastAPI, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """Create a server; with `tls` it answers over HTTPS."""
        self._app, self._host, self._port, self._tls = app, host, port, tls
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.url = ""
        """Its address, such as `http://127.0.0.1:8765`."""

    async def start(self) -> None:
        """Listen and serve; raise `CannotListen` if the port is taken."""
        listening = self._bind()
        port = listening.getsockname()[1]
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{'http' if self._tls is None else 'https'}://{shown}:{port}"
        options: dict[str, Any] = {"lifespan": "on", "log_config": None, "access_log": False, "server_header": False}
        config = uvicorn.Config(self._app, timeout_graceful_shutdown=STOP_GRACE_S, **options)
        config.load()
        config.ssl = self._tls  # ours, because it follows changes of the certificate
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listening]), name="console")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait([ready, self._serving], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done() and not self._server.ready.is_set():
            listening.close()
            self._serving.result()
            raise SparrowError("the console did not start: its log says why")

    async def stop(self) -> None:
        """Finish the requests in progress, and stop."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    async def __aenter__(self) -> ConsoleServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _bind(self) -> socket.socket:
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            return socket.create_server((self._host, self._port), family=family, backlog=128)
        except OSError as cause:
            raise CannotListen(
                f"{self._host}:{self._port}", (cause.strerror or str(cause)).partition(" (while")[0]
            ) from cause

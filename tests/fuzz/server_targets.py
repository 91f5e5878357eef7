"""Fuzz targets above the wire: conditions of subscriptions, and requests to the console."""

from __future__ import annotations

import asyncio
import atexit
import string
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import pyarrow as pa
from tests.fuzz.wire_targets import Failed, outcome

from sparrow.broker.sql92 import InvalidSelector, compile_selector

_PROPERTY_STRINGS = (
    b"",
    b"a\x01b\x02",
    b"a\x015\x02b\x013.5\x02c\x01true\x02",
    b"a\x01-9223372036854775808\x02b\x011e400\x02",
    b"a\x01\xff\xfe\x02b\x01NaN\x02",
)
_NOT_THERE = {502, 503, 504}
"""The broker behind the console is not there."""


def sql92_conditions(data: bytes) -> None:
    """Compile a condition, and evaluate it for single messages and for a column: the same matches."""
    text = data.decode("utf-8", "replace")
    selector = outcome(lambda: compile_selector.__wrapped__(text), InvalidSelector)
    if isinstance(selector, Failed):
        return
    rows = [selector.matches(string) for string in _PROPERTY_STRINGS]
    assert selector.mask(pa.array(_PROPERTY_STRINGS, pa.binary())).tolist() == rows, text


def http_requests(data: bytes) -> None:
    """Send a request to the console: no exception leaves the application, and no response says that it failed."""
    head, _, body = data.partition(b"\n\n")
    method, _, target = head.partition(b" ")
    path, _, query = quote(target, safe=string.punctuation).encode().partition(b"?")  # the HTTP server refuses others
    status = _console().request(method.decode("latin-1").upper() or "GET", path, query, body)
    assert status < 500 or status in _NOT_THERE, status


class _Console:
    """The application of the console, called without a socket; its cluster cannot be reached."""

    def __init__(self) -> None:
        from sparrow.console import create_app

        self._loop = asyncio.new_event_loop()
        self._app = create_app({"default": "127.0.0.1:1"})
        self._stack = AsyncExitStack()
        self._loop.run_until_complete(self._stack.enter_async_context(self._app.router.lifespan_context(self._app)))
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()

    def request(self, method: str, path: bytes, query: bytes, body: bytes) -> int:
        """Return the status of the response."""
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": unquote_to_bytes(path).decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1:8088"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8088),
            "app": self._app,
        }
        said: list[Any] = []

        async def receive() -> dict[str, Any]:
            if said:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        self._loop.run_until_complete(asyncio.wait_for(self._app(scope, receive, send), 60))
        return int(said[0]["status"])


_running: list[_Console] = []


def _console() -> _Console:
    if not _running:
        _running.append(_Console())
    return _running[0]

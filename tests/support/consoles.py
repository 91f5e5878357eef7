"""The console on a free port, in a thread of the test process, and a client for it."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.console import create_app
from sparrow.console.server import ConsoleServer
from sparrow.model.access.token import Credentials
from sparrow.settings import ConsoleSettings

TIMEOUT_S = 60.0
"""A generous timeout for busy machines."""


@contextmanager
def running_console(
    clusters: Mapping[str, str] | str, *, credentials: Credentials | None = None, **settings: object
) -> Iterator[httpx.Client]:
    """Serve the console for these clusters, and provide a client whose base URL is its address."""
    served = {"default": clusters} if isinstance(clusters, str) else dict(clusters)
    loop = LoopThread("console")
    chosen = ConsoleSettings.model_validate({"sample_interval_ms": 200, **settings})

    async def start() -> ConsoleServer:
        server = ConsoleServer(create_app(served, settings=chosen, credentials=credentials), "127.0.0.1", 0)
        await server.start()
        return server

    try:
        server = loop.run(start())
        try:
            with httpx.Client(base_url=server.url, timeout=TIMEOUT_S, trust_env=False) as client:
                yield client
        finally:
            loop.run(asyncio.wait_for(server.stop(), TIMEOUT_S))
    finally:
        loop.stop()

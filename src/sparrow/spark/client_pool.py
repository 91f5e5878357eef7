"""Connections to brokers that outlive a task: Spark uses its Python processes again, and so do we what they opened.

A process has one link for each set of client options. It lives on the blocking clients' loop thread, and ends with the
process. A forked child starts with none.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.blocking.loop_thread import SHARED_LOOP, LoopThread
from sparrow.spark.options import ClientOptions

T = TypeVar("T")


class PooledClient:
    """A session with the brokers, for code that is not asyncio."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self._loop: LoopThread = SHARED_LOOP.acquire()
        try:
            self.session: ClientSession = self._loop.run(_opened(options))
        except BaseException:
            SHARED_LOOP.release()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """What the coroutine returns or raises, on the link's loop."""
        return self._loop.run(coroutine, timeout_s)

    def close(self) -> None:
        try:
            self._loop.run(self.session.close())
        finally:
            SHARED_LOOP.release()


async def _opened(options: ClientOptions) -> ClientSession:
    session = ClientSession(options.name_servers, timeout_ms=options.timeout_ms, credentials=options.credentials)
    await session.open()
    return session


class ClientPool:
    """The links of this process."""

    def __init__(self) -> None:
        self._clients: dict[ClientOptions, PooledClient] = {}
        self._opening = threading.Lock()

    def get(self, options: ClientOptions) -> PooledClient:
        """The link with these brokers."""
        with self._opening:
            found = self._clients.get(options)
            if found is None:
                found = self._clients[options] = PooledClient(options)
            return found

    def close(self) -> None:
        """Hang up everywhere. The next use dials again."""
        with self._opening:
            while self._clients:
                self._clients.popitem()[1].close()

    def reset_after_fork(self) -> None:
        """In a forked child: neither the loop nor the connections are there."""
        self._clients, self._opening = {}, threading.Lock()


CLIENT_POOL = ClientPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CLIENT_POOL.reset_after_fork)

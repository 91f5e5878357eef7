"""Clients that outlive a task: one connected client for each process and set of client options.

Spark reuses its Python worker processes, so connections opened by one task serve the next. A client runs on the loop
thread of the blocking clients and is closed when the process ends. A forked child starts with an empty pool.
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
    """A client session that blocking code can use."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self._loop: LoopThread = SHARED_LOOP.acquire()
        try:
            self.session: ClientSession = self._loop.run(_open_session(options))
        except BaseException:
            SHARED_LOOP.release()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run the coroutine on the client's event loop and return its result."""
        return self._loop.run(coroutine, timeout_s)

    def close(self) -> None:
        """Close the session and release the event loop."""
        try:
            self._loop.run(self.session.close())
        finally:
            SHARED_LOOP.release()


async def _open_session(options: ClientOptions) -> ClientSession:
    session = ClientSession(options.name_servers, timeout_ms=options.timeout_ms, credentials=options.credentials)
    await session.open()
    return session


class ClientPool:
    """The clients of this process."""

    def __init__(self) -> None:
        self._clients: dict[ClientOptions, PooledClient] = {}
        self._lock = threading.Lock()

    def get(self, options: ClientOptions) -> PooledClient:
        """Return the client with these options; connect if there is none yet."""
        with self._lock:
            found = self._clients.get(options)
            if found is None:
                found = self._clients[options] = PooledClient(options)
            return found

    def close(self) -> None:
        """Close all clients. The next `get` connects again."""
        with self._lock:
            while self._clients:
                self._clients.popitem()[1].close()

    def reset_after_fork(self) -> None:
        """Forget all clients in a forked child, which has neither the event loop nor the sockets."""
        self._clients, self._lock = {}, threading.Lock()


CLIENT_POOL = ClientPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CLIENT_POOL.reset_after_fork)

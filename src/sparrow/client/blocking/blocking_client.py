"""The base of blocking clients: an asyncio client, and the loop thread that it runs on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, Self, TypeVar

from sparrow.client.blocking.loop_thread import SHARED_LOOP, LoopThread
from sparrow.model.errors import Closed

T = TypeVar("T")


class AsyncClient(Protocol):
    """One of the asyncio clients."""

    async def open(self) -> object: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=AsyncClient)


class BlockingClient(Generic[C]):
    """Opened by `with`, by `open`, or by the first call. Any thread may call it."""

    def __init__(self, client: C, *, what: str) -> None:
        self._client, self._what = client, what
        self._loop: LoopThread | None = None
        self._is_closed = False
        self._changing = threading.Lock()

    def open(self) -> None:
        """Open the client. `with` does it, and so does the first call."""
        self._opened()

    def close(self) -> None:
        """Finish what is in progress and close the connections. A closed client cannot be opened again."""
        self._close(self._client.close())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> LoopThread:
        loop = self._loop
        if loop is not None:
            return loop
        with self._changing:
            if self._is_closed:
                raise Closed(self._what, "create a new one, and close it after its last use")
            if self._loop is None:
                loop = SHARED_LOOP.acquire()
                try:
                    loop.run(self._client.open())
                except BaseException:
                    SHARED_LOOP.release()
                    raise
                self._loop = loop
            return self._loop

    def _run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        try:
            loop = self._loop or self._opened()
        except BaseException:
            coroutine.close()
            raise
        return loop.run(coroutine, timeout_s)

    def _call(self, function: Callable[[], T]) -> T:
        """Call a plain function of the asyncio client on its loop."""

        async def called() -> T:
            return function()

        return self._run(called())

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        with self._changing:
            self._is_closed = True
            loop, self._loop = self._loop, None
        if loop is None or not loop.is_of_this_process:
            closing.close()
            return
        try:
            loop.run(closing)
        finally:
            SHARED_LOOP.release()

"""The thread in which blocking clients have their event loop, and how other threads wait for what runs on it.

1. A process has one such thread for all its blocking clients: started by the first, gone with the last.
2. Ctrl-C, or a time that is up, cancels what was being waited for; it is over when the caller goes on.
3. An error is raised where the call was made, with the road it took on the loop in its traceback.
4. A forked child has no loop: clients must be opened in the process that uses them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from sparrow.model.errors import Closed, Refused, SparrowError

_LOOK_UP_S = 0.25
CANCEL_WAIT_S = 2.0
"""How long something cancelled may take to wind up before its caller goes on without it."""

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self._loop = self._runner.get_loop()
        self._stop = asyncio.Event()
        self._calls: set[_Call[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_of_this_process(self) -> bool:
        return self._pid == os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this very thread: a callback of a future, for example."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """What the coroutine returns or raises. `TimeoutError` if the time is up before."""
        call = _Call(coroutine)
        self._calls.add(call)
        try:
            try:
                self._begin(call)
                is_over = call.wait(timeout_s)
            except SparrowError:
                raise  # it never began
            except BaseException:  # Ctrl-C while we wait
                self._abandon(call)
                raise
            if not is_over:
                self._abandon(call)
                if not call.has_result:
                    raise TimeoutError(f"not done within {timeout_s} s")
            return call.result()
        finally:
            self._calls.discard(call)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the loop, soon. Nobody waits for it, so the loop's own callbacks may use this too."""
        if not self.is_of_this_process:
            raise Refused(f"opened in process {self._pid}, used in {os.getpid()}: open a client in each process")
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError as cause:
            raise Closed("the client") from cause

    def stop(self) -> None:
        """Whatever still runs is cancelled."""
        self.call_soon(self._stop.set)
        self._thread.join()

    def _begin(self, call: _Call[Any]) -> None:
        try:
            if self.is_current:
                raise Refused("called on the client's own event loop, which would wait for itself: use another thread")
            self.call_soon(call.begin)
        except SparrowError:
            call.close()
            raise

    def _abandon(self, call: _Call[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(call.cancel)
        except RuntimeError:
            return  # the loop is gone, and the call with it
        call.wait(CANCEL_WAIT_S)

    def _serve(self) -> None:
        with self._runner:
            self._runner.run(self._stop.wait())
        # What came too late to be begun: the loop takes nothing more, so nobody is added behind us.
        for call in list(self._calls):
            call.drop()


class _Call(Generic[T]):
    """A coroutine on the loop that another thread waits for. Lighter than a future: nobody else may watch it."""

    __slots__ = ("_coroutine", "_error", "_over", "_result", "_task", "has_result")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._error: BaseException | None = None
        self._result: T
        self.has_result = False
        self._over = threading.Lock()
        self._over.acquire()

    # -- on the loop --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = Closed("the client")
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._result = task.result()
            self.has_result = True
        self._over.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # -- when the loop will never run it ------------------------------------------------------------------------------

    def close(self) -> None:
        """Nobody waits yet."""
        self._coroutine.close()

    def drop(self) -> None:
        """Somebody waits."""
        if self._task is None:
            self._coroutine.close()
            self._error = Closed("the client")
            self._over.release()

    # -- in the thread that waits -------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None) -> bool:
        """In short turns: a Ctrl-C that comes just before a wait begins is noticed only when that wait ends."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _LOOK_UP_S if deadline is None else min(_LOOK_UP_S, max(0.0, deadline - time.monotonic()))
            if self._over.acquire(timeout=left_s):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def result(self) -> T:
        if self.has_result:
            return self._result
        assert self._error is not None
        try:
            raise self._error
        finally:
            self._error = None  # error, traceback, frame, call: a circle that would keep all of them


class SharedLoop:
    """The loop thread of a process's clients. Who acquires it releases it."""

    def __init__(self) -> None:
        self._loop: LoopThread | None = None
        self._users = 0
        self._lock = threading.Lock()

    def acquire(self) -> LoopThread:
        with self._lock:
            if self._loop is None:
                self._loop = LoopThread("sparrow client")
            self._users += 1
            return self._loop

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            loop, self._loop = self._loop, None
        assert loop is not None
        loop.stop()

    def forget(self) -> None:
        """In a forked child: the thread is not there, and nobody would ever let go of a lock that was held."""
        self._loop, self._users, self._lock = None, 0, threading.Lock()


SHARED_LOOP = SharedLoop()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SHARED_LOOP.forget)

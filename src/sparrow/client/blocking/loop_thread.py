"""The thread with the event loop of blocking clients, and how other threads wait for coroutines on it.

1. A process has one such thread for all its blocking clients: the first starts it, the last stops it.
2. Ctrl-C, or a timeout, cancels the awaited coroutine before the caller continues.
3. An error is raised where the call was made, with the frames of the loop thread in its traceback.
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

_WAIT_INTERVAL_S = 0.25
CANCEL_WAIT_S = 2.0
"""How long a cancelled coroutine may take to end before its caller continues without it."""

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop event loop if it is installed, otherwise one of asyncio."""
    try:
        import uvloop
    except ImportError:  # not available on Windows
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
        """Whether the thread was started in this process, and not before a fork."""
        return self._pid == os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, for example in a callback of a future."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine and return its result, or raise its error; raise `TimeoutError` when the time is up."""
        call = _Call(coroutine)
        self._calls.add(call)
        try:
            try:
                self._begin(call)
                is_over = call.wait(timeout_s)
            except SparrowError:
                raise  # it was not started
            except BaseException:  # Ctrl-C while we wait
                self._cancel(call)
                raise
            if not is_over:
                self._cancel(call)
                if not call.has_result:
                    raise TimeoutError(f"not done within {timeout_s} s")
            return call.result()
        finally:
            self._calls.discard(call)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the loop without waiting. Callbacks of the loop itself may use this too."""
        if not self.is_of_this_process:
            raise Refused(f"this client was opened in process {self._pid}: open another in process {os.getpid()}")
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError as cause:
            raise Closed("the client") from cause

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        self.call_soon(self._stop.set)
        self._thread.join()

    def _begin(self, call: _Call[Any]) -> None:
        try:
            if self.is_current:
                raise Refused(
                    "a blocking call on the client's own event loop would wait for itself: call it in another thread"
                )
            self.call_soon(call.begin)
        except SparrowError:
            call.close()
            raise

    def _cancel(self, call: _Call[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(call.cancel)
        except RuntimeError:
            return  # the loop has ended, and the call with it
        call.wait(CANCEL_WAIT_S)

    def _serve(self) -> None:
        with self._runner:
            self._runner.run(self._stop.wait())
        # Fail calls that were not started; the closed loop accepts no more.
        for call in list(self._calls):
            call.drop()


class _Call(Generic[T]):
    """A coroutine on the loop for which another thread waits. It is cheaper than a future, and has one waiter."""

    __slots__ = ("_coroutine", "_done_lock", "_error", "_result", "_task", "has_result")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._error: BaseException | None = None
        self._result: T
        self.has_result = False
        self._done_lock = threading.Lock()
        self._done_lock.acquire()

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
        self._done_lock.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # -- without the loop ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the coroutine before a thread waits."""
        self._coroutine.close()

    def drop(self) -> None:
        """Fail the call: the loop will not run it."""
        if self._task is None:
            self._coroutine.close()
            self._error = Closed("the client")
            self._done_lock.release()

    # -- in the waiting thread ----------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None) -> bool:
        """Wait in short intervals: a Ctrl-C just before a wait begins is noticed only when that wait ends."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = (
                _WAIT_INTERVAL_S if deadline is None else min(_WAIT_INTERVAL_S, max(0.0, deadline - time.monotonic()))
            )
            if self._done_lock.acquire(timeout=left_s):
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
            self._error = None  # break the reference cycle of error, traceback, frame and call


class SharedLoop:
    """The loop thread of a process's clients, counted by users."""

    def __init__(self) -> None:
        self._loop: LoopThread | None = None
        self._users = 0
        self._lock = threading.Lock()

    def acquire(self) -> LoopThread:
        """Return the loop thread, started if necessary."""
        with self._lock:
            if self._loop is None:
                self._loop = LoopThread("sparrow client")
            self._users += 1
            return self._loop

    def release(self) -> None:
        """Release the loop thread; the last user stops it."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            loop, self._loop = self._loop, None
        assert loop is not None
        loop.stop()

    def forget(self) -> None:
        """Reset in a forked child, where the thread does not exist and a held lock would never be released."""
        self._loop, self._users, self._lock = None, 0, threading.Lock()


SHARED_LOOP = SharedLoop()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SHARED_LOOP.forget)

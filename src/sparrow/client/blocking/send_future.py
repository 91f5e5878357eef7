"""Futures of messages that are handed over to the event loop: a `concurrent.futures.Future` that is cheap to make.

The condition of a future, with its lock and its lists, costs more than the message, and few futures are waited for.
So it is made when a thread first waits for the future, cancels it or adds a callback:

1. Whoever needs the condition makes it under one lock, and looks at the state afterwards.
2. A future is settled under the same lock. Without a condition nobody waits: the state is set, and that is all.
   With one, the base class settles it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from typing import Any, Protocol

from sparrow.model.send_result import SendResult

_DONE = frozenset({CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED})
_making = threading.Lock()


class SettledCount(Protocol):
    """What counts futures that are settled."""

    def count_stored(self) -> None:
        """Count a message that is stored."""
        ...

    def count_failed(self, error: BaseException | None) -> None:
        """Count a message that has failed."""
        ...


class ThreadSendFuture(Future[SendResult]):
    """The future of a message."""

    def __init__(self, counts: SettledCount) -> None:
        # Not that of the base class: it would make the condition.
        self._counts = counts
        self._own_condition: threading.Condition | None = None
        self._state = PENDING
        self._result: SendResult | None = None
        self._exception: BaseException | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """The condition of the base class, and the lists that it uses while it holds it."""
        if self._own_condition is None:
            with _making:
                if self._own_condition is None:
                    self._waiters = []
                    self._done_callbacks: list[Any] = []
                    self._own_condition = threading.Condition()
        return self._own_condition

    def done(self) -> bool:
        """Return whether the message is stored, has failed or is cancelled."""
        return self._state in _DONE

    def result(self, timeout: float | None = None) -> SendResult:
        """Return the result, or raise the error, of the send; wait for it up to `timeout` seconds."""
        if self._state == FINISHED and self._result is not None:
            return self._result
        return super().result(timeout)

    # -- on the loop --------------------------------------------------------------------------------------------------

    def set_running_or_notify_cancel(self) -> bool:
        """Make the future one that cannot be cancelled any more; return False if it is cancelled."""
        with _making:
            if self._own_condition is None:
                self._state = RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: SendResult) -> None:
        """Settle the future of a message that is stored."""
        self._counts.count_stored()
        with _making:
            if self._own_condition is None:
                self._result, self._state = result, FINISHED
                return
        super().set_result(result)

    def set_exception(self, error: BaseException | None) -> None:
        """Settle the future of a message that has failed."""
        self._counts.count_failed(error)
        super().set_exception(error)

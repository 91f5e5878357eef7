"""Queue locks of ordered consumers: one client of a group holds a queue until its lease expires.

Times are those of the monotonic clock: whoever sets the wall clock neither frees a queue nor keeps it locked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import LockedQueues, LockQueues, QueueRef
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader

if TYPE_CHECKING:  # context imports this module
    from sparrow.broker.context import Broker

LOCKS_MAX = 1_000_000
"""The number of locks at a time. Beyond it, only locks that are held already are renewed."""


class _Lock(NamedTuple):
    client_id: str
    renewed_ms: int


class QueueLocks:
    """All queue locks of one broker."""

    def __init__(self, lock_ms: int, *, locks_max: int = LOCKS_MAX) -> None:
        self._lock_ms, self._locks_max = lock_ms, locks_max
        # Ordered by renewal: expired locks are at the front.
        self._locks: dict[tuple[str, QueueRef], _Lock] = {}
        self.refused = 0
        """Locks that were not given because of the limit."""

    def __len__(self) -> int:
        return len(self._locks)

    def lock(self, group: str, client_id: str, queues: Iterable[QueueRef], now_ms: int) -> list[QueueRef]:
        """Take or renew locks. Return the queues that the client holds now."""
        self._forget_expired(now_ms)
        return [queue for queue in queues if self._take((group, queue), client_id, now_ms)]

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueRef]) -> None:
        """Release the queues that the client holds. Other clients' locks are kept."""
        for queue in queues:
            found = self._locks.get((group, queue))
            if found is not None and found.client_id == client_id:
                del self._locks[group, queue]

    def holder(self, group: str, queue: QueueRef, now_ms: int) -> str | None:
        found = self._locks.get((group, queue))
        return found.client_id if found is not None and not self._is_expired(found, now_ms) else None

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Return whether the group consumes in order. Scans all locks; call it rarely."""
        return any(of == group and not self._is_expired(lock, now_ms) for (of, _), lock in self._locks.items())

    def _take(self, key: tuple[str, QueueRef], client_id: str, now_ms: int) -> bool:
        found = self._locks.get(key)
        if found is None:
            if len(self._locks) >= self._locks_max:
                self.refused += 1
                return False
        elif found.client_id != client_id and not self._is_expired(found, now_ms):
            return False
        self._locks.pop(key, None)
        self._locks[key] = _Lock(client_id, now_ms)
        return True

    def _is_expired(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._lock_ms

    def _forget_expired(self, now_ms: int) -> None:
        while self._locks:
            oldest = next(iter(self._locks))
            if not self._is_expired(self._locks[oldest], now_ms):
                return
            del self._locks[oldest]


async def lock_queues(_: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    request = call.body(LockQueues)
    locked = broker.queue_locks.lock(request.consumer_group, request.client_id, request.mq_set, broker.monotonic_ms())
    return HandlerResponse.of(LockedQueues(locked))


async def unlock_queues(_: EmptyHeader, broker: Broker, call: RequestContext) -> None:
    request = call.body(LockQueues)
    broker.queue_locks.unlock(request.consumer_group, request.client_id, request.mq_set)


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.LOCK_BATCH_MQ: lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: unlock_queues,
}

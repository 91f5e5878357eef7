"""Which client may consume a queue in order. One of a group at a time holds a queue, until it stops renewing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import LockedQueues, LockQueues, QueueRef
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader

if TYPE_CHECKING:  # it holds the locks, and so imports this module
    from sparrow.broker.context import Broker

LOCKS_MAX = 1_000_000
"""Locks held at a time. No cluster has as many queues; past it nobody gets one that is not held already."""


class _Lock(NamedTuple):
    client_id: str
    renewed_ms: int


class QueueLocks:
    """All queue locks of one broker."""

    def __init__(self, lock_ms: int, *, locks_max: int = LOCKS_MAX) -> None:
        self._lock_ms, self._locks_max = lock_ms, locks_max
        # The longest not renewed come first: what has expired is always at the front.
        self._held: dict[tuple[str, QueueRef], _Lock] = {}

    def __len__(self) -> int:
        return len(self._held)

    def lock(self, group: str, client_id: str, queues: Iterable[QueueRef], now_ms: int) -> list[QueueRef]:
        """Take or renew; answers which of the queues the client holds now."""
        self._forget_expired(now_ms)
        return [queue for queue in queues if self._take((group, queue), client_id, now_ms)]

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueRef]) -> None:
        """Give back those it holds; others' stay theirs."""
        for queue in queues:
            found = self._held.get((group, queue))
            if found is not None and found.client_id == client_id:
                del self._held[group, queue]

    def holder(self, group: str, queue: QueueRef, now_ms: int) -> str | None:
        found = self._held.get((group, queue))
        return found.client_id if found is not None and not self._is_expired(found, now_ms) else None

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether the group consumes in order. Looks through all locks: for what happens seldom."""
        return any(of == group and not self._is_expired(lock, now_ms) for (of, _), lock in self._held.items())

    def _take(self, key: tuple[str, QueueRef], client_id: str, now_ms: int) -> bool:
        found = self._held.get(key)
        if found is None:
            if len(self._held) >= self._locks_max:
                return False
        elif found.client_id != client_id and not self._is_expired(found, now_ms):
            return False
        self._held.pop(key, None)
        self._held[key] = _Lock(client_id, now_ms)
        return True

    def _is_expired(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._lock_ms

    def _forget_expired(self, now_ms: int) -> None:
        while self._held:
            oldest = next(iter(self._held))
            if not self._is_expired(self._held[oldest], now_ms):
                return
            del self._held[oldest]


async def lock_queues(_: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    asked = call.body(LockQueues)
    held = broker.queue_locks.lock(asked.consumer_group, asked.client_id, asked.mq_set, broker.now_ms())
    return HandlerResponse.of(LockedQueues(held))


async def unlock_queues(_: EmptyHeader, broker: Broker, call: RequestContext) -> None:
    asked = call.body(LockQueues)
    broker.queue_locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.LOCK_BATCH_MQ: lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: unlock_queues,
}

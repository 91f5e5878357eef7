"""When a send is acknowledged: by the policy of the broker, in the order of offsets, within a time limit.

| policy | acknowledged once | otherwise |
| --- | --- | --- |
| `quorum` | it is committed: every in-sync replica has it | `ReplicationTimeout` |
| `sync` | the best follower has it, and the leader | `NoFollower` without a follower, else `ReplicationTimeout` |
| `async` | the leader has it | |

"Has it" means written, or with synchronous flush: on disk. If only the leader's disk is late, `FlushTimeout` says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from sparrow.model.errors import (
    FlushTimeout,
    NoFollower,
    NotEnoughReplicas,
    NotLeader,
    ReplicationTimeout,
    SparrowError,
    Unavailable,
)
from sparrow.replication.core.leader import Leader
from sparrow.replication.core.replica import Replica
from sparrow.settings import ReplicationPolicy
from sparrow.store.log import LogStore

BEHIND_BYTES_MAX = 256 << 20
"""With `sync`, a follower that is further behind counts as none, as in RocketMQ (`haSlaveFallbehindMax`)."""

NOBODY = -1
_EXPIRY_S_MIN = 0.02
"""Sends that are late are looked for so often at most."""


class _SendGroup:
    """Sends that wait together: those of one iteration of the event loop, which followers fetch in one piece."""

    __slots__ = ("deadline_ms", "end", "future")

    def __init__(self, end: int, deadline_ms: int) -> None:
        self.end, self.deadline_ms = end, deadline_ms
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class SendAcknowledger:
    """The sends of a leader that wait for replicas."""

    def __init__(self, store: LogStore, replica: Replica, policy: ReplicationPolicy, *, timeout_ms: int) -> None:
        self._store, self._replica, self._policy, self._timeout_ms = store, replica, policy, timeout_ms
        self._waiting: deque[_SendGroup] = deque()
        """In the order of their ends, which is that of their deadlines."""
        self._open: _SendGroup | None = None
        """The last group, as long as sends may join it."""
        self._timer: asyncio.TimerHandle | None = None
        """Set while a send waits. It is apart from the steps of the replica: a disk that hangs must not make senders
        wait."""

    def wait(self, end: int, now_ms: int) -> asyncio.Future[None]:
        """Return a future that is done once the policy is met for everything before `end`.

        Other sends share it: shield it from cancellation.
        """
        group = self._open
        if group is not None:
            group.end = max(group.end, end)
            return group.future
        leader = self._replica.leader
        group = _SendGroup(end, now_ms + self._timeout_ms)
        future = group.future
        if leader is None or not leader.is_ready:
            future.set_exception(NotLeader("this broker is no longer the leader: send again"))
        elif end <= self._reached(leader, now_ms):
            future.set_result(None)
        elif self._policy == "sync" and self._best_end(leader, now_ms) == NOBODY:
            return asyncio.ensure_future(self._fail_when_flushed(end))
        else:
            self._open = group
            self._waiting.append(group)
            if self._timer is None:
                self._set_timer(now_ms)
        return future

    def close_group(self) -> None:
        """Let later sends wait for a later offset: followers hear of what is written now."""
        self._open = None

    def _set_timer(self, now_ms: int) -> None:
        wait_s = max(_EXPIRY_S_MIN, (self._waiting[0].deadline_ms - now_ms) / 1000)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms = time.monotonic_ns() // 1_000_000
        self.advance(now_ms)
        if self._waiting:
            self._set_timer(now_ms)

    def stop(self) -> None:
        """End no more waits by their time limit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _fail_when_flushed(self, end: int) -> None:
        flushed = self._store.replica.when_flushed(end)
        if flushed is not None:
            await asyncio.shield(flushed)
        raise NoFollower("the message is written, but no follower is there: start the slaves of this broker")

    def advance(self, now_ms: int) -> None:
        """Acknowledge what meets the policy now, and end what has waited too long."""
        leader = self._replica.leader
        if not self._waiting or leader is None:
            return
        self.close_group()
        reached = self._reached(leader, now_ms)
        while self._waiting and self._waiting[0].end <= reached:
            _settle(self._waiting.popleft().future, None)
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            late = self._waiting.popleft()
            is_only_unflushed = self._replica.log.safe_end < late.end <= self._best_end(leader, now_ms)
            error = FlushTimeout if is_only_unflushed else ReplicationTimeout
            _settle(late.future, error(self._timeout_ms))

    def fail(self, why: str) -> None:
        """End all waits: the leadership is over, and a later leader decides what is stored."""
        self.close_group()
        while self._waiting:
            unknown = NotLeader(f"{why}: whether the message is stored is unknown; send it again")
            _settle(self._waiting.popleft().future, unknown)

    def _reached(self, leader: Leader, now_ms: int) -> int:
        if self._policy == "quorum":
            return self._replica.log.high_watermark
        return min(self._replica.log.safe_end, self._best_end(leader, now_ms))

    def _best_end(self, leader: Leader, now_ms: int) -> int:
        """Return what the best follower has; `NOBODY` if no follower is there, or all are far behind."""
        best = max((at.safe_end for at in leader.live_followers(now_ms).values()), default=NOBODY)
        return best if best > leader.log.end - BEHIND_BYTES_MAX else NOBODY


def _settle(future: asyncio.Future[None], error: SparrowError | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def send_refusal(leader: Leader, policy: ReplicationPolicy, *, has_lease: bool) -> SparrowError | None:
    """Return why sends are refused before anything is written; None: they are accepted."""
    if leader.transfer is not None:
        return NotLeader("the leadership of this broker is handed over: send again")
    if policy == "quorum":
        in_sync, needed = len(leader.state.in_sync), leader.state.min_in_sync
        return None if leader.accepts_writes else NotEnoughReplicas(in_sync, needed)
    # Nothing else keeps a leader that was replaced from acknowledging what nobody else has.
    if has_lease:
        return None
    return Unavailable("the lease of this leader was not renewed, and another may lead: send again")

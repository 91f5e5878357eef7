"""When a send is acknowledged under each policy, and with which error it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.log_stores import small_settings

from sparrow.model.errors import FlushTimeout, NoFollower, NotLeader, ReplicationTimeout
from sparrow.replication.acknowledgement import BEHIND_BYTES_MAX, SendAcknowledger
from sparrow.replication.core.leader import LIVE_MS, FollowerProgress, Leader
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.core.replica import Replica
from sparrow.settings import ReplicationPolicy
from sparrow.store.log import LogStore

TIMEOUT_MS = 2500
SENT_END = 1000


class Leadership:
    """A leader at offset 1000, whose followers and high watermark a test sets."""

    def __init__(self, store: LogStore, policy: ReplicationPolicy) -> None:
        log = LogPosition(end=SENT_END, safe_end=SENT_END)
        self.replica = Replica(ReplicaOptions(set_id="s", replica_id=1), "a", log, lambda: "id")
        state = ReplicaSetState(set_id="s", members=(1, 2, 3), min_in_sync=2, epoch=1, leader=1, in_sync={1: "a"})
        self.core = self.replica.leader = Leader(1, "a", log, state, 1, 1, 0, lag_ms=1000)
        self.core.is_ready = True
        self.acknowledger = SendAcknowledger(store, self.replica, policy, timeout_ms=TIMEOUT_MS)

    def follow(self, member: int, safe_end: int, fetched_ms: int = 0) -> None:
        self.core.progress[member] = FollowerProgress("x", safe_end, safe_end, fetched_ms, 0, 0, safe_end)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LogStore]:
    opened = await asyncio.to_thread(LogStore, tmp_path, small_settings())
    yield opened
    await opened.close()


async def test_quorum_waits_for_the_high_watermark_in_the_order_of_offsets(store: LogStore) -> None:
    it = Leadership(store, "quorum")
    it.follow(2, SENT_END)
    first = it.acknowledger.wait(500, 0)
    it.acknowledger.close_group()
    second = it.acknowledger.wait(SENT_END, 0)
    it.replica.log.high_watermark = 500
    it.acknowledger.advance(1)
    assert (first.done(), second.done()) == (True, False)
    it.replica.log.high_watermark = SENT_END
    it.acknowledger.advance(2)
    await second
    assert it.acknowledger.wait(SENT_END, 3).done(), "it is committed already"


async def test_sends_of_one_iteration_wait_together_for_the_last_of_them(store: LogStore) -> None:
    it = Leadership(store, "quorum")
    it.follow(2, SENT_END)
    first, second = it.acknowledger.wait(500, 0), it.acknowledger.wait(SENT_END, 0)
    assert first is second
    it.replica.log.high_watermark = 500
    it.acknowledger.advance(1)
    assert not first.done()
    it.replica.log.high_watermark = SENT_END
    it.acknowledger.advance(2)
    await first


async def test_sends_after_the_end_of_a_leadership_do_not_join_those_before(store: LogStore) -> None:
    it = Leadership(store, "quorum")
    waiting = it.acknowledger.wait(500, 0)
    it.acknowledger.fail("epoch 2 has begun")
    assert it.acknowledger.wait(SENT_END, 1) is not waiting
    with pytest.raises(NotLeader):
        await waiting


async def test_sync_waits_for_the_best_follower_and_for_the_leader_itself(store: LogStore) -> None:
    it = Leadership(store, "sync")
    it.follow(2, 10)
    it.follow(3, SENT_END)
    assert it.acknowledger.wait(SENT_END, 0).done()
    it.replica.log.safe_end = 10
    waiting = it.acknowledger.wait(SENT_END, 0)
    it.acknowledger.advance(1)
    assert not waiting.done(), "the leader's disk is not ready"
    it.replica.log.safe_end = SENT_END
    it.acknowledger.advance(2)
    await waiting


@pytest.mark.parametrize(("safe_end", "fetched_ms"), [(None, 0), (SENT_END, -LIVE_MS - 1), (-BEHIND_BYTES_MAX, 0)])
async def test_sync_says_that_no_follower_is_there_or_near(
    store: LogStore, safe_end: int | None, fetched_ms: int
) -> None:
    it = Leadership(store, "sync")
    if safe_end is not None:
        it.follow(2, safe_end, fetched_ms)
    with pytest.raises(NoFollower):
        await it.acknowledger.wait(SENT_END, 0)


@pytest.mark.parametrize("policy", ["quorum", "sync"])
async def test_a_wait_ends_in_time_and_says_which_disk_is_late(store: LogStore, policy: ReplicationPolicy) -> None:
    it = Leadership(store, policy)
    it.follow(2, 10, TIMEOUT_MS)
    waiting = it.acknowledger.wait(SENT_END, 0)
    it.acknowledger.advance(TIMEOUT_MS - 1)
    assert not waiting.done()
    it.acknowledger.advance(TIMEOUT_MS)
    with pytest.raises(ReplicationTimeout, match="2500 ms"):
        await waiting
    it.replica.log.safe_end = 10
    it.follow(2, SENT_END, 2 * TIMEOUT_MS)
    waiting = it.acknowledger.wait(SENT_END, TIMEOUT_MS)
    it.acknowledger.advance(2 * TIMEOUT_MS)
    with pytest.raises(FlushTimeout):
        await waiting


async def test_waits_fail_when_leadership_is_lost_whatever_is_committed_later(store: LogStore) -> None:
    it = Leadership(store, "quorum")
    waiting = it.acknowledger.wait(SENT_END, 0)
    it.acknowledger.fail("epoch 2 has begun")
    it.replica.log.high_watermark = SENT_END
    it.acknowledger.advance(1)
    with pytest.raises(NotLeader, match=r"epoch 2 has begun.*unknown"):
        await waiting
    it.replica.leader = None
    with pytest.raises(NotLeader):
        await it.acknowledger.wait(SENT_END, 2)

"""Every kind of message across fail-overs: replicas as processes, policy `quorum`, leaders killed under load.

All loads run on one replica set at the same time (see `failover_loads`); each test checks one of them. The short form
kills one leader, the long form thirty.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.fault.failover_loads import (
    PATIENCE_S,
    TOPICS,
    DelayedLoad,
    Load,
    OrderedLoad,
    PoppedLoad,
    PushedLoad,
    TransactionLoad,
    now_ms,
)
from tests.support.etcd import etcd_cluster
from tests.support.replica_processes import ReplicaSetProcesses, replica_set_processes
from tests.support.wait import eventually

IS_SMOKE = os.environ.get("SPARROW_SCALE", "smoke") == "smoke"
KILLS = 1 if IS_SMOKE else 30
LAG_S = 5
SETTINGS = {
    # Half messages are checked back soon, and never given up.
    "broker__transaction_timeout_ms": 500,
    "broker__transaction_check_interval_ms": 500,
    "broker__transaction_scan_ms": 100,
    "broker__transaction_checks_max": 10_000,
    # A busy machine must not depose leaders. One that is killed is noticed at once: its port refuses connections.
    "replication__lease_s": 10,
    "replication__lag_ms": 1000 * LAG_S,
}
LOST_ACKNOWLEDGEMENT_S = LAG_S + 1
"""An acknowledgement of a pop is not awaited from followers, which may be `lag_ms` behind."""
REPEATED_MS = 10_000
"""Delayed messages may be delivered twice if they were due so long before a kill, or until the next leader serves."""

pytestmark = [
    pytest.mark.xdist_group("failover kinds"),  # the set is run once, for all tests
    pytest.mark.timeout(600 if IS_SMOKE else 3 * 3600),
]


@dataclass
class Failovers:
    """What the clients of a replica set have seen, and when its leaders were killed."""

    rng: random.Random
    ordered: OrderedLoad = field(default_factory=OrderedLoad)
    transactions: TransactionLoad = field(default_factory=TransactionLoad)
    popped: PoppedLoad = field(default_factory=PoppedLoad)
    pushed: PushedLoad = field(default_factory=PushedLoad)
    delayed: DelayedLoad = field(init=False)
    killed_s: list[float] = field(default_factory=list)
    """By a monotonic clock."""
    outages_ms: list[tuple[int, int]] = field(default_factory=list)
    """From each kill until all loads went on, by the wall clock."""
    pauses_s: list[tuple[float, float]] = field(default_factory=list)
    """For each kill: the longest pause of sends, and of received messages."""

    def __post_init__(self) -> None:
        self.delayed = DelayedLoad(self.rng)

    @property
    def loads(self) -> list[Load]:
        return [self.ordered, self.transactions, self.popped, self.pushed, self.delayed]

    async def go_on(self) -> None:
        """Wait until every load has been acknowledged some more."""
        targets = [(load, load.acknowledged + 20) for load in self.loads]
        await eventually(lambda: all(load.acknowledged >= target for load, target in targets), within_s=PATIENCE_S)

    async def kill_leader(self, processes: ReplicaSetProcesses) -> None:
        leader = await processes.leader()
        await asyncio.sleep(self.rng.uniform(0, 0.5))  # any moment will do
        begun_s, begun_ms = time.monotonic(), now_ms()
        await leader.end()
        self.killed_s.append(begun_s)
        await processes.leader(but=leader)
        self.transactions.may_decide = True
        await self.go_on()
        self.outages_ms.append((begun_ms, now_ms()))
        self.pauses_s.append(self.pushed.longest_pauses_s(begun_s, time.monotonic()))
        leader.start()

    async def run(self, folder: Path) -> None:
        with etcd_cluster() as etcd:
            async with replica_set_processes(etcd, folder, "set-kinds", **SETTINGS) as processes:
                await processes.create_topics(TOPICS)
                try:
                    await asyncio.gather(*(load.start(processes.name_servers) for load in self.loads))
                    await self.go_on()
                    for number in range(KILLS):
                        if number:
                            await processes.wait_in_sync()
                        await self.kill_leader(processes)
                    await asyncio.gather(*(load.settle() for load in self.loads))
                finally:
                    await asyncio.gather(*(load.close() for load in self.loads), return_exceptions=True)


@pytest.fixture(scope="module")
def failovers(tmp_path_factory: pytest.TempPathFactory) -> Failovers:
    """Run all loads once, and return what they saw."""
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SPARROW_SEED={seed}")
    found = Failovers(random.Random(seed))
    asyncio.run(found.run(tmp_path_factory.mktemp("failovers")))
    return found


@pytest.mark.thorough
def test_messages_of_a_key_stay_in_order_and_their_locks_move_to_the_new_leader(failovers: Failovers) -> None:
    history = failovers.ordered.history
    assert not history.too_early, history.too_early[:10]
    assert all(len(queues) == 1 for queues in history.queues.values()), history.queues
    assert sum(len(readers) - 1 for readers in history.readers.values()) > 0, "no queue moved to another member"
    print(f"{failovers.ordered.acknowledged:,} in order; {history.repeats:,} came again")


@pytest.mark.thorough
def test_delayed_messages_are_neither_lost_nor_early_and_repeats_are_few(failovers: Failovers) -> None:
    load = failovers.delayed
    early = [(body, at_ms) for body, at_ms in load.delivered if at_ms < load.due_ms.get(body, 0)]
    assert not early, early[:10]
    counts = Counter(body for body, _ in load.delivered)
    assert load.due_ms.keys() <= counts.keys()
    repeated = [body for body, count in counts.items() if count > 1 and body in load.due_ms]
    for body in repeated:
        due_ms = load.due_ms[body]
        near = [begin for begin, end in failovers.outages_ms if begin - REPEATED_MS <= due_ms <= end + REPEATED_MS]
        assert near, f"{body} came {counts[body]} times, and was due at {due_ms}; outages: {failovers.outages_ms}"
    print(f"{len(load.due_ms):,} delivered; {len(repeated):,} of them more than once")


def test_transactions_end_as_their_producer_says_whichever_replica_asks(failovers: Failovers) -> None:
    load = failovers.transactions
    assert load.committed <= load.delivered.keys()
    rolled_back = {body for body in load.delivered if not body.startswith("commit")}
    assert not rolled_back, f"rolled back, and delivered: {sorted(rolled_back)[:10]}"
    again = sum(count - 1 for count in load.delivered.values())
    print(f"{len(load.begun):,} half messages, {load.checks.total():,} check-backs, {again:,} delivered again")


def test_popped_messages_come_again_unless_they_are_acknowledged(failovers: Failovers) -> None:
    load = failovers.popped
    assert load.sent <= load.acknowledged_s.keys()
    for body, acknowledged_s in load.seen_after:
        near = [kill for kill in failovers.killed_s if 0 <= kill - acknowledged_s <= LOST_ACKNOWLEDGEMENT_S]
        assert near, f"{body} came again although it was acknowledged long before a leader was killed"
    forgotten = [body for body in load.sent if int(body.split()[1]) % load.FORGOTTEN == 0]
    assert all(load.seen[body] > 1 for body in forgotten), "what nobody has acknowledged comes again"
    again = sum(count - 1 for count in load.seen.values())
    print(f"{len(load.sent):,} popped; {again:,} came again, {len(load.seen_after):,} of them acknowledged before")


def test_idempotent_sends_are_stored_once(failovers: Failovers) -> None:
    stored = failovers.popped.stored
    assert failovers.popped.sent <= stored.keys()
    twice = {body for body, count in stored.items() if count > 1}
    assert not twice, twice


def test_a_push_consumer_finds_the_new_leader_as_soon_as_producers_do(failovers: Failovers) -> None:
    assert failovers.pushed.sent_s.keys() <= failovers.pushed.received_s.keys()
    for sending_s, receiving_s in failovers.pauses_s:
        print(f"sends paused for {sending_s:.2f} s, received messages for {receiving_s:.2f} s")
        assert receiving_s <= sending_s + 5, "a consumer must not wait for the next poll of routes, every 30 s"

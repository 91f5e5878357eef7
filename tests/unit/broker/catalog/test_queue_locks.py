"""Queue locks: which client may consume a queue in order."""

import pytest

from sparrow.broker.catalog.queue_locks import QueueLocks
from sparrow.wire.bodies import QueueRef

Q0, Q1, Q2 = (QueueRef("T", "b", number) for number in range(3))


@pytest.fixture
def locks() -> QueueLocks:
    return QueueLocks(60_000)


def test_a_client_locks_the_queues_that_no_other_client_holds(locks):
    assert locks.lock("g", "a", [Q0, Q1], 0) == [Q0, Q1]
    assert locks.lock("g", "b", [Q1, Q2], 10) == [Q2]
    assert [locks.holder("g", queue, 10) for queue in (Q0, Q1, Q2)] == ["a", "a", "b"]


def test_locks_of_different_groups_are_independent(locks):
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("h", "b", [Q0], 0) == [Q0]


def test_a_lock_that_is_not_renewed_passes_to_another_client(locks):
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("g", "b", [Q0], 60_000) == []
    assert locks.lock("g", "b", [Q0], 60_001) == [Q0]
    assert locks.holder("g", Q0, 60_001) == "b"


def test_renewing_keeps_a_lock(locks):
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("g", "a", [Q0], 50_000) == [Q0]
    assert locks.lock("g", "b", [Q0], 100_000) == []


def test_only_its_holder_unlocks_a_queue(locks):
    locks.lock("g", "a", [Q0], 0)
    locks.unlock("g", "b", [Q0, Q1])
    assert locks.holder("g", Q0, 1) == "a"
    locks.unlock("g", "a", [Q0])
    assert locks.holder("g", Q0, 1) is None
    assert locks.lock("g", "b", [Q0], 1) == [Q0]


def test_an_expired_lock_has_no_holder(locks):
    locks.lock("g", "a", [Q0], 0)
    assert locks.holder("g", Q0, 60_001) is None


def test_the_next_lock_request_drops_expired_locks_of_all_groups(locks):
    for number in range(1000):
        locks.lock(f"g{number}", "a", [Q0, Q1], number)
    locks.lock("g0", "a", [Q0], 40_000)
    locks.lock("other", "b", [Q2], 61_000)
    assert len(locks) == 2
    assert locks.holder("g0", Q0, 61_000) == "a"


def test_past_the_limit_only_held_locks_are_renewed():
    locks = QueueLocks(60_000, locks_max=2)
    assert locks.lock("g", "a", [Q0, Q1, Q2], 0) == [Q0, Q1]
    assert locks.lock("g", "a", [Q0, Q1, Q2], 1) == [Q0, Q1]

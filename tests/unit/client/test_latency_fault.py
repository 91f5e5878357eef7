"""Brokers that rest, and who is chosen meanwhile."""

from tests.support.cases import each_case

from sparrow.client.latency_fault import LatencyFaultTolerance
from sparrow.wire.bodies import QueueRef

QUEUES = [QueueRef("T", name, number) for name in "abc" for number in range(2)]
NOW = 1_700_000_000_000


@each_case(
    ("latency_ms", "rest_ms"),
    [
        (0, 0),
        (50, 0),
        (100, 0),
        (549, 0),
        (549.9, 0),
        (550, 2_000),
        (1_799, 2_000),
        (1_800, 5_000),
        (3_000, 6_000),
        (5_000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (600_000, 30_000),
    ],
)
def test_the_slower_the_answer_the_longer_the_rest(latency_ms, rest_ms):
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", latency_ms, NOW)
    assert latency_faults.is_usable("a", NOW + rest_ms)
    assert not rest_ms or not latency_faults.is_usable("a", NOW + rest_ms - 1)


def test_a_failure_earns_a_rest_however_quick_it_was():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", 1, NOW, failed=True)
    assert not latency_faults.is_usable("a", NOW + 29_999)
    assert latency_faults.is_usable("a", NOW + 30_000)


def test_a_quick_answer_ends_the_rest():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", 1, NOW, failed=True)
    latency_faults.record("a", 5, NOW + 1)
    assert latency_faults.is_usable("a", NOW + 1)


def test_a_broker_nobody_spoke_of_is_usable():
    assert LatencyFaultTolerance().is_usable("a", NOW)


def test_without_trouble_the_index_decides():
    latency_faults = LatencyFaultTolerance()
    assert [latency_faults.select(QUEUES, index, NOW) for index in range(8)] == [*QUEUES, *QUEUES[:2]]


def test_a_second_attempt_goes_to_another_broker():
    assert LatencyFaultTolerance().select(QUEUES, 2, NOW, "b") == QUEUES[4]


def test_a_resting_broker_is_passed_over_until_its_rest_is_over():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("b", 600, NOW)
    assert latency_faults.select(QUEUES, 2, NOW) == QUEUES[4]
    assert latency_faults.select(QUEUES, 2, NOW + 2_000) == QUEUES[2]


def test_the_last_broker_is_taken_again_when_all_others_rest():
    latency_faults = LatencyFaultTolerance()
    for name in "ac":
        latency_faults.record(name, 1, NOW, failed=True)
    assert latency_faults.select(QUEUES, 0, NOW, "b") == QUEUES[2]


def test_when_all_rest_the_one_that_is_usable_soonest_is_chosen():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", 1, NOW, failed=True)
    latency_faults.record("b", 6_000, NOW)
    latency_faults.record("c", 2_000, NOW)
    assert latency_faults.select(QUEUES, 0, NOW) == QUEUES[4]
    assert latency_faults.select(QUEUES, 5, NOW) == QUEUES[5]


def test_of_equally_bad_ones_the_last_is_not_chosen_again():
    latency_faults = LatencyFaultTolerance()
    for name in "abc":
        latency_faults.record(name, 1, NOW, failed=True)
    assert latency_faults.select(QUEUES, 0, NOW, "a") == QUEUES[2]


def test_a_single_broker_is_chosen_whatever_happened():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", 1, NOW, failed=True)
    assert latency_faults.select(QUEUES[:2], 1, NOW, "a") == QUEUES[1]


def test_a_full_table_forgets_the_rest_that_is_over_first():
    latency_faults = LatencyFaultTolerance(brokers_max=2)
    latency_faults.record("a", 600, NOW)
    latency_faults.record("b", 1, NOW, failed=True)
    latency_faults.record("c", 1, NOW + 2_000, failed=True)  # a's rest is over
    assert not latency_faults.is_usable("b", NOW + 2_000)
    latency_faults.record("d", 1, NOW + 3_000, failed=True)  # b's is over first
    assert latency_faults.is_usable("b", NOW + 3_000)
    assert not latency_faults.is_usable("c", NOW + 3_000)
    assert not latency_faults.is_usable("d", NOW + 3_000)


def test_a_full_table_takes_news_of_a_broker_it_knows():
    latency_faults = LatencyFaultTolerance(brokers_max=2)
    for name in "abb":
        latency_faults.record(name, 1, NOW, failed=True)
    assert not latency_faults.is_usable("a", NOW)
    assert not latency_faults.is_usable("b", NOW)

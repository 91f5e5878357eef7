"""Brokers that are avoided after slow or failed sends, and the queues that are selected meanwhile."""

from tests.support.cases import each_case

from sparrow.client.produce.latency_fault import LatencyFaultTolerance
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
def test_a_slower_response_makes_a_broker_unavailable_for_longer(latency_ms, rest_ms):
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", latency_ms, NOW)
    assert latency_faults.is_usable("a", NOW + rest_ms)
    assert not rest_ms or not latency_faults.is_usable("a", NOW + rest_ms - 1)


def test_a_failure_makes_a_broker_unavailable_whatever_its_latency():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", 1, NOW, failed=True)
    assert not latency_faults.is_usable("a", NOW + 29_999)
    assert latency_faults.is_usable("a", NOW + 30_000)


def test_a_fast_response_makes_a_broker_usable_again():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", 1, NOW, failed=True)
    latency_faults.record("a", 5, NOW + 1)
    assert latency_faults.is_usable("a", NOW + 1)


def test_an_unknown_broker_is_usable():
    assert LatencyFaultTolerance().is_usable("a", NOW)


def test_without_faults_the_index_selects_the_queue():
    latency_faults = LatencyFaultTolerance()
    assert [latency_faults.select(QUEUES, index, NOW) for index in range(8)] == [*QUEUES, *QUEUES[:2]]


def test_a_second_attempt_goes_to_another_broker():
    assert LatencyFaultTolerance().select(QUEUES, 2, NOW, "b") == QUEUES[4]


def test_an_unavailable_broker_is_skipped_until_its_time_is_over():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("b", 600, NOW)
    assert latency_faults.select(QUEUES, 2, NOW) == QUEUES[4]
    assert latency_faults.select(QUEUES, 2, NOW + 2_000) == QUEUES[2]


def test_the_last_broker_is_selected_again_when_all_others_are_unavailable():
    latency_faults = LatencyFaultTolerance()
    for name in "ac":
        latency_faults.record(name, 1, NOW, failed=True)
    assert latency_faults.select(QUEUES, 0, NOW, "b") == QUEUES[2]


def test_when_all_brokers_are_unavailable_the_first_to_be_usable_again_is_selected():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", 1, NOW, failed=True)
    latency_faults.record("b", 6_000, NOW)
    latency_faults.record("c", 2_000, NOW)
    assert latency_faults.select(QUEUES, 0, NOW) == QUEUES[4]
    assert latency_faults.select(QUEUES, 5, NOW) == QUEUES[5]


def test_among_equally_unavailable_brokers_the_last_is_not_selected_again():
    latency_faults = LatencyFaultTolerance()
    for name in "abc":
        latency_faults.record(name, 1, NOW, failed=True)
    assert latency_faults.select(QUEUES, 0, NOW, "a") == QUEUES[2]


def test_a_single_broker_is_always_selected():
    latency_faults = LatencyFaultTolerance()
    latency_faults.record("a", 1, NOW, failed=True)
    assert latency_faults.select(QUEUES[:2], 1, NOW, "a") == QUEUES[1]


def test_a_full_table_drops_the_broker_that_is_usable_first():
    latency_faults = LatencyFaultTolerance(brokers_max=2)
    latency_faults.record("a", 600, NOW)
    latency_faults.record("b", 1, NOW, failed=True)
    latency_faults.record("c", 1, NOW + 2_000, failed=True)  # a is usable again
    assert not latency_faults.is_usable("b", NOW + 2_000)
    latency_faults.record("d", 1, NOW + 3_000, failed=True)  # b is the first to be usable again
    assert latency_faults.is_usable("b", NOW + 3_000)
    assert not latency_faults.is_usable("c", NOW + 3_000)
    assert not latency_faults.is_usable("d", NOW + 3_000)


def test_a_full_table_updates_a_known_broker():
    latency_faults = LatencyFaultTolerance(brokers_max=2)
    for name in "abb":
        latency_faults.record(name, 1, NOW, failed=True)
    assert not latency_faults.is_usable("a", NOW)
    assert not latency_faults.is_usable("b", NOW)

"""Percentiles of sends, from histograms that brokers count from their start."""

import math

import pytest

from sparrow.console.latency import LatencyWindow
from sparrow.operations.clusters import BrokerState


def broker(address: str = "a:1", **counts: int) -> BrokerState:
    """A broker with sends of up to 1 ms, 10 ms, 100 ms, and more."""
    buckets = {1.0: counts.get("fast", 0), 10.0: counts.get("slow", 0), 100.0: 0, math.inf: counts.get("endless", 0)}
    return BrokerState(cluster="c", name="b", broker_id=0, address=address, is_reachable=True, send_latency=buckets)


def test_only_what_was_counted_since_the_sample_before_matters() -> None:
    window = LatencyWindow()
    window.add([broker(fast=1_000_000)])
    assert window.percentile(0.5) is None
    window.add([broker(fast=1_000_000, slow=100)])
    assert window.percentile(0.5) == pytest.approx(5.5)
    assert window.percentile(0.99) == pytest.approx(9.91)


def test_brokers_are_added_up_and_old_samples_leave() -> None:
    window = LatencyWindow(samples=2)
    window.add([broker(), broker("a:2")])
    window.add([broker(fast=50), broker("a:2", slow=50)])
    assert window.percentile(0.5) == pytest.approx(1)
    window.add([broker(fast=50), broker("a:2", slow=50)])
    window.add([broker(fast=50), broker("a:2", slow=50)])
    assert window.percentile(0.5) is None


def test_a_broker_that_started_again_counts_from_zero() -> None:
    window = LatencyWindow()
    window.add([broker(fast=70)])
    window.add([broker(fast=10)])
    assert window.percentile(1) == pytest.approx(1)


def test_a_time_beyond_the_last_bound_is_at_least_that_bound() -> None:
    window = LatencyWindow()
    window.add([broker()])
    window.add([broker(endless=1)])
    assert window.percentile(0.5) == 100

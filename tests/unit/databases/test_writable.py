"""Which host may be written, and the order in which hosts are tried."""

import pytest

from sparrow.databases import writable
from sparrow.databases.url import DatabaseHost
from sparrow.databases.writable import HostOrder, is_galera, refusal

A, B, C = (DatabaseHost(name, 3306) for name in "abc")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("read_only", "OFF"), ("wsrep_on", "OFF"), ("wsrep_ready", "OFF")], None),
        ([("read_only", "ON"), ("super_read_only", "OFF")], "is read-only"),
        ([("read_only", "OFF"), ("super_read_only", "ON")], "is read-only"),
        ([("read_only", "OFF"), ("wsrep_on", "ON"), ("wsrep_ready", "ON")], None),
        ([("read_only", "OFF"), ("wsrep_on", "ON"), ("wsrep_ready", "OFF")], "is not in sync with its cluster"),
    ],
)
def test_a_host_that_is_read_only_or_without_its_cluster_is_refused(rows, reason):
    assert refusal(rows) == reason


def test_a_node_of_galera_is_recognised_by_wsrep_on():
    assert is_galera([("wsrep_on", "ON")])
    assert not is_galera([("wsrep_on", "OFF"), ("wsrep_ready", "ON")])


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("sparrow.databases.writable.monotonic", lambda: now[0])
    return now


def test_a_host_that_failed_is_tried_last_for_some_seconds(clock):
    order = HostOrder([A, B, C])
    assert order.to_try() == [A, B, C]
    order.failed(A, "gone")
    assert order.to_try() == [B, C, A]
    clock[0] += writable.AVOID_S + 1
    assert order.to_try() == [A, B, C]


def test_a_process_on_another_host_tries_the_first_again_after_some_time(clock):
    order = HostOrder([A, B])
    assert not order.connected(A)
    clock[0] += 1_000
    assert not order.is_recheck_due()
    assert order.connected(B)
    assert not order.is_recheck_due()
    clock[0] += writable.RECHECK_S + 1
    assert order.is_recheck_due()
    assert order.connected(A)
    assert not order.is_recheck_due()


def test_the_error_says_what_is_wrong_with_each_host():
    order = HostOrder([A, B])
    order.failed(A, "connection refused")
    order.refused(B, "is read-only")
    assert str(order.no_host()) == "a:3306 failed: connection refused; b:3306 is read-only"

"""Findings of a client: when they are logged, when they are over, and what a program sees of them."""

import logging

import pytest

from sparrow.client.health import HealthMonitor, cause_of, nearest_topics
from sparrow.model.errors import ConnectionLost, RequestTimeout, UnknownTopic, WrongServer
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import RemoteRefused, RemoteUnavailable


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def monitor(clock, caplog):
    caplog.set_level(logging.INFO, "sparrow.client.health")
    return HealthMonitor("10.0.0.1@7", clock)


def test_a_client_without_findings_is_ok(monitor):
    health = monitor.current()
    assert health.ok
    assert str(health) == "ok"


def test_a_finding_is_logged_at_growing_intervals_up_to_ten_minutes(monitor, clock, caplog):
    begin, logged = clock.now_s, []
    while clock.now_s < begin + 3600:
        before = len(caplog.records)
        monitor.report("unreachable", "broker b cannot be reached", address="b:1")
        if len(caplog.records) > before:
            logged.append(clock.now_s - begin)
        clock.now_s += 1
    assert logged == [0, 60, 180, 420, 900, 1500, 2100, 2700, 3300]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_each_cause_and_subject_is_logged_once(monitor, caplog):
    for _ in range(3):
        monitor.report("unreachable", "one", address="a:1")
        monitor.report("unreachable", "two", address="b:1")
        monitor.report("no answer", "three", address="a:1")
    assert [record.args["text"] for record in caplog.records] == ["one", "two", "three"]
    assert [finding.text for finding in monitor.current().findings] == ["one", "two", "three"]


def test_a_finding_that_is_over_is_logged_once_at_info_and_can_begin_again(monitor, clock, caplog):
    monitor.report("unreachable", "broker b cannot be reached", address="b:1")
    clock.now_s += 5
    monitor.clear("b:1", "no answer")
    assert not monitor.current().ok
    for _ in range(2):
        monitor.clear("b:1", "unreachable")
    assert monitor.current().ok
    monitor.report("unreachable", "broker b cannot be reached", address="b:1")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "client 10.0.0.1@7: broker b cannot be reached"),
        ("INFO", "client 10.0.0.1@7: over after 5 s: broker b cannot be reached"),
        ("WARNING", "client 10.0.0.1@7: broker b cannot be reached"),
    ]


def test_a_finding_lasts_until_every_affected_queue_works_again(monitor, caplog):
    for queue in range(3):
        monitor.report("not permitted", "no pull", topic="T", part=queue)
    monitor.clear("T", part=0)
    monitor.clear("T", part=1)
    assert [finding.topic for finding in monitor.current().findings] == ["T"]
    monitor.clear("T", part=2)
    assert monitor.current().ok
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_addresses_that_no_longer_matter_are_forgotten(monitor):
    monitor.report("unreachable", "gone", address="a:1")
    monitor.report("unreachable", "needed", address="b:1")
    monitor.report("unknown topic", "a topic", topic="T")
    monitor.keep_addresses({"b:1"})
    assert [finding.text for finding in monitor.current().findings] == ["needed", "a topic"]


def test_requests_do_not_repeat_what_the_session_reports(monitor):
    monitor.report_request(ConnectionLost("b:1", "refused"), "no pull", topic="T", part=0)
    assert monitor.current().ok
    monitor.report_request(RequestTimeout("b:1", "PULL", 5), "no pull", topic="T", part=0)
    [finding] = monitor.current().findings
    assert finding.cause == "no answer"
    assert finding.text == (
        "no pull: b:1 did not respond to PULL within 5 ms; check that a name server or broker listens there and is not "
        "overloaded, or allow more time"
    )
    assert finding.since.utcoffset() is not None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionLost("b:1", "x"), "unreachable"),
        (RequestTimeout("b:1", "x", 1), "no answer"),
        (WrongServer("b:1", True), "wrong server"),
        (UnknownTopic("T"), "unknown topic"),
        (RemoteRefused(ResponseCode.NO_PERMISSION, "x"), "not permitted"),
        (RemoteRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "x"), "refused filter"),
        (RemoteUnavailable(ResponseCode.SYSTEM_ERROR, "x"), "failed request"),
    ],
)
def test_errors_have_causes(error, cause):
    assert cause_of(error) == cause


def test_the_nearest_topics_are_named_without_internal_ones():
    known = ["orders", "deliveries", "%RETRY%ordres", "rmq_sys_ordres", "TBW102", "invoices"]
    assert nearest_topics("ordres", known) == "did you mean 'orders'?"
    assert nearest_topics("ORDERS", known) == "did you mean 'orders'?"
    assert nearest_topics("payments", known) == ""

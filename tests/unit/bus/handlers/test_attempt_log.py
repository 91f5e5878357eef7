"""Log lines about failed attempts: each one has its line, except while a database is away."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest
from sqlalchemy.exc import OperationalError

from sparrow.bus.handlers.attempt_log import AttemptLog
from sparrow.bus.sql.claims import Claim, ClaimedEvent

WORK = ClaimedEvent(Claim(7, 1, 0, None, "here"), "order.created", "{}", datetime.now(UTC), 0, 0)
AWAY = OperationalError("INSERT", None, Exception("connection refused"))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attempt_log(clock: Clock, caplog: pytest.LogCaptureFixture) -> AttemptLog:
    caplog.set_level(logging.INFO)
    return AttemptLog("billing.v1", clock)


def test_errors_of_a_handler_have_a_line_and_a_traceback_each(
    attempt_log: AttemptLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        attempt_log.failed(WORK, "charge", ValueError("no such account"), "it is Failed")
        attempt_log.not_stored("charge", FileNotFoundError(2, "no such file", "a.db"))
    assert len(caplog.records) == 6
    assert all(each.exc_info for each in caplog.records)


@pytest.mark.parametrize("error", [AWAY, ConnectionRefusedError(111, "refused")])
def test_one_line_a_minute_and_handler_while_a_database_is_away(
    attempt_log: AttemptLog, clock: Clock, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    for _ in range(50):
        attempt_log.failed(WORK, "charge", error, "later")
        attempt_log.not_stored("charge", error)
        attempt_log.not_stored("mail", error)
        attempt_log.succeeded("mail")  # some of its messages do not need that database
    assert [each.exc_info for each in caplog.records] == [None, None]
    clock.now_s = 61.0
    attempt_log.not_stored("charge", error)
    assert caplog.records[2].getMessage().endswith("its lease ends (99 more attempts failed since the last line)")


def test_success_after_the_last_line_begins_anew(
    attempt_log: AttemptLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    attempt_log.succeeded("charge")
    attempt_log.not_stored("charge", AWAY)
    attempt_log.not_stored("charge", AWAY)
    attempt_log.succeeded("charge")
    assert len(caplog.records) == 1
    clock.now_s = 61.0
    attempt_log.succeeded("charge")
    said = caplog.records[1]
    assert said.levelno == logging.INFO
    assert said.getMessage() == (
        "handler charge of group billing.v1 succeeds again; 1 failed attempts have no line here"
    )
    attempt_log.not_stored("charge", AWAY)
    assert len(caplog.records) == 3

"""The log of findings: when they begin, at growing intervals, and when they are over."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from sparrow.bus.telemetry.finding_log import FindingLog, KeyedFinding
from sparrow.model.errors import ConnectionLost
from sparrow.model.health import Finding

SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def found(text: str = "nobody listens on port 1", error: BaseException | None = None) -> list[KeyedFinding]:
    return [KeyedFinding("broker", Finding("broker", text, SINCE), error)]


def test_finding_is_logged_after_1_2_4_8_and_then_every_10_minutes(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    log = FindingLog(lambda: now_s)
    minutes = []
    for second in range(45 * 60):
        now_s = float(second)
        log.update(found(f"attempt {second}"))
        if caplog.records:
            minutes.append(second / 60)
            caplog.clear()
    assert minutes == [0, 1, 3, 7, 15, 25, 35]


def test_sentence_holds_the_cause_and_the_text_and_later_the_time(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    log = FindingLog(lambda: now_s)
    log.update(found())
    now_s = 61.0
    log.update(found())
    with caplog.at_level(logging.INFO):
        log.update([])
        log.update([])
    assert caplog.messages == [
        "broker: nobody listens on port 1",
        "broker: nobody listens on port 1 (since 2026-01-02 03:04:05 UTC)",
        "broker: over, it began at 2026-01-02 03:04:05 UTC",
    ]
    assert caplog.records[0].args == {"cause": "broker", "text": "nobody listens on port 1"}


def test_traceback_is_logged_once_and_not_for_an_unreachable_server(caplog: pytest.LogCaptureFixture) -> None:
    log = FindingLog(lambda: 0.0)
    broken = KeyedFinding("task", Finding("task", "a loop fails", SINCE), KeyError("x"))
    for _ in range(2):
        log.update([*found(error=ConnectionLost("host:1", "refused")), broken])
    assert [each.exc_info is not None for each in caplog.records] == [False, True]

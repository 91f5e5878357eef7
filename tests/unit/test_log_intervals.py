"""A finding that repeats is logged at once, then at growing intervals, and its end once."""

from sparrow.log_intervals import LogIntervals


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def logged_at(findings: LogIntervals, clock: Clock, minutes: range, cause: str) -> list[int]:
    times = []
    for minute in minutes:
        clock.now_s = 60.0 * minute
        if findings.is_due("the database", cause):
            times.append(minute)
    return times


def test_a_lasting_finding_is_logged_after_1_2_4_8_and_then_every_10_minutes():
    clock = Clock()
    assert logged_at(LogIntervals(clock), clock, range(50), "unreachable") == [0, 1, 3, 7, 15, 25, 35, 45]


def test_another_cause_is_logged_at_once():
    clock = Clock()
    findings = LogIntervals(clock)
    assert logged_at(findings, clock, range(3), "unreachable") == [0, 1]
    assert logged_at(findings, clock, range(2, 5), "access denied") == [2, 3]


def test_subjects_are_independent_and_the_end_is_reported_once():
    findings = LogIntervals(Clock())
    assert findings.is_due("one")
    assert findings.is_due("other")
    assert not findings.is_due("one")
    assert "one" in findings
    assert findings.end("one")
    assert "one" not in findings
    assert not findings.end("one")
    assert findings.is_due("one")
    assert not findings.is_due("other")

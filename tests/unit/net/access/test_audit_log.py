"""The audit log: every action once, refusals at growing intervals, and no way to fill it or the memory."""

import logging

import pytest

from sparrow.net.access import audit_log
from sparrow.net.access.audit_log import AccessRefused, AuditLog
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def audit(clock: Clock) -> AuditLog:
    return AuditLog({RequestCode.DELETE_TOPIC_IN_BROKER}, now_s=clock)


def pull(access_key: str = "shop") -> RemotingCommand:
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext={"AccessKey": access_key, "Signature": "forged", "topic": "t"})


def refusal(cause: audit_log.RefusalCause = "signature") -> AccessRefused:
    return AccessRefused("PULL_MESSAGE", "because", cause=cause)


def test_a_refusal_names_peer_access_key_request_and_reason(audit: AuditLog, caplog: pytest.LogCaptureFixture) -> None:
    audit.refused(pull(), "10.0.0.1:999", refusal("permission"))
    (line,) = caplog.records
    assert (line.name, line.levelname) == ("sparrow.audit", "WARNING")
    assert line.getMessage() == (
        "PULL_MESSAGE of 10.0.0.1:999 with access key 'shop' is refused (permission): because"
        " (0 more of this cause since the last line)"
    )
    assert "forged" not in line.getMessage()


def test_refusals_of_one_cause_are_logged_at_growing_intervals_and_counted(
    audit: AuditLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(1000):
        clock.now_s = second
        audit.refused(pull(f"guess {second}"), f"10.0.0.1:{second}", refusal())
    assert [line.args["more"] for line in caplog.records] == [0, 59, 119, 239, 479]
    audit.refused(pull(), "10.0.0.2:1", refusal())
    audit.refused(pull(), "10.0.0.1:1", refusal("permission"))
    audit.refused(pull("other"), "10.0.0.1:1", refusal("permission"))
    audit.refused(pull("another"), "10.0.0.1:1", refusal("address"))
    audit.refused(pull("other"), "10.0.0.1:1", refusal("address"))
    assert len(caplog.records) == 10, "another address, another cause, another token that is proven"


def test_the_number_of_causes_is_limited(audit: AuditLog, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(audit_log, "CAUSES_MAX", 10)
    for number in range(100):
        audit.refused(pull(), f"10.0.0.{number}:1", refusal())
    assert len(caplog.records) == 11
    assert len(audit._unlogged) == 11


@pytest.mark.parametrize(("code", "result"), [(0, "done"), (16, "not done (code 16)")])
def test_an_action_is_logged_with_its_result_each_time(audit: AuditLog, caplog, code: int, result: str) -> None:
    caplog.set_level(logging.INFO, "sparrow.audit")
    for _ in range(3):
        audit.done(
            RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"AccessKey": "ops", "topic": "a\nb" * 100}),
            "10.0.0.1:999",
            code,
        )
    texts = {line.getMessage() for line in caplog.records}
    assert len(caplog.records) == 3
    (text,) = texts
    assert text.startswith(f"DELETE_TOPIC_IN_BROKER of 10.0.0.1:999 with access key 'ops' is {result}: topic 'a\\nb")
    assert "\n" not in text, "a name must not begin another line"
    assert len(text) < 400

"""The slave's side of an HA connection: reports, gaps, silence, and where a copy starts."""

import pytest

from sparrow.model.errors import ProtocolError, Refused
from sparrow.replication.rocketmq.ha_codec import LogBytes, encode_report, encode_transfer
from sparrow.replication.rocketmq.ha_session import REPORT_INTERVAL_S, SILENCE_S_MAX, HaSession, starting_point


def test_an_empty_log_reports_one_and_puts_the_missing_zero_byte_in_front() -> None:
    session = HaSession(0, 0.0)
    assert session.first_report == encode_report(1)
    assert session.take(encode_transfer(1, b"abc"), 0.0) == LogBytes(0, b"\0abc")
    assert session.take(encode_transfer(4, b"d"), 0.0) == LogBytes(4, b"d")


def test_only_what_is_durable_is_reported_and_never_less_than_before() -> None:
    session = HaSession(100, 0.0)
    assert session.first_report == encode_report(100)
    session.take(encode_transfer(100, b"x" * 50), 0.1)
    assert session.report(100, 0.2) is None
    assert session.report(150, 0.3) == encode_report(150)
    assert session.report(150, 0.4) is None
    assert session.report(120, 0.3 + REPORT_INTERVAL_S) == encode_report(150)


def test_an_empty_log_never_reports_zero() -> None:
    assert HaSession(0, 0.0).report(0, REPORT_INTERVAL_S) == encode_report(1)


@pytest.mark.parametrize("sent", [encode_transfer(99, b"x"), encode_transfer(101, b"x"), encode_transfer(99, b"")])
def test_a_transfer_or_heartbeat_that_does_not_continue_our_log_is_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolError, match="continues at"):
        HaSession(100, 0.0).take(sent, 0.0)


def test_a_session_with_heartbeats_only_is_idle() -> None:
    session = HaSession(100, 0.0)
    for _ in range(2):
        assert not session.is_idle
        assert session.take(encode_transfer(100, b""), 0.0) is None
    assert session.is_idle
    session.take(encode_transfer(100, b"x"), 0.0)
    assert not session.is_idle


def test_a_silent_master_is_lost() -> None:
    session = HaSession(100, 0.0)
    session.take(encode_transfer(100, b""), 1.0)
    assert not session.is_lost(1.0 + SILENCE_S_MAX)
    assert session.is_lost(1.1 + SILENCE_S_MAX)


def test_a_copy_continues_at_its_end_or_starts_again_where_the_master_begins() -> None:
    assert starting_point(0, master_first=0, master_end=50) == 0
    assert starting_point(50, master_first=0, master_end=50) == 50
    assert starting_point(50, master_first=64, master_end=200) == 64
    with pytest.raises(Refused, match="another one"):
        starting_point(51, master_first=0, master_end=50)


def test_the_last_bytes_of_our_log_are_compared_and_not_taken_twice() -> None:
    session = HaSession(100, 0.0, tail=b"abcd")
    assert session.first_report == encode_report(96)
    assert session.take(encode_transfer(96, b"ab"), 0.0) is None
    assert session.take(encode_transfer(98, b"cdef"), 0.0) == LogBytes(100, b"ef")
    assert session.take(encode_transfer(102, b"g"), 0.0) == LogBytes(102, b"g")


@pytest.mark.parametrize("sent", [b"abcX", b"X", b"abXdef"])
def test_a_master_with_another_log_is_refused(sent: bytes) -> None:
    with pytest.raises(Refused, match="it is another master"):
        HaSession(100, 0.0, tail=b"abcd").take(encode_transfer(96, sent), 0.0)

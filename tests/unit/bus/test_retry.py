"""Retry policies: whether a failed attempt is repeated, and after which delay."""

import pytest

from sparrow.bus.errors import NoSubscriber, Reject, RetryAfter, Undecodable
from sparrow.bus.retry import CAP_RETRY, NO_RETRY, NextAttempt, Retry, RetryDelays, exponential, fixed, quartic

FAULT = ValueError("no")


def test_by_default_the_fifteenth_failure_is_the_last():
    assert isinstance(Retry().after(FAULT, 14, 0.5), NextAttempt)
    assert Retry().after(FAULT, 15, 0.5) is NO_RETRY


def test_the_default_delay_counts_from_the_time_the_message_was_added():
    assert Retry().after(FAULT, 1, 0.0) == NextAttempt("added", 15)
    assert (quartic(1, 0.999), quartic(2, 0.0), quartic(14, 0.0)) == (44, 16, 28_576)


@pytest.mark.parametrize("error", [Reject("bad"), Undecodable("bad"), NoSubscriber("a", "g")])
def test_permanent_errors_are_not_retried(error):
    assert Retry(max=5).after(error, 1, 0.0) is NO_RETRY


def test_a_handler_chooses_the_delay_but_gets_no_more_attempts():
    assert Retry(max=3).after(RetryAfter(7), 2, 0.0) == NextAttempt("now", 7)
    assert Retry(max=3).after(RetryAfter(7), 3, 0.0) is NO_RETRY


def test_retry_on_and_give_up_on_select_errors_by_type():
    retry = Retry(retry_on=(OSError,), give_up_on=(FileNotFoundError,), backoff=fixed(1))
    assert retry.after(ConnectionError(), 1, 0.0) == NextAttempt("now", 1)
    assert retry.after(FileNotFoundError(), 1, 0.0) is NO_RETRY
    assert retry.after(FAULT, 1, 0.0) is NO_RETRY


def test_the_last_delay_of_a_table_repeats():
    assert [RetryDelays((1, 5, 30)).after(retry) for retry in (1, 2, 3, 4, 100)] == [1, 5, 30, 30, 30]


def test_exponential_delays_grow_to_their_limit():
    assert exponential(1, factor=3, max_s=20).seconds == (1, 3, 9, 20)
    assert exponential(5, factor=1).seconds == (5,)


def test_the_cap_profile_retries_twice_at_once_and_then_every_minute():
    answers = [CAP_RETRY.after(FAULT, failures, 0.0) for failures in (1, 2, 3, 49, 50)]
    assert answers == [
        NextAttempt("now", 0.0),
        NextAttempt("now", 0.0),
        NextAttempt("now", 60),
        NextAttempt("now", 60),
        NO_RETRY,
    ]


def test_a_maximum_of_zero_attempts_is_refused():
    with pytest.raises(ValueError, match="no attempt"):
        Retry(max=0)

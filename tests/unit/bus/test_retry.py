"""When a failed attempt is made again, how much later, and when never."""

import pytest

from sparrow.bus.errors import NoSubscriber, Reject, RetryAfter, Undecodable
from sparrow.bus.retry import CAP_RETRY, NO_RETRY, NextAttempt, Retry, RetryDelays, exponential, fixed, quartic

FAULT = ValueError("no")


def test_the_fifteenth_failure_is_the_last_by_default():
    assert isinstance(Retry().after(FAULT, 14, 0.5), NextAttempt)
    assert Retry().after(FAULT, 15, 0.5) is NO_RETRY


def test_the_first_formula_counts_from_when_the_message_was_added():
    assert Retry().after(FAULT, 1, 0.0) == NextAttempt("added", 15)
    assert (quartic(1, 0.999), quartic(2, 0.0), quartic(14, 0.0)) == (44, 16, 28_576)


@pytest.mark.parametrize("error", [Reject("bad"), Undecodable("bad"), NoSubscriber("a", "g")])
def test_what_cannot_get_better_is_not_tried_again(error):
    assert Retry(max=5).after(error, 1, 0.0) is NO_RETRY


def test_a_handler_chooses_its_pause_but_not_more_attempts():
    assert Retry(max=3).after(RetryAfter(7), 2, 0.0) == NextAttempt("now", 7)
    assert Retry(max=3).after(RetryAfter(7), 3, 0.0) is NO_RETRY


def test_errors_are_sorted_by_type():
    retry = Retry(retry_on=(OSError,), give_up_on=(FileNotFoundError,), backoff=fixed(1))
    assert retry.after(ConnectionError(), 1, 0.0) == NextAttempt("now", 1)
    assert retry.after(FileNotFoundError(), 1, 0.0) is NO_RETRY
    assert retry.after(FAULT, 1, 0.0) is NO_RETRY


def test_the_last_pause_of_a_table_goes_on():
    assert [RetryDelays((1, 5, 30)).after(retry) for retry in (1, 2, 3, 4, 100)] == [1, 5, 30, 30, 30]


def test_exponential_pauses_grow_to_their_limit():
    assert exponential(1, factor=3, max_s=20).seconds == (1, 3, 9, 20)
    assert exponential(5, factor=1).seconds == (5,)


def test_what_cap_does_today_is_three_at_once_then_one_a_minute():
    answers = [CAP_RETRY.after(FAULT, failures, 0.0) for failures in (1, 2, 3, 49, 50)]
    assert answers == [
        NextAttempt("now", 0.0),
        NextAttempt("now", 0.0),
        NextAttempt("now", 60),
        NextAttempt("now", 60),
        NO_RETRY,
    ]


def test_no_attempt_at_all_is_refused():
    with pytest.raises(ValueError, match="no attempt"):
        Retry(max=0)

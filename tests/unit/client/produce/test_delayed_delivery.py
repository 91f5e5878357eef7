"""Delayed messages: the options of a sender, and the recall handle."""

import base64
from datetime import UTC, datetime

import pytest

from sparrow.client.produce.delayed_delivery import RecallHandle, with_delivery_time
from sparrow.model.errors import Refused
from sparrow.model.message import Message

MESSAGE = Message("orders", b"a book", tags="paid")


def test_deliver_at_accepts_a_datetime_or_milliseconds():
    moment = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    ms = 1893553445678
    assert with_delivery_time(MESSAGE, deliver_at=moment).properties["TIMER_DELIVER_MS"] == str(ms)
    assert with_delivery_time(MESSAGE, deliver_at=ms).properties["TIMER_DELIVER_MS"] == str(ms)


def test_a_relative_delay_is_sent_for_the_clock_of_the_broker():
    assert with_delivery_time(MESSAGE, deliver_after_ms=1500).properties == {"TAGS": "paid", "TIMER_DELAY_MS": "1500"}


def test_a_delay_level_is_between_1_and_18():
    assert with_delivery_time(MESSAGE, delay_level=18).properties["DELAY"] == "18"
    for level in (0, 19, -1):
        with pytest.raises(Refused, match="1 to 18"):
            with_delivery_time(MESSAGE, delay_level=level)


def test_the_message_of_the_caller_is_not_changed():
    with_delivery_time(MESSAGE, deliver_after_ms=1)
    assert MESSAGE.properties == {"TAGS": "paid"}


def test_two_delivery_times_for_one_message_are_refused():
    with pytest.raises(Refused, match="one delivery time"):
        with_delivery_time(MESSAGE, deliver_after_ms=5, delay_level=1)


def test_a_delivery_time_before_now_or_before_1970_is_refused():
    with pytest.raises(Refused, match="use 0 or more"):
        with_delivery_time(MESSAGE, deliver_after_ms=-1)
    with pytest.raises(Refused, match="1970"):
        with_delivery_time(MESSAGE, deliver_at=-1)


def test_a_recall_handle_contains_topic_broker_time_and_id():
    handle = base64.urlsafe_b64encode(b"v1 orders broker-a 1893553445678 7F00A1").decode()
    assert RecallHandle.parse(handle) == RecallHandle("orders", "broker-a", 1893553445678, "7F00A1")


@pytest.mark.parametrize(
    "handle",
    ["", "%%%", base64.urlsafe_b64encode(b"v2 a b 1 c").decode(), base64.urlsafe_b64encode(b"v1 a b c").decode()],
)
def test_an_invalid_recall_handle_is_refused(handle: str):
    with pytest.raises(Refused, match="not a recall handle"):
        RecallHandle.parse(handle)

"""Receipt handles and lists in the form that clients parse, and names of retry topics."""

import pytest

from sparrow.broker.pop import receipt_handles
from sparrow.model.errors import BadRequest
from sparrow.model.topic import TOPIC_NAME_CHARS_MAX, validate_topic_name


def test_a_handle_round_trips_the_fields_that_an_ack_needs():
    text = receipt_handles.format_handle(
        start=7, pop_ms=1000, invisible_ms=60, revive_queue=0, retry="1", broker="b-a", queue_id=3, offset=9
    )
    assert text == "7 1000 60 0 1 b-a 3 9"
    assert receipt_handles.parse_handle(text) == (7, 1000, False)
    assert receipt_handles.parse_handle("7 1000 60 999 0 b 3") == (7, 1000, True), (
        "the offset may be missing, as after a change of invisible time"
    )


@pytest.mark.parametrize("text", ["", "7", "7 1000 60 0 1 b", "x 1000 60 0 1 b 3 9", "7 1000 60 - 1 b 3 9"])
def test_an_invalid_handle_is_refused(text):
    with pytest.raises(BadRequest, match="extraInfo"):
        receipt_handles.parse_handle(text)


def test_list_entries_start_with_the_queue():
    assert receipt_handles.start_entry("0", 2, 40) == "0 2 40"
    assert receipt_handles.offsets_entry("1", 0, [40, 42, 45]) == "1 0 40,42,45"


def test_delivery_counts_are_listed_only_for_redelivered_messages():
    assert receipt_handles.count_entries(3, {10: 0, 11: 0}) == []
    assert receipt_handles.count_entries(3, {10: 2, 11: 1}) == ["0 3 1", "0 qo3%10 2", "0 qo3%11 1"]


def test_a_retry_topic_is_named_by_group_and_topic():
    assert receipt_handles.pop_retry_topic("g", "t") == "%RETRY%g_t"
    assert receipt_handles.popped_topic("g", "t", "0") == "t"
    assert receipt_handles.popped_topic("g", "t", "1") == "%RETRY%g_t"
    assert receipt_handles.popped_topic("g", "%RETRY%g_t", "1") == "%RETRY%g_t"


def test_a_retry_topic_name_that_is_too_long_is_shortened_and_stays_unique():
    names = {receipt_handles.pop_retry_topic("g" * 100, "t" * 99 + last) for last in "abc"}
    assert len(names) == 3
    for name in names:
        assert validate_topic_name(name) == name
        assert receipt_handles.stored_topic_name(name) == name
    assert receipt_handles.pop_retry_topic("g", "t" * (TOPIC_NAME_CHARS_MAX - 9)) == "%RETRY%g_" + "t" * (
        TOPIC_NAME_CHARS_MAX - 9
    )
    assert receipt_handles.stored_topic_name("t" * 500) == "t" * 500, "only the names of retry topics are converted"

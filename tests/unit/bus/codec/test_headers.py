"""Headers are parsed as .NET CAP writes them, and handlers control the reply."""

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from sparrow.bus.codec.headers import Headers, format_sent_at, format_time_span, parse_sent_at, parse_time_span


def test_headers_are_available_as_attributes():
    headers = Headers(
        {"cap-msg-id": "7", "cap-msg-name": "a", "cap-msg-group": "g.v1", "cap-corr-id": "3", "cap-corr-seq": "2"}
    )
    assert (headers.id, headers.name, headers.group) == ("7", "a", "g.v1")
    assert (headers.correlation_id, headers.correlation_sequence) == ("3", 2)


def test_missing_and_null_headers_have_defaults():
    headers = Headers({"cap-msg-id": "7", "cap-callback-name": None, "cap-corr-seq": "x"})
    assert (headers.name, headers.group, headers.key, headers.tenant, headers.sent_at) == ("", None, None, None, None)
    assert (headers.correlation_id, headers.correlation_sequence, headers.reply_to) == ("7", 0, None)


def test_the_key_of_sparrow_is_preferred_to_that_of_kafka():
    assert Headers({"cap-kafka-key": "k"}).key == "k"
    assert Headers({"cap-kafka-key": "k", "sp-key": "ours"}).key == "ours"


def test_a_handler_controls_the_reply():
    headers = Headers({"cap-callback-name": "a.done"})
    assert headers.reply_to == "a.done"
    headers.rewrite_callback("b.done")
    headers.add_response_header("region", "north")
    assert (headers.reply_to, headers.response) == ("b.done", {"region": "north"})
    headers.remove_callback()
    assert headers.reply_to is None


@pytest.mark.parametrize("copied", [copy.copy, lambda headers: pickle.loads(pickle.dumps(headers))])
def test_a_copy_keeps_the_changes_of_the_reply(copied):
    headers = Headers({"cap-callback-name": "a"})
    headers.rewrite_callback("b")
    assert copied(headers) == headers
    assert copied(headers).reply_to == "b"


def test_two_headers_do_not_share_their_replies():
    Headers().add_response_header("a", "b")
    assert Headers().response == {}


def test_the_sent_time_is_written_in_utc_in_the_format_of_cap():
    moment = datetime(2026, 5, 1, 14, 3, 9, tzinfo=timezone(timedelta(hours=2)))
    assert format_sent_at(moment) == "05/01/2026 12:03:09"
    assert parse_sent_at("05/01/2026 12:03:09") == moment


def test_the_sent_time_may_be_iso_and_invalid_text_gives_none():
    assert parse_sent_at("2026-05-01T12:03:09") == datetime(2026, 5, 1, 12, 3, 9, tzinfo=UTC)
    assert parse_sent_at("2026-05-01T12:03:09+02:00") == datetime(2026, 5, 1, 10, 3, 9, tzinfo=UTC)
    assert parse_sent_at("yesterday") is None
    assert Headers({"cap-senttime": "05/01/2026 12:03:09"}).sent_at == datetime(2026, 5, 1, 12, 3, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(0), "00:00:00"),
        (timedelta(minutes=5, seconds=3), "00:05:03"),
        (timedelta(days=2, hours=3, microseconds=5), "2.03:00:00.0000050"),
        (timedelta(seconds=-1.5), "-00:00:01.5000000"),
    ],
)
def test_time_spans_use_the_format_of_dotnet(span, text):
    assert format_time_span(span) == text
    assert parse_time_span(text) == span


def test_a_time_span_may_have_fewer_or_more_fraction_digits():
    assert parse_time_span("00:00:01.5") == timedelta(seconds=1.5)
    assert parse_time_span("00:00:00.0000019") == timedelta(microseconds=1)
    assert parse_time_span("5 minutes") is None

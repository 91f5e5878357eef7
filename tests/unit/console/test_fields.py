"""Times and bodies in answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.console.models.fields import Time, format_time, show_body


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_767_225_600_001, "2026-01-01T00:00:00.001Z"),
        (-5, "1970-01-01T00:00:00.000Z"),
        (1 << 63, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_times_have_both_forms(time_ms: int, text: str) -> None:
    assert format_time(time_ms) == text
    assert Time.model_validate(time_ms).ms == time_ms


@given(st.text(), st.integers(0, 50))
def test_text_is_cut_between_characters(text: str, bytes_max: int) -> None:
    raw = text.encode()
    shown = show_body(raw, bytes_max)
    assert shown.text is not None
    assert raw.startswith(shown.text.encode())
    assert len(shown.text.encode()) > min(len(raw), bytes_max) - 4
    assert (shown.size, shown.truncated) == (len(raw), len(raw) > bytes_max)


@given(st.binary())
def test_every_body_can_be_shown(body: bytes) -> None:
    shown = show_body(body, 1_000)
    assert (shown.text is None) != (shown.base64 is None)


def test_the_content_type_is_guessed() -> None:
    assert show_body(b'{"a": 1}', 100).content_type == "application/json"
    assert show_body(b'{"a": 1}', 4).content_type == "text/plain"  # the beginning of JSON is no JSON
    assert show_body(b"hello", 100).content_type == "text/plain"
    assert show_body(b"\xff", 100).content_type == "application/octet-stream"
    assert show_body(b"[" * 100_000, 1 << 20).content_type == "text/plain"

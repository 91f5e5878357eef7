"""Numbers, sizes, durations, times and bodies are written for people, without losing digits that matter."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.console.pages.frame import formats

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (999, "999"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (999_999, "1M"),
        (4_200_000, "4.2M"),
        (7.1e9, "7.1G"),
    ],
)
def test_counts(value: float | None, text: str) -> None:
    assert formats.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (4 << 20, "4.0 MiB"), (300 << 30, "300 GiB"), (None, "–")],
)
def test_sizes(value: float | None, text: str) -> None:
    assert formats.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (2.34, "2.3 ms"),
        (850, "850 ms"),
        (12_500, "12.5 s"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (356_400_000, "4 d 3 h"),
        (-61_000, "−1 min 1 s"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert formats.duration(value) == text


@pytest.mark.parametrize("value", [0, 3.2, 250.0, 123_456])
def test_rates_have_a_decimal_only_below_ten(value: float) -> None:
    assert ("." in formats.rate(value)) == (value == 3.2)


def test_times_are_utc_from_both_notations() -> None:
    assert formats.moment(1_700_000_000_000) == "2023-11-14 22:13:20"
    assert formats.moment("2023-11-15T06:13:20+08:00") == "2023-11-14 22:13:20"
    assert formats.moment(None) == formats.moment("no time") == formats.moment(10**30) == "–"


def test_indented_json_keeps_the_digits_of_large_numbers() -> None:
    text = '{"id": 12345678901234567890, "price": 1.10, "名": ["<b>", null, true]}'
    pretty = formats.pretty_json(text)
    assert pretty is not None
    assert "12345678901234567890" in pretty
    assert "1.10" in pretty
    assert '"名"' in pretty


@pytest.mark.parametrize("text", ["", "plain", "{", "[" * 100_000, '{"a": nope}'])
def test_what_is_not_json_is_left_alone(text: str) -> None:
    assert formats.pretty_json(text) is None


@given(st.dictionaries(st.text(), JSON_VALUES) | st.lists(JSON_VALUES))
def test_indented_json_means_the_same(value: object) -> None:
    pretty = formats.pretty_json(json.dumps(value))
    assert pretty is not None
    assert json.loads(pretty) == value


def test_a_hex_dump_shows_offsets_bytes_and_text() -> None:
    assert formats.hex_dump(b"ab\x00<script>\xff0123456").splitlines() == [
        "00000000  61 62 00 3c 73 63 72 69 70 74 3e ff 30 31 32 33  ab·<script>·0123",
        "00000010  34 35 36" + " " * 39 + "  456",
    ]

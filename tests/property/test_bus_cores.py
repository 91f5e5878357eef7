"""Patterns match a reference definition, payloads and time spans round-trip, and retries end at the maximum."""

import dataclasses
import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
from hypothesis import given
from hypothesis import strategies as st

from sparrow.bus.codec.headers import format_time_span, parse_time_span
from sparrow.bus.codec.payload import encode_payload, payload_decoder
from sparrow.bus.errors import RetryAfter, Undecodable
from sparrow.bus.names import is_pattern, matches, pattern_regex, specificity
from sparrow.bus.retry import NO_RETRY, NextAttempt, Retry, RetryDelays, exponential, fixed, quartic

# Few words, so that names and patterns often match; "a+" has a meaning in regular expressions.
words = st.sampled_from(["a", "b", "a-b", "a+", ""])
names = st.lists(words, min_size=1, max_size=7).map(".".join)
patterns = st.lists(words | st.sampled_from("*#*#"), min_size=1, max_size=6).map(".".join)


def takes(pattern: list[str], name: list[str]) -> bool:
    """Match word by word: the reference definition."""
    if not pattern:
        return not name
    first, *rest = pattern
    if first == "#":
        return any(takes(rest, name[count:]) for count in range(len(name) + 1))
    return bool(name) and first in ("*", name[0]) and takes(rest, name[1:])


@given(pattern=patterns, name=names)
def test_a_pattern_matches_the_names_that_the_reference_definition_matches(pattern, name):
    expected = takes(pattern.split("."), name.split("."))
    assert matches(pattern, name) == expected
    assert (re.match(pattern_regex(pattern), name) is not None) == expected


@given(pattern=patterns, name=names)
def test_a_wider_pattern_matches_at_least_as_many_names_and_sorts_later(pattern, name):
    for index, word in enumerate(split := pattern.split(".")):
        if word == "#":
            continue
        wider = ".".join([*split[:index], "#" if word == "*" else "*", *split[index + 1 :]])
        assert matches(wider, name) or not matches(pattern, name)
        # A `*` beside a `#` that becomes another `#` may match the same names as before, but never fewer.
        assert specificity(pattern)[:-1] <= specificity(wider)[:-1]


@given(name=names)
def test_a_name_without_wildcards_matches_only_itself(name):
    assert matches(name, name)
    assert not is_pattern(name)
    assert not matches(name, name + ".a")


# -- payloads --------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
spans = st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000))
namings = st.sampled_from([None, "pascal", "camel"])


@dataclasses.dataclass
class Line:
    article_id: UUID
    unit_price: Decimal
    free_text: str


class Order(pydantic.BaseModel):
    order_id: int
    created_at: datetime
    raw_lines: list[Line]
    by_name: dict[str, Line]
    signature_bytes: bytes
    some_ratio: float
    maybe_note: str | None = None


class Shipped(msgspec.Struct):
    took_time: timedelta
    all_lines: tuple[Line, ...]
    the_last: Line | None
    raw_bytes: bytes
    anything: Any


lines = st.builds(Line, st.uuids(), decimals, texts)
moments = st.datetimes(datetime(1900, 1, 1), timezones=st.just(UTC))
orders = st.builds(
    Order,
    order_id=st.integers(-(2**63), 2**63 - 1),
    created_at=moments,
    raw_lines=st.lists(lines, max_size=3),
    by_name=st.dictionaries(texts, lines, max_size=3),
    signature_bytes=st.binary(max_size=20),
    some_ratio=finite,
    maybe_note=st.none() | texts,
)
shipments = st.builds(Shipped, spans, st.lists(lines, max_size=3).map(tuple), st.none() | lines, st.binary(), texts)


@given(value=plain, naming=namings)
def test_plain_values_are_encoded_as_plain_json(value, naming):
    body = encode_payload("t", value, naming=naming)
    assert payload_decoder(Any, naming=naming)(body) == value
    if value is not None:
        assert json.loads(body) == value


@given(value=lines | orders | shipments, naming=namings)
def test_models_round_trip(value, naming):
    body = encode_payload("t", value, naming=naming)
    again = payload_decoder(type(value), naming=naming)(body)
    assert again == value
    assert type(again) is type(value)


@given(value=decimals, naming=namings)
def test_decimals_keep_every_digit(value, naming):
    again = payload_decoder(Line, naming=naming)(
        encode_payload("t", Line(UUID(int=0), value, ""), naming=naming)
    ).unit_price
    assert again.as_tuple() == value.as_tuple()


@given(body=st.binary(max_size=40))
def test_any_body_is_decoded_or_raises_undecodable(body):
    for annotation in (Any, dict, Line, Order, Shipped):
        for naming in (None, "pascal"):
            with suppress(Undecodable):
                payload_decoder(annotation, naming=naming)(body)


@given(span=spans)
def test_time_spans_round_trip(span):
    assert parse_time_span(format_time_span(span)) == span


# -- retries ---------------------------------------------------------------------------------------------------------

backoffs = st.one_of(
    st.just(quartic),
    st.floats(0, 1e6).map(fixed),
    st.lists(st.floats(0, 1e6), min_size=1, max_size=5).map(lambda pauses: RetryDelays(tuple(pauses))),
    st.builds(exponential, st.floats(0.001, 100), factor=st.floats(1, 10), max_s=st.floats(1, 1e5)),
)
retries = st.builds(Retry, max=st.integers(1, 60), backoff=backoffs, immediate_retries=st.integers(0, 5))
chances = st.floats(0, 1, exclude_max=True)


@given(retry=retries, error=st.sampled_from([ValueError("no"), RetryAfter(5)]), chance=chances)
def test_retries_end_exactly_at_the_maximum_number_of_attempts(retry, error, chance):
    failures = 1
    while (answer := retry.after(error, failures, chance)) is not NO_RETRY:
        assert isinstance(answer, NextAttempt)
        assert answer.seconds >= 0
        failures += 1
    assert failures == retry.max

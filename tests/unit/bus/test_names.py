"""Wildcards follow AMQP, the most specific pattern comes first, and names have limits."""

import re

import pytest
from tests.support.cases import each_case

from sparrow.bus.names import (
    broker_event_name,
    broker_group_name,
    checked_event_name,
    checked_topic,
    is_pattern,
    matches,
    pattern_regex,
    specificity,
)
from sparrow.model.errors import IllegalName

TAKEN = [
    ("order.created", "order.created"),
    ("order.*", "order.created"),
    ("order.*", "order.half-done_2"),
    ("*.created", "order.created"),
    ("order.#", "order"),
    ("order.#", "order.a.b.c"),
    ("#", "order"),
    ("#", "a.b.c"),
    ("#.created", "created"),
    ("#.created", "a.b.created"),
    ("a.#.z", "a.z"),
    ("a.#.z", "a.z.z"),
    ("a.#.b.#.c", "a.x.b.b.c"),
    ("#.*", "a"),
    ("*.#.*", "a.b"),
]
NOT_TAKEN = [
    ("order.created", "order.Created"),
    ("order.created", "order.created.now"),
    ("order.*", "order"),
    ("order.*", "order.a.b"),
    ("order.#", "orders"),
    ("#.created", "recreated"),
    ("a.#.z", "a.z.y"),
    ("*.#.*", "a"),
    ("a.b", "axb"),
]


@each_case(("pattern", "name"), TAKEN)
def test_a_pattern_and_its_regex_match_a_name(pattern, name):
    assert matches(pattern, name)
    assert re.match(pattern_regex(pattern), name)


@pytest.mark.parametrize(("pattern", "name"), NOT_TAKEN)
def test_a_pattern_and_its_regex_reject_other_names(pattern, name):
    assert not matches(pattern, name)
    assert not re.match(pattern_regex(pattern), name)


def test_many_wildcards_on_a_long_name_match_quickly():
    # Trying every distribution of 100 words over 30 wildcards would never end.
    assert not matches(".".join(["#", "a"] * 30) + ".b", ".".join(["a"] * 100))


def test_only_whole_words_are_wildcards():
    assert [is_pattern(name) for name in ("a.*", "#", "a*", "a.b#", "a.b")] == [True, True, False, False, False]


def test_the_more_specific_pattern_sorts_first():
    wide_to_narrow = ["#", "*.#", "*.*", "order.#", "order.*.#", "order.*", "order.*.item", "order.created"]
    assert sorted(wide_to_narrow, key=specificity) == [*reversed(wide_to_narrow)]


def test_patterns_that_match_the_same_names_differ_in_specificity_only_by_their_text():
    assert specificity("#.*.#")[:-1] == specificity("*.#")[:-1]


def test_the_default_group_is_named_after_the_application():
    assert broker_group_name(None, app="Orders", prefix=None, version="v1") == "cap.queue.orders.v1"
    assert broker_group_name("billing", app="Orders", prefix="north", version="v2") == "north.billing.v2"


def test_a_prefix_is_put_before_the_name():
    assert (broker_event_name("order.created", "shop"), broker_event_name("order.created", None)) == (
        "shop.order.created",
        "order.created",
    )


@each_case(
    ("name", "rule"),
    [
        ("", "empty"),
        ("a" * 201, "201 characters"),
        ("order.*", "subscriptions only"),
        ("order#1", "subscriptions only"),
        ("order created", "blanks"),
        ("order\n", "blanks"),
        ("order\x00", "blanks"),
        ("order\ud800", "blanks"),
        (".created", "empty"),
        ("order..created", "empty"),
    ],
)
def test_an_illegal_name_is_refused_with_a_reason(name, rule):
    with pytest.raises(IllegalName, match=rule):
        checked_event_name(name)


def test_a_legal_name_is_returned_unchanged():
    assert checked_event_name("a" * 200) == "a" * 200
    assert checked_event_name("订单.created-2_x") == "订单.created-2_x"


def test_a_subscription_may_use_wildcards_only_as_whole_words():
    assert checked_topic("order.*.#") == "order.*.#"
    with pytest.raises(IllegalName, match="whole word"):
        checked_topic("order.cre*")


def test_a_group_longer_than_its_column_is_refused():
    with pytest.raises(IllegalName, match="200 are allowed"):
        broker_group_name("g" * 198, app="a", prefix=None, version="v1")

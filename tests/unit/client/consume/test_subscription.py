"""Subscriptions of a consumer."""

import pytest

from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import BadRequest
from sparrow.wire.bodies import SubscriptionData


@pytest.mark.parametrize("expression", ["*", "", " * ", "  "])
def test_a_star_or_an_empty_expression_matches_every_message(expression):
    subscription = Subscription.of("T", expression, version_ms=5)
    assert subscription.data() == SubscriptionData("T", "*", "TAG", 5, [], [])
    assert subscription.matches("any")
    assert subscription.matches(None)


@pytest.mark.parametrize("expression", ["TagA||B", "TagA || B", " TagA||  B ||", "TagA || B || TagA"])
def test_tags_are_split_at_bars_and_trimmed(expression):
    data = Subscription.of("T", expression, version_ms=5).data()
    assert data == SubscriptionData("T", expression, "TAG", 5, ["TagA", "B"], [2598919, 66])


def test_only_the_named_tags_match():
    subscription = Subscription.of("T", "a || b", version_ms=0)
    assert subscription.matches("a")
    assert subscription.matches("b")
    assert not subscription.matches("c")
    assert not subscription.matches("a || b")
    assert not subscription.matches(None)
    assert not subscription.matches("")


def test_a_tag_with_the_same_hash_does_not_match():
    subscription = Subscription.of("T", "Aa", version_ms=0)
    assert subscription.data().code_set == Subscription.of("T", "BB", version_ms=0).data().code_set
    assert not subscription.matches("BB")


def test_tags_with_the_same_hash_share_a_code():
    assert Subscription.of("T", "Aa || BB", version_ms=0).data().code_set == [2112]


def test_a_sql_expression_goes_to_the_broker_unchanged_and_matches_every_message_at_the_client():
    subscription = Subscription.of("T", "a > 1 || b = 2", expression_type="SQL92", version_ms=5)
    assert subscription.data() == SubscriptionData("T", "a > 1 || b = 2", "SQL92", 5, [], [])
    assert subscription.matches("any")
    assert subscription.matches(None)


@pytest.mark.parametrize(
    ("expression", "expression_type"), [("||", "TAG"), (" || ", "TAG"), ("", "SQL92"), (" ", "SQL92"), ("a", "REGEX")]
)
def test_an_expression_without_tags_or_conditions_is_refused(expression, expression_type):
    with pytest.raises(BadRequest):
        Subscription.of("T", expression, expression_type=expression_type, version_ms=0)


@pytest.mark.parametrize(
    ("expression", "expression_type"), [("*", "TAG"), ("a || b", "TAG"), ("a IS NOT NULL", "SQL92")]
)
def test_a_subscription_round_trips_through_heartbeat_data(expression, expression_type):
    subscription = Subscription.of("T", expression, expression_type=expression_type, version_ms=5)
    assert Subscription.from_data(subscription.data()) == subscription


def test_a_missing_expression_type_means_tags():
    assert Subscription.from_data(SubscriptionData("T", "a", "")).tags == ("a",)


def test_subscriptions_are_immutable():
    with pytest.raises(AttributeError):
        Subscription.of("T", version_ms=0).topic = "other"

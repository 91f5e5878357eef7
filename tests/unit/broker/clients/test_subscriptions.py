"""Filters that a broker builds from subscriptions."""

import pytest

from sparrow.broker.clients.subscriptions import BadExpression, UnsupportedFilterType, build_filter, parse_filter
from sparrow.model.errors import Refused
from sparrow.wire.bodies import SubscriptionData
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import response_for_error
from sparrow.wire.hashes import java_hash


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_a_star_or_an_empty_expression_matches_every_message(expression):
    assert build_filter(SubscriptionData("T", expression)).tags_codes is None


@pytest.mark.parametrize("expression_type", ["", "TAG"])
def test_tags_are_split_at_bars_and_trimmed(expression_type):
    found = build_filter(SubscriptionData("T", "a ||  b||", expression_type))
    assert found.tags_codes == {java_hash("a"), java_hash("b")}


def test_the_broker_computes_tag_codes_and_ignores_those_of_the_client():
    # Go's hash of a tag beyond ASCII differs from the hash in the consume queue.
    found = build_filter(SubscriptionData("T", "标签", tags_set=["标签"], code_set=[1]))
    assert found.tags_codes == {857175}


def test_the_set_of_tags_overrides_the_expression():
    assert build_filter(SubscriptionData("T", "a", tags_set=["b"])).tags_codes == {java_hash("b")}


def test_a_class_filter_subscription_matches_every_message():
    assert build_filter(SubscriptionData("T", "com.example.Filter", class_filter_mode=True)).tags_codes is None


def test_the_filter_keeps_the_version_and_the_subscription_data():
    data = SubscriptionData("T", "a", sub_version=7)
    assert (build_filter(data).version, build_filter(data).data) == (7, data)


def test_sql92_evaluates_properties_and_ignores_tags():
    found = build_filter(SubscriptionData("T", "a > 5", "SQL92"))
    assert found.tags_codes is None
    assert found.selector is not None
    assert found.selector.matches(b"a\x016\x02")
    assert not found.selector.matches(b"a\x015\x02")


def test_an_invalid_sql92_condition_is_refused():
    with pytest.raises(BadExpression) as refusal:
        build_filter(SubscriptionData("T", "a >", "SQL92"))
    assert response_for_error(refusal.value)[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_an_unknown_expression_type_is_refused_with_code_1_and_the_supported_types():
    with pytest.raises(UnsupportedFilterType) as refusal:
        build_filter(SubscriptionData("T", "a > 5", "XPATH"))
    assert isinstance(refusal.value, Refused)
    code, remark = response_for_error(refusal.value)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "XPATH" in remark
    assert "TAG" in remark


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_an_expression_without_a_tag_is_refused(expression):
    with pytest.raises(BadExpression) as refusal:
        parse_filter("T", expression, "TAG")
    code, remark = response_for_error(refusal.value)
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert repr(expression) in remark


@pytest.mark.parametrize("expression_type", [None, "", "TAG"])
def test_a_pull_without_an_expression_matches_every_message(expression_type):
    assert parse_filter("T", None, expression_type).tags_codes is None


def test_the_same_subscription_is_parsed_once():
    assert parse_filter("T", "a || b", "TAG") is parse_filter("T", "a || b", "TAG")


def test_a_very_long_subscription_is_parsed_but_not_cached():
    expression = "||".join(f"tag{number}" for number in range(1000))
    assert parse_filter("T", expression, "TAG") == parse_filter("T", expression, "TAG")
    assert parse_filter("T", expression, "TAG") is not parse_filter("T", expression, "TAG")
    assert len(parse_filter("T", expression, "TAG").tags_codes) == 1000

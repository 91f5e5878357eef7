"""What a broker makes of a subscription."""

import pytest

from sparrow.broker.clients.subscriptions import BadExpression, UnsupportedFilterType, build_filter, parse_filter
from sparrow.model.errors import Refused
from sparrow.wire.bodies import SubscriptionData
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import response_for_error
from sparrow.wire.hashes import java_hash


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_star_and_nothing_let_everything_through(expression):
    assert build_filter(SubscriptionData("T", expression)).tags_codes is None


@pytest.mark.parametrize("expression_type", ["", "TAG"])
def test_tags_are_parted_by_bars_and_trimmed(expression_type):
    found = build_filter(SubscriptionData("T", "a ||  b||", expression_type))
    assert found.tags_codes == {java_hash("a"), java_hash("b")}


def test_codes_are_made_here_and_not_taken_over():
    # As from Go, whose hash of a tag beyond ASCII is not the one in the consume queue.
    found = build_filter(SubscriptionData("T", "标签", tags_set=["标签"], code_set=[1]))
    assert found.tags_codes == {857175}


def test_the_set_of_tags_goes_before_the_expression():
    assert build_filter(SubscriptionData("T", "a", tags_set=["b"])).tags_codes == {java_hash("b")}


def test_a_filter_server_is_given_everything():
    assert build_filter(SubscriptionData("T", "com.example.Filter", class_filter_mode=True)).tags_codes is None


def test_the_filter_keeps_version_and_data():
    data = SubscriptionData("T", "a", sub_version=7)
    assert (build_filter(data).version, build_filter(data).data) == (7, data)


def test_sql92_looks_at_properties_and_not_at_tags():
    found = build_filter(SubscriptionData("T", "a > 5", "SQL92"))
    assert found.tags_codes is None
    assert found.selector is not None
    assert found.selector.matches(b"a\x016\x02")
    assert not found.selector.matches(b"a\x015\x02")


def test_a_condition_that_makes_no_sense_is_refused():
    with pytest.raises(BadExpression) as refusal:
        build_filter(SubscriptionData("T", "a >", "SQL92"))
    assert response_for_error(refusal.value)[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_another_kind_of_expression_is_refused_with_code_1_and_a_way_out():
    with pytest.raises(UnsupportedFilterType) as refusal:
        build_filter(SubscriptionData("T", "a > 5", "XPATH"))
    assert isinstance(refusal.value, Refused)
    code, remark = response_for_error(refusal.value)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "XPATH" in remark
    assert "TAG" in remark


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_an_expression_that_names_no_tag_does_not_parse(expression):
    with pytest.raises(BadExpression) as refusal:
        parse_filter("T", expression, "TAG")
    code, remark = response_for_error(refusal.value)
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert repr(expression) in remark


@pytest.mark.parametrize("expression_type", [None, "", "TAG"])
def test_a_pull_may_leave_out_what_it_means_by_everything(expression_type):
    assert parse_filter("T", None, expression_type).tags_codes is None


def test_the_same_subscription_is_parsed_once():
    assert parse_filter("T", "a || b", "TAG") is parse_filter("T", "a || b", "TAG")


def test_a_very_long_subscription_is_read_but_not_kept():
    expression = "||".join(f"tag{number}" for number in range(1000))
    assert parse_filter("T", expression, "TAG") == parse_filter("T", expression, "TAG")
    assert parse_filter("T", expression, "TAG") is not parse_filter("T", expression, "TAG")
    assert len(parse_filter("T", expression, "TAG").tags_codes) == 1000

"""RocketMQ's ACL entries: which one decides, how a token gets them, and what is refused."""

import pytest

from sparrow.model.access.acl import (
    ENTRIES_MAX,
    Acl,
    as_normal,
    as_super,
    entries_of,
    is_limited_by_acl,
    is_super,
    merge_entries,
    parse_entry,
    parse_resource,
    parse_subject,
    with_entries,
)
from sparrow.model.access.acl_entry import AclAction, AclEntry
from sparrow.model.access.token import Token
from sparrow.model.errors import Refused

PUB, SUB, GET = {AclAction.PUB}, {AclAction.SUB}, {AclAction.GET}


def entry(resource: str, actions: str = "All", decision: str = "Allow", addresses: str = "", policy: str = "Custom"):
    return parse_entry(policy, resource, actions.split(","), addresses.split(), decision)


def token(kind: str = "p", **others) -> Token:
    return Token(id=1, name="web", kind=kind, secret=bytes(32), created_ms=1, **others)


def allowed(*entries: AclEntry, topic: str = "orders", actions=PUB, host: str = "10.0.0.1") -> bool:
    return Acl(entries).allows("Topic", topic, actions, host)


def test_what_no_entry_matches_is_denied():
    assert not allowed()
    assert not allowed(entry("Topic:orders", "Sub"))
    assert not allowed(entry("Topic:invoices", "Pub"))
    assert not allowed(entry("Group:orders", "Pub"))
    assert not allowed(entry("Topic:orders", "Pub", addresses="10.0.0.2"))


def test_an_entry_for_a_name_a_prefix_all_topics_or_everything_allows():
    for resource in ("Topic:orders", "Topic:ord*", "Topic:*", "*"):
        assert allowed(entry(resource, "Pub", addresses="10.0.0.0/8")), resource


def test_the_most_specific_entry_decides_whatever_the_order():
    layers = [entry("*"), entry("Topic:*", "All", "Deny"), entry("Topic:ord*"), entry("Topic:orde*", "All", "Deny")]
    layers.append(entry("Topic:orders"))
    for count in range(1, len(layers) + 1):
        expected = count % 2 == 1
        assert allowed(*layers[:count]) == expected
        assert allowed(*reversed(layers[:count])) == expected


def test_an_entry_decides_only_for_its_actions_and_addresses():
    entries = entry("Topic:*", "Pub,Sub"), entry("Topic:orders", "Pub", "Deny", addresses="10.0.0.1")
    assert not allowed(*entries)
    assert allowed(*entries, actions=SUB)
    assert allowed(*entries, host="10.0.0.2")
    assert allowed(*entries, topic="invoices")


def test_the_default_policy_decides_only_where_no_custom_entry_matches():
    assert not allowed(entry("Topic:orders", policy="Default"), entry("*", "All", "Deny"))
    assert allowed(entry("Topic:orders", policy="Default"), entry("*", "Sub", "Deny"))


def test_a_request_for_every_topic_is_denied_if_one_is():
    assert allowed(entry("Topic:*"), topic="*")
    assert allowed(entry("*"), topic="*")
    assert not allowed(entry("Topic:ord*"), topic="*")
    assert not allowed(entry("Topic:*"), entry("Topic:salaries", "All", "Deny"), topic="*")
    assert allowed(entry("Topic:*"), entry("Group:salaries", "All", "Deny"), topic="*")


def test_changes_replace_entries_of_the_same_resource_and_keep_the_others():
    before = entry("Topic:a", "Pub"), entry("Topic:b", "Pub")
    changed, added, default = entry("Topic:a", "Sub"), entry("Group:g", "Sub"), entry("Topic:b", policy="Default")
    assert merge_entries(before, [changed, added, default]) == (changed, before[1], added, default)


@pytest.mark.parametrize(
    ("kind", "resources"),
    [
        ("p", ["Allow Pub on Topic:a from 10.0.0.0/8", "Allow Pub on Topic:b* from 10.0.0.0/8"]),
        ("c", ["Allow Sub on Topic:a from 10.0.0.0/8", "Allow Sub on Topic:b* from 10.0.0.0/8"]),
        ("pc", ["Allow Pub,Sub on Topic:a from 10.0.0.0/8", "Allow Pub,Sub on Topic:b* from 10.0.0.0/8"]),
        ("a", ["Allow All on Topic:a from 10.0.0.0/8", "Allow All on Topic:b* from 10.0.0.0/8"]),
    ],
)
def test_a_token_of_a_type_and_patterns_has_the_entries_that_allow_the_same(kind, resources):
    limited = token(kind, topics=("a", "b*"), groups=("g",), addresses=("10.0.0.0/8",))
    if kind != "p":
        resources.append(f"Allow {'All' if kind == 'a' else 'Sub'} on Group:g from 10.0.0.0/8")
    assert [str(each) for each in entries_of(limited)] == resources


def test_a_token_with_entries_has_neither_patterns_nor_addresses_beside_them():
    changed = with_entries(token("pc", addresses=("10.0.0.1",)), [entry("Topic:a", "Sub")])
    assert is_limited_by_acl(changed)
    assert changed.permissions == ("p", (), (), ()), "a broker that does not know entries must allow nothing"


def test_a_super_user_is_not_limited_and_gets_its_entries_back_as_a_normal_one():
    before = with_entries(token(), [entry("Topic:a", "Pub")])
    promoted = as_super(before)
    assert is_super(promoted)
    assert not is_limited_by_acl(promoted)
    assert entries_of(promoted) == before.acl
    assert as_normal(promoted) == before
    assert as_super(promoted) is promoted
    assert as_normal(before) is before
    assert entries_of(as_normal(as_super(token("c", topics=("a",))))) == entries_of(token("c", topics=("a",)))


def test_an_administrator_that_becomes_a_normal_user_may_do_nothing():
    chief = token("a")
    assert entries_of(chief) == ()
    assert is_limited_by_acl(as_normal(chief))
    assert as_normal(chief).acl == ()


def test_more_entries_than_the_limit_are_refused():
    with pytest.raises(Refused, match=f"would have {ENTRIES_MAX + 1} ACL entries of {ENTRIES_MAX} at most"):
        with_entries(token(), [entry(f"Topic:{number}") for number in range(ENTRIES_MAX + 1)])


def test_texts_are_read_without_regard_to_case_as_by_rocketmq():
    assert entry("TOPIC:Orders", "pub,SUB", "ALLOW", policy="default") == AclEntry(
        resource="Topic:Orders", actions=(AclAction.PUB, AclAction.SUB), policy="Default"
    )
    assert entry("Topic:a", "Pub,pub,Sub").actions == (AclAction.PUB, AclAction.SUB)
    assert entry("Topic:a", addresses="10.1.2.3/8").addresses == ("10.0.0.0/8",)
    assert parse_subject("user:web") == "web"
    assert parse_subject("User:a:b") == "a:b"


@pytest.mark.parametrize(
    ("resource", "sentence"),
    [
        (None, "'' is no resource: use Topic:name, Group:name or Cluster:name"),
        ("orders", "'orders' is no resource"),
        ("Topic:", "'Topic:' is no resource"),
        ("Namespace:a", "'Namespace:a' is no resource"),
        ("Topic:a b", "'a b' is no pattern of topics"),
        ("Topic:a*b", r"'a\*b' is no pattern of topics"),
        ("Topic:%RETRY%billing", "is a topic of a group: permit the group instead"),
        ("Group:é", "'é' is no pattern of groups"),
        ("Cluster:a*b", r"'a\*b' is no pattern of clusters"),
    ],
)
def test_a_resource_that_could_match_nothing_is_refused(resource, sentence):
    with pytest.raises(Refused, match=sentence):
        parse_resource(resource)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"actions": ["Publish"]}, "'Publish' is no action of an ACL: use All, Pub, Sub, Create"),
        ({"actions": ["Any"]}, "'Any' is no action of an ACL"),
        ({"actions": []}, "the ACL entry for Topic:a has no action"),
        ({"decision": "Maybe"}, "'Maybe' is no decision for the ACL entry of Topic:a: use Allow or Deny"),
        ({"decision": None}, "'' is no decision"),
        ({"addresses": ["here"]}, "'here' is no source address"),
        ({"policy": "Other"}, "'Other' is no type of policy: use Custom or Default"),
    ],
)
def test_an_invalid_entry_is_refused_with_the_value(changes, sentence):
    given = {"policy": None, "resource": "Topic:a", "actions": ["Pub"], "addresses": None, "decision": "Allow"}
    with pytest.raises(Refused, match=sentence):
        parse_entry(**(given | changes))


@pytest.mark.parametrize("subject", [None, "", "web", "Group:web", "User:", "User: web"])
def test_an_invalid_subject_is_refused(subject):
    with pytest.raises(Refused):
        parse_subject(subject)

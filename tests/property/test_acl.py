"""ACL entries: their way through RocketMQ's bodies and back, the rule, and tokens of types against entries."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_permissions import NAMES, PATTERNS, tokens

from sparrow.broker.access.acl_requirements import acl_actions, find_denied_name
from sparrow.broker.access.requirements import REQUIREMENTS, NamedUse
from sparrow.broker.admin.acls import read_entries, write_entries
from sparrow.model.access.acl import Acl, entries_of, is_limited_by_acl, is_super, merge_entries, with_entries
from sparrow.model.access.acl_entry import AclAction, AclEntry
from sparrow.model.access.permissions import TokenAction, is_allowed
from sparrow.model.access.source_addresses import parse_source_addresses
from sparrow.model.access.token import PASSWORD_BYTES_MAX, Token, parse_password
from sparrow.wire import bodies
from sparrow.wire.bodies import AclInfo

KINDS = st.sampled_from(["Topic", "Group", "Cluster"])
RESOURCES = st.just("*") | st.builds("{}:{}".format, KINDS, PATTERNS)
ADDRESSES = st.lists(st.sampled_from(["10.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/32"]), max_size=2)
ACTIONS = st.lists(st.sampled_from(AclAction), min_size=1, max_size=3, unique=True)


@st.composite
def entries(draw: st.DrawFn) -> AclEntry:
    return AclEntry(
        resource=draw(RESOURCES),
        actions=tuple(draw(ACTIONS)),
        decision=draw(st.sampled_from(["Allow", "Deny"])),
        addresses=parse_source_addresses(draw(ADDRESSES)),
        policy=draw(st.sampled_from(["Custom", "Default"])),
    )


ACLS = st.lists(entries(), min_size=1, max_size=5).map(lambda some: merge_entries((), some))


def by_policy(acl: tuple[AclEntry, ...]) -> list[AclEntry]:
    """Return entries in the order in which bodies have them."""
    first = acl[0].policy
    return sorted(acl, key=lambda entry: entry.policy != first)


@given(ACLS)
def test_entries_come_back_as_they_were_put_in(acl: tuple[AclEntry, ...]) -> None:
    body = bodies.write(write_entries("web", acl))
    assert read_entries(bodies.read_request(AclInfo, body)) == by_policy(acl)


@given(ACLS, ACLS)
def test_putting_the_same_entries_again_changes_nothing(acl: tuple[AclEntry, ...], more: tuple[AclEntry, ...]) -> None:
    merged = merge_entries(acl, more)
    assert merge_entries(merged, more) == merged
    assert {entry.resource for entry in merged} == {entry.resource for entry in (*acl, *more)}


def precedence(entry: AclEntry) -> tuple[bool, int, int]:
    kind, _, pattern = entry.resource.partition(":")
    rank = 3 if kind == "*" else 2 if pattern == "*" else 1 if pattern.endswith("*") else 0
    return entry.policy == "Default", rank, -len(pattern)


@given(
    ACLS, st.sampled_from(["Topic", "Group"]), NAMES, st.sampled_from(AclAction), st.sampled_from(["10.0.0.1", "::1"])
)
def test_the_first_entry_by_precedence_that_matches_decides(
    acl: tuple[AclEntry, ...], kind: str, name: str, action: AclAction, host: str
) -> None:
    near = {"10.0.0.1": {"10.0.0.1", "10.0.0.0/8"}, "::1": {"::1"}}[host]
    matching = [
        entry
        for entry in acl
        if (entry.resource == "*" or entry.resource in (f"{kind}:{name}", f"{kind}:*"))
        or (entry.resource.endswith("*") and f"{kind}:{name}".startswith(entry.resource[:-1]))
    ]
    matching = [entry for entry in matching if action in entry.actions or AclAction.ALL in entry.actions]
    matching = [entry for entry in matching if not entry.addresses or near & {*entry.addresses}]
    decided = min(matching, key=precedence).decision if matching and action is not AclAction.ALL else "Deny"
    if action is not AclAction.ALL:  # no request needs it
        assert Acl(acl).allows(kind, name, {action}, host) == (decided == "Allow")  # type: ignore[arg-type]


@given(tokens(), st.sampled_from(TokenAction), st.none() | NAMES, st.none() | NAMES)
def test_the_entries_of_a_token_of_a_type_allow_the_same_as_its_patterns(
    token: Token, action: TokenAction, topic: str | None, group: str | None
) -> None:
    if is_super(token) or (topic is None and group is None):
        return
    if group is not None and (token.kind == "p" or action is TokenAction.PUBLISH):
        return  # producers name no consumer groups: they have no entries for any
    user = with_entries(token, entries_of(token))
    assert is_limited_by_acl(user)
    denied = find_denied_name(Acl(entries_of(user)), acl_actions(0, (action,)), NamedUse(topic, group), "10.0.0.1")
    assert (denied is None) == is_allowed(token, action, topic, group)


def test_no_request_that_only_publishes_names_a_group() -> None:
    assert not [
        code for code, need in REQUIREMENTS.items() if need.actions == (TokenAction.PUBLISH,) and need.group is not None
    ]


@given(tokens(), NAMES, NAMES, st.sampled_from(["%RETRY%", "%DLQ%"]))
def test_topics_of_groups_follow_the_group_for_entries_as_for_patterns(
    token: Token, group: str, topic: str, prefix: str
) -> None:
    if is_super(token):
        return
    user = with_entries(token, entries_of(token))
    for name, reader in ((prefix + group, None), (prefix + group, group), (f"{prefix}{group}_{topic}", group)):
        if token.kind == "p" and reader is not None:
            continue
        denied = find_denied_name(Acl(entries_of(user)), {AclAction.SUB}, NamedUse(name, reader), "")
        assert (denied is None) == is_allowed(token, TokenAction.SUBSCRIBE, name, reader)


@given(
    st.text(min_size=1, max_size=PASSWORD_BYTES_MAX // 4).filter(
        lambda text: text.isprintable() and text.strip() == text
    )
)
def test_a_password_is_the_secret_key_of_its_token(password: str) -> None:
    token = Token(id=1, name="web", kind="p", secret=parse_password(password), created_ms=1)
    assert token.secret_key == password
    assert msgspec.json.decode(msgspec.json.encode(token), type=Token).secret_key == password

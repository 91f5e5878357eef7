"""The rule of permissions against a plain model, and what must hold for every token, action and name."""

import re

from hypothesis import given
from hypothesis import strategies as st

from sparrow.model.access.permissions import TokenAction, is_allowed, is_send_allowed, is_unlimited, parse_patterns
from sparrow.model.access.token import Token

NAMES = st.text("ab-_", min_size=1, max_size=4)
PATTERNS = st.one_of(NAMES, NAMES.map(lambda name: name + "*"), st.just("*"))
SOME_PATTERNS = st.lists(PATTERNS, min_size=1, max_size=3)
KINDS = st.sampled_from(["p", "c", "pc", "a"])
ACTIONS_OF = {
    "p": {"publish"},
    "c": {"subscribe"},
    "pc": {"publish", "subscribe"},
    "a": {action.value for action in TokenAction},
}


@st.composite
def tokens(draw: st.DrawFn) -> Token:
    return Token(
        id=1,
        name="t",
        kind=draw(KINDS),
        secret=bytes(32),
        created_ms=1,
        topics=parse_patterns(draw(SOME_PATTERNS), "topic"),
        groups=parse_patterns(draw(SOME_PATTERNS), "group"),
    )


def matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) for pattern in patterns)


@given(tokens(), st.sampled_from(TokenAction), NAMES, NAMES)
def test_a_plain_topic_and_group_are_allowed_if_a_pattern_of_each_matches(
    token: Token, action: TokenAction, topic: str, group: str
) -> None:
    expected = action.value in ACTIONS_OF[token.kind] and matches(token.topics, topic) and matches(token.groups, group)
    assert is_allowed(token, action, topic, group) == expected


@given(tokens(), NAMES, st.sampled_from(["%RETRY%", "%DLQ%"]))
def test_topics_of_a_group_follow_its_permission_and_no_topic_pattern(token: Token, group: str, prefix: str) -> None:
    topic = prefix + group
    may_subscribe = "subscribe" in ACTIONS_OF[token.kind] and matches(token.groups, group)
    assert is_allowed(token, TokenAction.SUBSCRIBE, topic) == may_subscribe
    assert is_send_allowed(token, topic) == may_subscribe
    assert is_allowed(token, TokenAction.PUBLISH, topic) == (may_subscribe and token.kind == "a")


@given(tokens(), NAMES, NAMES, NAMES)
def test_a_retry_topic_of_another_group_needs_that_group_or_the_topic_in_its_name(
    token: Token, group: str, other: str, topic: str
) -> None:
    """A popping group has a retry topic for each topic; its name is ambiguous, so that both halves are needed."""
    name = f"%RETRY%{other}_{topic}"
    if is_allowed(token, TokenAction.SUBSCRIBE, name, group):
        owner = f"{other}_{topic}"
        splits = [owner[at + 1 :] for at in range(1, len(owner)) if owner[at] in "_+" and owner[:at] == group]
        assert matches(token.groups, owner) or any(matches(token.topics, rest) for rest in splits)
        assert matches(token.groups, group)


@given(tokens(), st.sampled_from(TokenAction), st.none() | NAMES, st.none() | NAMES, PATTERNS, PATTERNS)
def test_another_pattern_never_takes_a_permission_away(
    token: Token, action: TokenAction, topic: str | None, group: str | None, more_topics: str, more_groups: str
) -> None:
    wider = Token(
        id=1,
        name="t",
        kind=token.kind,
        secret=bytes(32),
        created_ms=1,
        topics=parse_patterns([*token.topics, more_topics], "topic"),
        groups=parse_patterns([*token.groups, more_groups], "group"),
    )
    assert is_allowed(token, action, topic, group) <= is_allowed(wider, action, topic, group)


@given(tokens(), st.sampled_from(TokenAction))
def test_everything_is_allowed_only_to_unlimited_tokens(token: Token, action: TokenAction) -> None:
    expected = is_unlimited(token) and action.value in ACTIONS_OF[token.kind]
    assert is_allowed(token, action, "*", "*") == expected


@given(SOME_PATTERNS)
def test_parsed_patterns_match_the_same_names_in_any_order(patterns: list[str]) -> None:
    assert parse_patterns(patterns, "topic") == parse_patterns(reversed([*patterns, *patterns]), "topic")

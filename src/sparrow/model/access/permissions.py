"""Permissions of tokens: which action a token may take on which topics and groups. Pure; `broker/access` applies it.

1. What no pattern of a token matches is denied.
2. A pattern is a name, a prefix followed by `*`, or `*`, which matches every name.
3. The topics of a group (retries, dead letters) follow the permission for the group; patterns of topics do not apply.
4. Who administers a name may also publish and subscribe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from sparrow.model.access.token import EVERY_NAME, Token, TokenKind
from sparrow.model.errors import Refused
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, TOOLS_GROUP

PATTERNS_MAX = 256
"""Patterns of topics, or of groups, that a token may have."""
PATTERN_CHARS_MAX = 128
GROUP_TOPIC_PREFIXES = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
_POP_SEPARATORS = ("_", "+")
"""Between group and topic in the name of a retry topic of a popping group; RocketMQ 5 has two forms."""
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]*\*?")


class TokenAction(StrEnum):
    """What a token may do."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    ADMINISTER = "administer"


KIND_ACTIONS: dict[TokenKind, frozenset[TokenAction]] = {
    "p": frozenset({TokenAction.PUBLISH}),
    "c": frozenset({TokenAction.SUBSCRIBE}),
    "pc": frozenset({TokenAction.PUBLISH, TokenAction.SUBSCRIBE}),
    "a": frozenset(TokenAction),
}


class NamePatterns(NamedTuple):
    """Patterns in a form that is compared fast."""

    names: frozenset[str]
    prefixes: tuple[str, ...]

    def match(self, name: str) -> bool:
        """Return whether one of the patterns matches."""
        return name in self.names or name.startswith(self.prefixes)


@lru_cache(maxsize=4096)
def compile_patterns(patterns: tuple[str, ...]) -> NamePatterns:
    """Return the patterns in the form that is compared."""
    return NamePatterns(
        frozenset(pattern for pattern in patterns if not pattern.endswith(EVERY_NAME)),
        tuple(pattern[: -len(EVERY_NAME)] for pattern in patterns if pattern.endswith(EVERY_NAME)),
    )


def parse_patterns(patterns: Iterable[str] | None, what: str) -> tuple[str, ...]:
    """Return patterns of topics or groups, sorted and without duplicates; None means every name.

    Raises `Refused` for a pattern that could match nothing, and for an empty list.
    """
    found = tuple(sorted(set((EVERY_NAME,) if patterns is None else patterns)))
    if not found or len(found) > PATTERNS_MAX:
        raise Refused(f"a token has 1 to {PATTERNS_MAX} patterns of {what}s, not {len(found)}: use * for all of them")
    for pattern in found:
        validate_pattern(pattern, what)
    return (EVERY_NAME,) if EVERY_NAME in found else found


def validate_pattern(pattern: str, what: str) -> str:
    """Return a pattern of topics or groups; raise `Refused` if it could match nothing."""
    if not pattern or len(pattern) > PATTERN_CHARS_MAX or not _LEGAL.fullmatch(pattern):
        raise Refused(
            f"{pattern[:PATTERN_CHARS_MAX]!r} is no pattern of {what}s: use a name, a prefix and * (orders-*), or *"
        )
    if what == "topic" and pattern.startswith(GROUP_TOPIC_PREFIXES):
        raise Refused(f"{pattern!r} is a topic of a group: permit the group instead, its topics follow it")
    return pattern


def is_unlimited(token: Token) -> bool:
    """Return whether the token may take its actions on every topic and group."""
    return token.topics == token.groups == (EVERY_NAME,)


def has_action(token: Token, action: TokenAction) -> bool:
    """Return whether the token may take the action on anything at all."""
    return action in KIND_ACTIONS[token.kind]


def is_allowed(token: Token, action: TokenAction, topic: str | None = None, group: str | None = None) -> bool:
    """Return whether a token may take an action on a topic, by a group; None: the request names none.

    `EVERY_NAME` as a name stands for all of them.
    """
    if action not in KIND_ACTIONS[token.kind]:
        return False
    if group is not None and group != TOOLS_GROUP and not compile_patterns(token.groups).match(group):
        return False
    if topic is None:
        return True
    if topic.startswith(GROUP_TOPIC_PREFIXES):
        return _is_group_topic_allowed(token, action, topic, group)
    return compile_patterns(token.topics).match(topic)


def is_send_allowed(token: Token, topic: str) -> bool:
    """Return whether a token may send to a topic. Consumers send to the topics of their groups, producers do not."""
    action = TokenAction.SUBSCRIBE if topic.startswith(GROUP_TOPIC_PREFIXES) else TokenAction.PUBLISH
    return is_allowed(token, action, topic)


def _is_group_topic_allowed(token: Token, action: TokenAction, topic: str, group: str | None) -> bool:
    if action is TokenAction.PUBLISH:
        return TokenAction.ADMINISTER in KIND_ACTIONS[token.kind] and is_allowed(
            token, TokenAction.ADMINISTER, topic, group
        )
    owner, topics = split_group_topic(topic, group)
    return compile_patterns(token.groups).match(owner) or any(
        compile_patterns(token.topics).match(name) for name in topics
    )


def split_group_topic(topic: str, group: str | None) -> tuple[str, list[str]]:
    """Return the group in the name of a topic of a group, and topics that may be in it behind `group`.

    Retries of a popping group have a topic for each topic, `%RETRY%group_topic`. The group is compared by itself.
    """
    owner = topic.partition("%")[2].partition("%")[2]
    if group is None:
        return owner, []
    return owner, [owner[len(group) + 1 :] for separator in _POP_SEPARATORS if owner.startswith(group + separator)]

"""The rules of ACLs: which entries a token has, and what they allow. Pure; `broker/access` applies it.

The rules are those of RocketMQ 5 (`AclAuthorizationHandler`), whose users and ACLs are tokens and their entries.

1. What no entry matches is denied. An entry matches by resource, action and source address.
2. Of several that match, the most specific one decides: a name, then the longest prefix, then `Topic:*`, then `*`.
3. Entries of the policy Default decide only where none of Custom matches.
4. What concerns every topic or group is allowed only if no entry denies a part of it.
5. A Super user is a token that may administer everything. ACLs do not limit it, but it keeps its entries.
6. A token of a type and patterns has the entries that allow the same. Once they are changed, only entries count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from typing import NamedTuple

import msgspec

from sparrow.model.access.acl_entry import AclAction, AclDecision, AclEntry, AclPolicy, ResourceKind
from sparrow.model.access.permissions import is_unlimited, validate_pattern
from sparrow.model.access.source_addresses import is_source_allowed, parse_source_addresses
from sparrow.model.access.token import EVERY_NAME, Token, TokenKind, validate_token_name
from sparrow.model.errors import Refused

ENTRIES_MAX = 256
"""Entries that a token may have."""
SHOWN_CHARS_MAX = 128
_CLUSTER_CHARS_MAX = 128
_SUBJECT_KIND = "User"
_EVERY_ACTION = frozenset(AclAction) - {AclAction.ALL}
_ACTIONS = {action.lower(): action for action in AclAction}
_KINDS: dict[str, ResourceKind] = {"topic": "Topic", "group": "Group", "cluster": "Cluster"}
_DECISIONS: dict[str, AclDecision] = {"allow": "Allow", "deny": "Deny"}
_POLICIES: dict[str, AclPolicy] = {"custom": "Custom", "default": "Default"}
"""In the order in which they decide."""
_TOPIC_ACTIONS: dict[TokenKind, tuple[AclAction, ...]] = {
    "p": (AclAction.PUB,),
    "c": (AclAction.SUB,),
    "pc": (AclAction.PUB, AclAction.SUB),
    "a": (AclAction.ALL,),
}
_GROUP_ACTIONS: dict[TokenKind, tuple[AclAction, ...]] = {
    "p": (),
    "c": (AclAction.SUB,),
    "pc": (AclAction.SUB,),
    "a": (AclAction.ALL,),
}


# -- decisions --------------------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """An entry without its resource."""

    actions: frozenset[AclAction]
    addresses: tuple[str, ...]
    is_denied: bool

    def applies(self, actions: Set[AclAction], host: str) -> bool:
        return not self.actions.isdisjoint(actions) and is_source_allowed(self.addresses, host)


class _Policy:
    """The entries of one policy, by what they match."""

    __slots__ = ("everything", "names", "prefixes")

    def __init__(self, entries: Iterable[AclEntry]) -> None:
        self.names: dict[tuple[str, str], _Rule] = {}
        self.prefixes: dict[str, list[tuple[str, _Rule]]] = {}
        """Those of each kind, the longest first. `Topic:*` has the empty prefix."""
        self.everything: _Rule | None = None
        for entry in entries:
            actions = _EVERY_ACTION if AclAction.ALL in entry.actions else frozenset(entry.actions)
            rule = _Rule(actions, entry.addresses, entry.decision == "Deny")
            kind, _, pattern = entry.resource.partition(":")
            if kind == EVERY_NAME:
                self.everything = rule
            elif pattern.endswith(EVERY_NAME):
                self.prefixes.setdefault(kind, []).append((pattern[: -len(EVERY_NAME)], rule))
            else:
                self.names[kind, pattern] = rule
        for prefixes in self.prefixes.values():
            prefixes.sort(key=lambda prefix: -len(prefix[0]))

    def matching(self, kind: ResourceKind, name: str) -> Iterator[_Rule]:
        """Yield what matches a resource, the most specific first."""
        if (kind, name) in self.names:
            yield self.names[kind, name]
        for prefix, rule in self.prefixes.get(kind, ()):
            if name.startswith(prefix):
                yield rule
        if self.everything is not None:
            yield self.everything

    def rules(self, kind: ResourceKind | None = None) -> Iterator[_Rule]:
        """Yield what concerns a kind of resource, or all rules."""
        yield from (rule for (of, _), rule in self.names.items() if kind in (None, of))
        yield from (rule for of, rules in self.prefixes.items() if kind in (None, of) for _, rule in rules)
        if self.everything is not None:
            yield self.everything


class Acl:
    """The entries of a token in a form that is compared fast."""

    __slots__ = ("_policies", "depends_on_host")

    def __init__(self, entries: Collection[AclEntry]) -> None:
        self._policies = [
            _Policy(entry for entry in entries if entry.policy == policy) for policy in _POLICIES.values()
        ]
        self.depends_on_host = any(entry.addresses for entry in entries)
        """Whether entries apply to some peers only."""

    def allows(self, kind: ResourceKind, name: str, actions: Set[AclAction], host: str) -> bool:
        """Return whether it allows a peer one of some actions on a resource. `EVERY_NAME` stands for all names."""
        if name == EVERY_NAME and any(
            rule.is_denied and rule.applies(actions, host) for policy in self._policies for rule in policy.rules(kind)
        ):
            return False
        for policy in self._policies:
            for rule in policy.matching(kind, name):
                if rule.applies(actions, host):
                    return not rule.is_denied
        return False

    def allows_anything(self, actions: Set[AclAction], host: str) -> bool:
        """Return whether it allows a peer one of some actions on anything at all."""
        return any(
            not rule.is_denied and rule.applies(actions, host) for policy in self._policies for rule in policy.rules()
        )


# -- the entries of a token -------------------------------------------------------------------------------------------


def is_super(token: Token) -> bool:
    """Return whether the token may administer everything."""
    return token.kind == "a" and is_unlimited(token)


def is_limited_by_acl(token: Token) -> bool:
    """Return whether its entries decide what the token may do, instead of its type and patterns."""
    return token.acl is not None and not is_super(token)


def entries_of(token: Token) -> tuple[AclEntry, ...]:
    """Return the entries of a token, or those that allow what its type and patterns allow."""
    if token.acl is not None:
        return token.acl
    if is_super(token):
        return ()
    topics, groups = _TOPIC_ACTIONS[token.kind], _GROUP_ACTIONS[token.kind]
    return tuple(
        AclEntry(resource=f"{kind}:{pattern}", actions=actions, addresses=token.addresses)
        for kind, patterns, actions in (("Topic", token.topics, topics), ("Group", token.groups, groups))
        for pattern in patterns
        if actions
    )


def with_entries(token: Token, entries: Iterable[AclEntry]) -> Token:
    """Return the token with these entries."""
    found = tuple(entries)
    if len(found) > ENTRIES_MAX:
        raise Refused(
            f"user {token.name!r} would have {len(found)} ACL entries of {ENTRIES_MAX} at most: use prefixes "
            "(Topic:orders-*) instead of single names"
        )
    if is_super(token):
        return msgspec.structs.replace(token, acl=found)
    # Without patterns: a broker that does not know entries allows nothing, instead of everything.
    return msgspec.structs.replace(token, kind="p", topics=(), groups=(), addresses=(), acl=found)


def as_super(token: Token) -> Token:
    """Return the token as that of a Super user. It keeps its entries, in case it becomes a Normal one again."""
    if is_super(token):
        return token
    return msgspec.structs.replace(token, kind="a", topics=(EVERY_NAME,), groups=(EVERY_NAME,), acl=entries_of(token))


def as_normal(token: Token) -> Token:
    """Return the token as that of a Normal user, who may do what its entries allow."""
    if not is_super(token):
        return token
    return msgspec.structs.replace(token, kind="p", topics=(), groups=(), acl=entries_of(token))


def merge_entries(entries: Iterable[AclEntry], changes: Iterable[AclEntry]) -> tuple[AclEntry, ...]:
    """Return the entries with those of the same policy and resource replaced, and new ones at the end."""
    merged = {(entry.policy, entry.resource): entry for entry in entries}
    merged |= {(entry.policy, entry.resource): entry for entry in changes}
    return tuple(merged.values())


# -- texts ------------------------------------------------------------------------------------------------------------


def parse_subject(subject: str | None) -> str:
    """Return the name of the user in `User:name`."""
    kind, _, name = (subject or "").partition(":")
    if kind.lower() != _SUBJECT_KIND.lower():
        raise Refused(f"{(subject or '')[:SHOWN_CHARS_MAX]!r} is no subject of an ACL: use {_SUBJECT_KIND}:name")
    return validate_token_name(name)


def format_subject(name: str) -> str:
    """Return the subject of a user."""
    return f"{_SUBJECT_KIND}:{name}"


def parse_policy(policy: str | None) -> AclPolicy:
    """Return the policy; without a text, Custom."""
    found = _POLICIES.get((policy or "Custom").lower())
    if found is None:
        raise Refused(f"{(policy or '')[:SHOWN_CHARS_MAX]!r} is no type of policy: use Custom or Default")
    return found


def parse_resource(resource: str | None) -> str:
    """Return a resource in its normal form."""
    text = (resource or "").strip()
    if text == EVERY_NAME:
        return text
    kind, _, pattern = text.partition(":")
    found = _KINDS.get(kind.lower())
    if found is None or not pattern:
        raise Refused(
            f"{text[:SHOWN_CHARS_MAX]!r} is no resource: use Topic:name, Group:name or Cluster:name, with a name, a "
            "prefix and * (Topic:orders-*) or *; or * for everything"
        )
    if found == "Topic":
        validate_pattern(pattern, "topic")
    elif found == "Group":
        validate_pattern(pattern, "group")
    elif len(pattern) > _CLUSTER_CHARS_MAX or not pattern.isprintable() or EVERY_NAME in pattern[:-1]:
        raise Refused(f"{pattern[:SHOWN_CHARS_MAX]!r} is no pattern of clusters: use a name, a prefix and *, or *")
    return f"{found}:{pattern}"


def parse_actions(actions: Iterable[str] | None, resource: str) -> tuple[AclAction, ...]:
    """Return actions in their order, without duplicates."""
    found: dict[AclAction, None] = {}
    for text in actions or ():
        action = _ACTIONS.get(text.strip().lower())
        if action is None:
            raise Refused(f"{text[:SHOWN_CHARS_MAX]!r} is no action of an ACL: use {', '.join(AclAction)}")
        found[action] = None
    if not found:
        raise Refused(f"the ACL entry for {resource} has no action: use {', '.join(AclAction)}")
    return tuple(found)


def parse_entry(
    policy: str | None,
    resource: str | None,
    actions: Iterable[str] | None,
    addresses: Iterable[str] | None,
    decision: str | None,
) -> AclEntry:
    """Return an entry from the texts of a request; raise `Refused`, with the value, if one of them is not valid."""
    parsed = parse_resource(resource)
    decided = _DECISIONS.get((decision or "").lower())
    if decided is None:
        raise Refused(
            f"{(decision or '')[:SHOWN_CHARS_MAX]!r} is no decision for the ACL entry of {parsed}: use Allow or Deny"
        )
    return AclEntry(
        resource=parsed,
        actions=parse_actions(actions, parsed),
        decision=decided,
        addresses=parse_source_addresses(addresses),
        policy=parse_policy(policy),
    )

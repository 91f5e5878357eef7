"""Authentication and authorization: requests are signed with a token, and its permissions decide what it may send.

Requests are checked if the setting `auth` is on.

1. A request reaches its handler only if it is signed with a known token that is not revoked and whose permissions
   allow this request, and it comes from an address that the token may be used from. Refusals name the reason, contain
   no secret, and do not tell whether a name exists.
2. Only a request with a valid signature is told that its token is revoked or not permitted. No refusal tells the
   networks of a token: they would help who has stolen its secret.
3. `requirements` has what each request needs; the rules are in `model/access`. For users of RocketMQ, whose ACL
   decides, it is `acl_requirements`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pydantic import SecretStr

from sparrow.broker.access.acl_requirements import acl_actions, find_denied_name, find_denied_use, needs_super_user
from sparrow.broker.access.requirements import EVERYTHING, REQUIREMENTS, NamedUse, Requirement
from sparrow.model.access.acl import Acl, entries_of, is_limited_by_acl
from sparrow.model.access.permissions import (
    GROUP_TOPIC_PREFIXES,
    TokenAction,
    has_action,
    is_allowed,
    is_send_allowed,
    is_unlimited,
)
from sparrow.model.access.source_addresses import is_source_allowed
from sparrow.model.access.token import EVERY_NAME, TOKEN_KIND_LABELS, TOKEN_NAME_CHARS_MAX, Token
from sparrow.model.protocol import TRACE_TOPIC
from sparrow.net.access.audit_log import AccessRefused, RefusalCause
from sparrow.net.access.signatures import is_signed_with
from sparrow.wire import bodies
from sparrow.wire.bodies import HeartbeatData
from sparrow.wire.codes import RequestCode, request_code_name
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.signing import ACCESS_KEY_FIELD, COUNT_FIELD, SIGNATURE_FIELD, Challenge

INTERNAL_PRODUCER_PREFIXES = ("CLIENT_INNER_PRODUCER", "_INNER_TRACE_PRODUCER")
"""Prefixes of the producer groups in heartbeats of Java's consumers: the client's internal one, and the one for traces.
"""
TOKENS_CACHED_MAX, REQUESTS_CACHED_MAX, NAMES_CACHED_CHARS_MAX = 10_000, 256, 255
"""Limits of the memory of allowed requests: tokens, requests of a token, and characters of the names in one."""
HOSTS_CACHED_MAX = 256
"""Addresses of peers that are kept for a token with source addresses."""


class _AllowedRequests(NamedTuple):
    """What was allowed to a token."""

    token: Token
    requests: set[tuple[int, str | None, str | None, str]]
    """Code, topic and group of requests that name them in their header, and the peer if entries have addresses."""
    hosts: set[str]
    """Peers in the networks of the token, if it is limited to some."""
    acl: Acl | None
    """What decides, if it is a user with an ACL."""


class RequestAuthorizer:
    """Checks requests against the current tokens."""

    def __init__(
        self,
        tokens: Mapping[str, Token],
        admins: Mapping[str, SecretStr],
        *,
        requires_challenge: bool = False,
        cluster: str = "",
    ) -> None:
        """Keep the tokens by reference. `requires_challenge`: refuse RocketMQ's signatures, which can be replayed.

        `tokens` is read at every request, so that a revocation takes effect with the next one. `cluster` is the name
        that ACLs know the broker by.
        """
        self._tokens, self._requires_challenge, self._cluster = tokens, requires_challenge, cluster
        self._admins = {name: secret_key.get_secret_value() for name, secret_key in admins.items()}
        self._allowed: dict[str, _AllowedRequests] = {}
        self._nobodys_secret_key = secrets.token_hex()
        """Unknown access keys are compared with it: they get the same answer as a wrong secret, in the same time."""

    def check(self, command: RemotingCommand, challenge: Challenge | None = None, host: str = "") -> str:
        """Return the access key of a request, or raise `NotPermitted` if it may not be sent.

        `challenge` is the one of its connection, `host` the address of the peer without its port.
        """
        fields = command.fields()
        name = fields.get(ACCESS_KEY_FIELD)
        if not name or SIGNATURE_FIELD not in fields:
            raise _refusal(
                command,
                "unsigned",
                "the request is not signed, and this broker requires a token: set "
                "the client's access key and secret key",
            )
        token = None
        secret_key = self._admins.get(name)
        if secret_key is None:
            token = self._tokens.get(name)
            secret_key = token.secret_key if token is not None else self._nobodys_secret_key
        requires_challenge = self._requires_challenge
        if not is_signed_with(secret_key, command, fields, challenge, requires_challenge=requires_challenge):
            raise _refusal(
                command,
                "signature",
                f"the signature is not that of a token {name[:TOKEN_NAME_CHARS_MAX]!r}: check the access key and the "
                "secret key"
                if not requires_challenge or COUNT_FIELD in fields
                else "this broker accepts only signatures over a challenge (broker.auth_requires_challenge), which "
                "clients of Sparrow from 0.3 on make",
            )
        if token is not None:
            self._check_permission(token, command, fields, host)
        return name

    def _check_permission(self, token: Token, command: RemotingCommand, fields: Mapping[str, str], host: str) -> None:
        """Check what a token may do. Requests with the same names as an earlier one are not compared again."""
        known = self._known(token)
        if token.addresses and host not in known.hosts:
            _check_source(token, command, host)
            if len(known.hosts) >= HOSTS_CACHED_MAX:
                known.hosts.clear()
            known.hosts.add(host)
        need = REQUIREMENTS.get(command.code, EVERYTHING)
        topic, group = fields.get(need.topic or ""), fields.get(need.group or "")
        request = (command.code, topic, group, host if known.acl is not None and known.acl.depends_on_host else "")
        if request in known.requests:
            return
        _check_state(token, command)
        if known.acl is not None:
            _check_acl(token.name, known.acl, command, fields, host, self._cluster)
        else:
            _check_token(token, command, fields)
        if need.names is None and len(topic or "") + len(group or "") <= NAMES_CACHED_CHARS_MAX:
            if len(known.requests) >= REQUESTS_CACHED_MAX:
                known.requests.clear()
            known.requests.add(request)

    def _known(self, token: Token) -> _AllowedRequests:
        """Return what was allowed to a token so far."""
        known = self._allowed.get(token.name)
        if known is None or known.token is not token:  # it is new, or was changed or revoked
            if len(self._allowed) >= TOKENS_CACHED_MAX:
                self._allowed.clear()
            acl = Acl(entries_of(token)) if is_limited_by_acl(token) else None
            known = self._allowed[token.name] = _AllowedRequests(token, set(), set(), acl)
        return known

    def may(
        self,
        command: RemotingCommand,
        action: TokenAction,
        topic: str | None = None,
        group: str | None = None,
        host: str = "",
    ) -> bool:
        """Return whether the token of a request may take an action on a topic that only its handler knows.

        The signature of the request was checked before. `host` is the address of the peer without its port.
        """
        name = command.fields().get(ACCESS_KEY_FIELD, "")
        if name in self._admins:
            return True
        token = self._tokens.get(name)
        if token is None:
            return False
        acl = self._known(token).acl
        if acl is not None:
            return find_denied_name(acl, acl_actions(command.code, (action,)), NamedUse(topic, group), host) is None
        return is_allowed(token, action, topic, group)


def _check_source(token: Token, command: RemotingCommand, host: str) -> None:
    if not is_source_allowed(token.addresses, host):
        raise _refusal(
            command,
            "address",
            f"token {token.name!r} may not be used from {host.strip('[]') or 'an unknown address'}: use it from one of "
            "its source addresses, or let an administrator change them",
        )


def _check_state(token: Token, command: RemotingCommand) -> None:
    if token.is_revoked:
        raise _refusal(command, "revoked", f"token {token.name!r} is revoked: use another one")
    if token.is_disabled:
        raise _refusal(
            command, "disabled", f"token {token.name!r} is disabled: use another one, or let an administrator enable it"
        )


def _check_acl(
    name: str, acl: Acl, command: RemotingCommand, fields: Mapping[str, str], host: str, cluster: str
) -> None:
    if needs_super_user(command.code):
        raise _refusal(command, "permission", f"user {name!r} is no Super user, and this request needs one: ask one")
    need = REQUIREMENTS[command.code]
    denied = find_denied_use(acl, command.code, need, _names(need, command, fields), host, cluster)
    if denied is not None:
        raise _refusal(
            command,
            "permission",
            f"the ACL of user {name!r} does not allow {denied} from this address: an administrator can change it",
        )


def _check_token(token: Token, command: RemotingCommand, fields: Mapping[str, str]) -> None:
    need = REQUIREMENTS.get(command.code, EVERYTHING)
    if need.sends:
        topic = fields.get(need.topic or "", "")
        if topic != TRACE_TOPIC and not is_send_allowed(token, topic):
            raise _refusal(command, "permission", _why_not_send(token, topic))
        return
    action = next((action for action in need.actions if has_action(token, action)), None)
    if action is None:
        raise _refusal(command, "permission", _why_not_at_all(token, need))
    if command.code == RequestCode.HEART_BEAT:
        _check_kinds_of_groups(token, command)
    if is_unlimited(token) and need.actions != _PUBLISH_ONLY:
        return
    for topic_used, group_used in _names(need, command, fields):
        if not is_allowed(token, action, topic_used, group_used):
            raise _refusal(command, "permission", _why_not(token, action, topic_used, group_used))


_PUBLISH_ONLY = (TokenAction.PUBLISH,)
"""Requests that send, and so must not name the topic of a group, whatever the patterns of the token."""


def _names(need: Requirement, command: RemotingCommand, fields: Mapping[str, str]) -> Iterable[NamedUse]:
    if need.names is not None:
        return need.names(command, fields)
    topic = fields.get(need.topic, "") if need.topic is not None else None
    group = fields.get(need.group, "") if need.group is not None else None
    return (NamedUse(topic, group),)


def _check_kinds_of_groups(token: Token, command: RemotingCommand) -> None:
    """Check the groups in a heartbeat: a token may only join groups of its own kind."""
    heartbeat = bodies.read_request(HeartbeatData, command.body)
    consumers = [consumer.group_name for consumer in heartbeat.consumer_data_set]
    if consumers and not has_action(token, TokenAction.SUBSCRIBE):
        raise _refusal(
            command,
            "permission",
            f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and {consumers[0]!r} is a consumer group",
        )
    producers = [
        one.group_name
        for one in heartbeat.producer_data_set
        if not one.group_name.startswith(INTERNAL_PRODUCER_PREFIXES)
    ]
    if producers and not has_action(token, TokenAction.PUBLISH):
        raise _refusal(
            command,
            "permission",
            f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and {producers[0]!r} is a producer group",
        )


# -- reasons ----------------------------------------------------------------------------------------------------------

_ADMINS = "one of the broker's admin tokens, or an administrator's for the names in it"
_VERBS = {
    TokenAction.PUBLISH: "publish to",
    TokenAction.SUBSCRIBE: "subscribe to",
    TokenAction.ADMINISTER: "administer",
}


def _why_not_send(token: Token, topic: str) -> str:
    if topic.startswith(GROUP_TOPIC_PREFIXES):
        return _why_not(
            token,
            TokenAction.SUBSCRIBE if has_action(token, TokenAction.SUBSCRIBE) else TokenAction.PUBLISH,
            topic,
            None,
        )
    if has_action(token, TokenAction.PUBLISH):
        return _why_not(token, TokenAction.PUBLISH, topic, None)
    return f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and consumers may not send messages"


def _why_not_at_all(token: Token, need: Requirement) -> str:
    label = {TokenAction.PUBLISH: "a producer's token", TokenAction.SUBSCRIBE: "a consumer's token"}.get(
        need.actions[0], _ADMINS
    )
    return f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and this request needs {label}"


def _why_not(token: Token, action: TokenAction, topic: str | None, group: str | None) -> str:
    """Return why a name is refused. The text does not depend on whether the name exists."""
    if action is TokenAction.PUBLISH and topic is not None and topic.startswith(GROUP_TOPIC_PREFIXES):
        rule = "only consumers may send to the topics of a group"
        return f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and {rule}"
    if topic == group == EVERY_NAME:
        return f"token {token.name!r} is limited to some topics and groups, and this request needs {_ADMINS}"
    named = [
        f"{what} {name[:TOKEN_NAME_CHARS_MAX]!r}" if name != EVERY_NAME else f"every {what}"
        for what, name in (("topic", topic), ("group", group))
        if name is not None
    ]
    return (
        f"token {token.name!r} has no permission to {_VERBS[action]} {' with '.join(named) or 'anything'}; it is for "
        f"topics {', '.join(token.topics)} and groups {', '.join(token.groups)}"
    )


def _refusal(command: RemotingCommand, cause: RefusalCause, why: str) -> AccessRefused:
    return AccessRefused(request_code_name(command.code), why, cause=cause)

"""The requests of administrators that the audit log has: which they are, and what they are about."""

from __future__ import annotations

from sparrow.broker.access.requirements import EVERYTHING, READ_CODES, REQUIREMENTS
from sparrow.model.access.permissions import TokenAction
from sparrow.model.errors import BadRequest
from sparrow.net.access.audit_log import name_targets
from sparrow.wire import bodies
from sparrow.wire.bodies import AclInfo, ChangeToken, RevokeToken, UserState
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand

AUDITED_CODES = frozenset(
    code for code, need in REQUIREMENTS.items() if need.actions == (TokenAction.ADMINISTER,) and code not in READ_CODES
)
"""The requests of administrators that change something; the audit log has them."""

USER_AND_ACL_CODES = frozenset(
    {
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)


def describe_targets(command: RemotingCommand) -> str:
    """Return the names that a request is about. Secrets in its body are not read."""
    need = REQUIREMENTS.get(command.code, EVERYTHING)
    try:
        if command.code in (RequestCode.ISSUE_TOKEN, RequestCode.CHANGE_TOKEN):
            token = bodies.read_request(ChangeToken, command.body)
            return name_targets(
                [("token", token.name), ("type", token.type)]
                + [("topics", pattern) for pattern in token.topics or ["*"]]
                + [("groups", pattern) for pattern in token.groups or ["*"]]
                + [("from", address) for address in token.addresses or ["anywhere"]]
            )
        if command.code == RequestCode.REVOKE_TOKEN:
            return name_targets([("token", bodies.read_request(RevokeToken, command.body).name)])
        if command.code in USER_AND_ACL_CODES:
            return name_targets(_user_or_acl(command))
        uses = [] if need.names is None or need is EVERYTHING else list(need.names(command, command.fields()))
    except BadRequest:
        return "its body cannot be read"
    fields = command.fields()
    named = [("topic", use.topic) for use in uses] + [("group", use.group) for use in uses]
    named += [("topic", fields.get(need.topic or "")), ("group", fields.get(need.group or ""))]
    return name_targets([(what, name) for what, name in dict.fromkeys(named) if name])


def _user_or_acl(command: RemotingCommand) -> list[tuple[str, str]]:
    fields = command.fields()
    named = [(what, fields[field]) for what, field in _NAMED_FIELDS if fields.get(field)]
    if command.code in (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER):
        state = bodies.read_request(UserState, command.body)
        named += [("type", state.user_type or ""), ("status", state.user_status or "")]
    elif command.code != RequestCode.AUTH_DELETE_USER and command.body:
        named += [
            ("entry", f"{entry.decision} {entry.actions} on {entry.resource} from {entry.source_ips or 'anywhere'}")
            for policy in bodies.read_request(AclInfo, command.body).policies
            for entry in policy.entries
        ]
    return [(what, name) for what, name in named if name]


_NAMED_FIELDS = (("user", "username"), ("subject", "subject"), ("resource", "resource"))

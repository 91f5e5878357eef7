"""The requests of administrators that the audit log has: which they are, and what they are about."""

from __future__ import annotations

from sparrow.broker.access.requirements import EVERYTHING, REQUIREMENTS
from sparrow.model.errors import BadRequest
from sparrow.model.permissions import TokenAction
from sparrow.net.audit_log import name_targets
from sparrow.wire import bodies
from sparrow.wire.bodies import ChangeToken, RevokeToken
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand

_READS = frozenset(
    {
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.LIST_DELAYED_MESSAGES,
        RequestCode.LIST_HALF_MESSAGES,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.LIST_TOKENS,
    }
)
AUDITED_CODES = frozenset(
    code for code, need in REQUIREMENTS.items() if need.actions == (TokenAction.ADMINISTER,) and code not in _READS
)
"""The requests of administrators that change something; the audit log has them."""


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
        uses = [] if need.names is None or need is EVERYTHING else list(need.names(command, command.fields()))
    except BadRequest:
        return "its body cannot be read"
    fields = command.fields()
    named = [("topic", use.topic) for use in uses] + [("group", use.group) for use in uses]
    named += [("topic", fields.get(need.topic or "")), ("group", fields.get(need.group or ""))]
    return name_targets([(what, name) for what, name in dict.fromkeys(named) if name])

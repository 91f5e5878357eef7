"""The table from request codes to the handlers of a broker."""

from __future__ import annotations

from collections.abc import Mapping

from sparrow.broker.access.audited_requests import AUDITED_CODES, describe_targets
from sparrow.broker.access.authorizer import RequestAuthorizer
from sparrow.broker.admin import (
    acls,
    connections,
    consumer_control,
    consumer_progress,
    groups,
    runtime,
    tokens,
    topics,
    users,
)
from sparrow.broker.catalog import offsets, queue_bounds, queue_locks
from sparrow.broker.clients import heartbeats
from sparrow.broker.consume import resend, retry
from sparrow.broker.consume.follower_pull import FollowerPullHandler
from sparrow.broker.consume.pull import PullHandler
from sparrow.broker.context import Broker
from sparrow.broker.delay import delayed_list, recall
from sparrow.broker.pop import ack, assignment, peek
from sparrow.broker.pop.ack import AckHandler
from sparrow.broker.pop.pop import PopHandler
from sparrow.broker.produce import reply, staging
from sparrow.broker.produce.send import SendHandler
from sparrow.broker.query import messages
from sparrow.broker.transactions import half_message_list
from sparrow.broker.transactions.end_transaction import EndTransactionHandler
from sparrow.model.errors import NotLeader
from sparrow.net.access.audit_log import AuditLog
from sparrow.net.access.guarded_dispatcher import GuardedRequestDispatcher
from sparrow.net.dispatcher import (
    InlineHandler,
    RequestContext,
    RequestDispatcher,
    RequestHandler,
)
from sparrow.net.request_meter import RequestMeter
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import FRAME_BYTES_MAX
from sparrow.wire.headers import Header

_CAPABILITIES = (
    heartbeats,
    queue_locks,
    offsets,
    messages,
    retry,
    half_message_list,
    recall,
    delayed_list,
    ack,
    assignment,
    peek,
    reply,
    resend,
    queue_bounds,
    staging,
)
_ADMINISTRATION = (topics, groups, consumer_progress, connections, runtime, consumer_control, tokens, users, acls)

HANDLERS: dict[int, RequestHandler[Broker]] = {
    code: handler for part in (*_CAPABILITIES, *_ADMINISTRATION) for code, handler in part.HANDLERS.items()
}
INLINE_HANDLERS = (SendHandler, EndTransactionHandler, PullHandler, PopHandler, AckHandler)

_MESSAGE_REQUESTS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.STAGE_RECORDS,
    RequestCode.APPEND_ONCE,
)
_BODY_LIMITS: dict[int, int] = dict.fromkeys(_MESSAGE_REQUESTS, FRAME_BYTES_MAX)
"""Requests whose body may be larger than others: they carry messages, whose own limit counts."""

FOLLOWER_CODES = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.QUERY_QUEUE_BOUNDS,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.LIST_TOKENS,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    }
)
"""What a follower serves beside pulls: it reads, and notes which clients are there."""


async def _refuse_at_follower(_: Header, broker: Broker, _call: RequestContext) -> None:
    # RocketMQ's clients repeat a send after this code (14), and find the leader with their next route.
    raise NotLeader(f"broker {broker.broker_id} of {broker.name} is a follower: send to broker 0")


def make_follower_dispatcher(broker: Broker) -> RequestDispatcher[Broker]:
    """Return the request dispatcher of a follower. Requests that need the leader are refused."""
    refused = [*HANDLERS, *(code for part in INLINE_HANDLERS for code in part(broker).handlers())]
    handlers: dict[int, RequestHandler[Broker]] = dict.fromkeys(refused, _refuse_at_follower)
    handlers |= {code: HANDLERS[code] for code in FOLLOWER_CODES}
    return _guarded(broker, handlers, FollowerPullHandler(broker).handlers())


def make_dispatcher(broker: Broker) -> RequestDispatcher[Broker]:
    """Return the request dispatcher of a broker.

    Sends, ends of transactions, pulls, pops and acknowledgements are inline handlers: functions that need no task.
    """
    plain = {code: handler for part in INLINE_HANDLERS for code, handler in part(broker).handlers().items()}
    dispatcher = _guarded(broker, HANDLERS, plain)
    broker.requests = dispatcher.meter = RequestMeter()
    return dispatcher


def _guarded(
    broker: Broker, handlers: Mapping[int, RequestHandler[Broker]], plain: Mapping[int, InlineHandler]
) -> RequestDispatcher[Broker]:
    if not broker.settings.auth:
        return RequestDispatcher(broker, handlers, plain, body_limits=_BODY_LIMITS)
    guard = broker.authorizer = RequestAuthorizer(
        broker.store.tokens.all_nowait(),
        broker.settings.admin_tokens,
        requires_challenge=broker.settings.auth_requires_challenge,
        cluster=broker.settings.cluster,
    )
    audit = AuditLog(AUDITED_CODES, describe_targets)
    return GuardedRequestDispatcher(broker, handlers, plain, check=guard.check, audit=audit, body_limits=_BODY_LIMITS)

"""The table from request codes to the handlers of a broker."""

from __future__ import annotations

from sparrow.broker.admin import connections, consumer_control, consumer_progress, groups, runtime, tokens, topics
from sparrow.broker.auth import RequestAuthorizer
from sparrow.broker.catalog import offsets, queue_bounds, queue_locks
from sparrow.broker.clients import heartbeats
from sparrow.broker.consume import resend, retry
from sparrow.broker.consume.pull import PullHandler
from sparrow.broker.context import Broker
from sparrow.broker.delay import recall
from sparrow.broker.pop import ack, assignment, peek
from sparrow.broker.pop.ack import AckHandler
from sparrow.broker.pop.pop import PopHandler
from sparrow.broker.produce import reply, staging
from sparrow.broker.produce.send import SendHandler
from sparrow.broker.query import messages
from sparrow.broker.transactions import end_transaction
from sparrow.net.dispatcher import GuardedRequestDispatcher, RequestDispatcher, RequestHandler

_CAPABILITIES = (
    heartbeats,
    queue_locks,
    offsets,
    messages,
    retry,
    end_transaction,
    recall,
    ack,
    assignment,
    peek,
    reply,
    resend,
    queue_bounds,
    staging,
)
_ADMINISTRATION = (topics, groups, consumer_progress, connections, runtime, consumer_control, tokens)

HANDLERS: dict[int, RequestHandler[Broker]] = {
    code: handler for part in (*_CAPABILITIES, *_ADMINISTRATION) for code, handler in part.HANDLERS.items()
}


def make_dispatcher(broker: Broker) -> RequestDispatcher[Broker]:
    """Return the request dispatcher of a broker.

    Sends, pulls, pops and acknowledgements are inline handlers: plain functions that need no task.
    """
    parts = (SendHandler(broker), PullHandler(broker), PopHandler(broker), AckHandler(broker))
    plain = {code: handler for part in parts for code, handler in part.handlers().items()}
    if not broker.settings.auth:
        return RequestDispatcher(broker, HANDLERS, plain)
    guard = RequestAuthorizer(broker.store.tokens.all_nowait(), broker.settings.admin_tokens)
    return GuardedRequestDispatcher(broker, HANDLERS, plain, check=guard.check)

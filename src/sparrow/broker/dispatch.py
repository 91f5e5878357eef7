"""One table of everything a broker can be asked."""

from __future__ import annotations

from sparrow.broker import ending, heads, locks, membership, offsets, query, reply, resend, retry, staging
from sparrow.broker.admin import connections, control, groups, progress, runtime, tokens, topics
from sparrow.broker.auth import Guard
from sparrow.broker.context import Broker
from sparrow.broker.pop import acks, assignment, looking
from sparrow.broker.pop.acks import Acknowledging
from sparrow.broker.pop.serving import Popping
from sparrow.broker.pull import Pulling
from sparrow.broker.send import Sending
from sparrow.net.serving import GuardedServing, Handler, Serving

_CAPABILITIES = (
    membership,
    locks,
    offsets,
    query,
    retry,
    ending,
    acks,
    assignment,
    looking,
    reply,
    resend,
    heads,
    staging,
)
_ADMINISTRATION = (topics, groups, progress, connections, runtime, control, tokens)

HANDLERS: dict[int, Handler[Broker]] = {
    code: handler for part in (*_CAPABILITIES, *_ADMINISTRATION) for code, handler in part.HANDLERS.items()
}


def serving(broker: Broker) -> Serving[Broker]:
    """Serves this broker. Sends, pulls, pops and acks are plain functions; they are what a broker does all day."""
    parts = (Sending(broker), Pulling(broker), Popping(broker), Acknowledging(broker))
    plain = {code: handler for part in parts for code, handler in part.handlers().items()}
    if not broker.settings.auth:
        return Serving(broker, HANDLERS, plain)
    guard = Guard(broker.store.tokens_now(), broker.settings.admin_tokens)
    return GuardedServing(broker, HANDLERS, plain, check=guard.check)

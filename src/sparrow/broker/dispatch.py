"""One table of everything a broker can be asked."""

from __future__ import annotations

from sparrow.broker import ending, locks, membership, offsets, query, reply, resend, retry
from sparrow.broker.admin import connections, control, groups, progress, runtime, tokens, topics
from sparrow.broker.auth import Guard
from sparrow.broker.context import Broker, NoPops
from sparrow.broker.pop import acks, assignment, looking
from sparrow.broker.pop.acks import Acknowledging
from sparrow.broker.pop.serving import Popping
from sparrow.broker.pull import Pulling
from sparrow.broker.send import Sending
from sparrow.net.serving import GuardedServing, Handler, Serving, failure
from sparrow.wire.codes import Code

_CAPABILITIES = (membership, locks, offsets, query, retry, ending, acks, assignment, looking, reply, resend)
_ADMINISTRATION = (topics, groups, progress, connections, runtime, control, tokens)

POP_CODES = (Code.POP_MESSAGE, Code.NOTIFICATION, Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE)

HANDLERS: dict[int, Handler[Broker]] = {
    code: handler for part in (*_CAPABILITIES, *_ADMINISTRATION) for code, handler in part.HANDLERS.items()
}


def serving(broker: Broker) -> Serving[Broker]:
    """Serves this broker. Sends, pulls, pops and acks are plain functions; they are what a broker does all day."""
    plain = {**Sending(broker).handlers(), **Pulling(broker).handlers()}
    if broker.pops_if_any is not None:
        plain |= {**Popping(broker).handlers(), **Acknowledging(broker).handlers()}
    else:
        plain |= dict.fromkeys(POP_CODES, lambda command, channel: failure(command, NoPops()))
    if not broker.settings.auth:
        return Serving(broker, HANDLERS, plain)
    guard = Guard(broker.store.tokens_now(), broker.settings.admin_tokens)
    return GuardedServing(broker, HANDLERS, plain, check=guard.check)

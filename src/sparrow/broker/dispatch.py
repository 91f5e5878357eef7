"""One table of everything a broker can be asked."""

from __future__ import annotations

from sparrow.broker import ending, locks, membership, offsets, query, reply, retry
from sparrow.broker.admin import connections, control, groups, progress, runtime, topics
from sparrow.broker.context import Broker
from sparrow.broker.pop import acks, assignment, looking
from sparrow.broker.pop.acks import Acknowledging
from sparrow.broker.pop.serving import Popping
from sparrow.broker.pull import Pulling
from sparrow.broker.send import Sending
from sparrow.net.serving import Handler, Serving

_CAPABILITIES = (membership, locks, offsets, query, retry, ending, acks, assignment, looking, reply)
_ADMINISTRATION = (topics, groups, progress, connections, runtime, control)

HANDLERS: dict[int, Handler[Broker]] = {
    code: handler for part in (*_CAPABILITIES, *_ADMINISTRATION) for code, handler in part.HANDLERS.items()
}


def serving(broker: Broker) -> Serving[Broker]:
    """Serves this broker. Sends, pulls, pops and acks are plain functions; they are what a broker does all day."""
    all_day = (Sending(broker), Pulling(broker), Popping(broker), Acknowledging(broker))
    return Serving(broker, HANDLERS, {code: serve for part in all_day for code, serve in part.handlers().items()})

"""One table of everything a broker can be asked."""

from __future__ import annotations

from sparrow.broker import ending, locks, membership, offsets, query, retry
from sparrow.broker.admin import connections, control, groups, progress, runtime, topics
from sparrow.broker.context import Broker
from sparrow.broker.pull import Pulling
from sparrow.broker.send import Sending
from sparrow.net.serving import Handler, Serving

_CAPABILITIES = (membership, locks, offsets, query, retry, ending)
_ADMINISTRATION = (topics, groups, progress, connections, runtime, control)

HANDLERS: dict[int, Handler[Broker]] = {
    code: handler for part in (*_CAPABILITIES, *_ADMINISTRATION) for code, handler in part.HANDLERS.items()
}


def serving(broker: Broker) -> Serving[Broker]:
    """Serves this broker. Sends and pulls are plain functions; they are what a broker does all day."""
    return Serving(broker, HANDLERS, {**Sending(broker).handlers(), **Pulling(broker).handlers()})

"""The table of request handlers of a name server."""

from __future__ import annotations

from sparrow.nameserver import config, registration, route_lookup
from sparrow.nameserver.context import NameServerContext
from sparrow.net.dispatcher import RequestDispatcher, RequestHandler
from sparrow.wire.codes import RequestCode

HANDLERS: dict[int, RequestHandler[NameServerContext]] = {
    code: handler for part in (registration, route_lookup, config) for code, handler in part.HANDLERS.items()
}


def make_dispatcher(context: NameServerContext) -> RequestDispatcher[NameServerContext]:
    """Return the dispatcher of a name server. Route requests, the most frequent ones, have an inline handler."""
    return RequestDispatcher(
        context, HANDLERS, {RequestCode.GET_ROUTEINFO_BY_TOPIC: route_lookup.route_handler(context)}
    )

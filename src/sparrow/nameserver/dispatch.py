"""One table of everything a name server can be asked."""

from __future__ import annotations

from sparrow.nameserver import config, registration, route_lookup
from sparrow.nameserver.context import NameServerContext
from sparrow.net.dispatcher import RequestDispatcher, RequestHandler
from sparrow.wire.codes import RequestCode

HANDLERS: dict[int, RequestHandler[NameServerContext]] = {
    code: handler for part in (registration, route_lookup, config) for code, handler in part.HANDLERS.items()
}


def serving(naming: NameServerContext) -> RequestDispatcher[NameServerContext]:
    """Serves this name server. Routes are asked for by a plain function; they are most of what it does."""
    return RequestDispatcher(naming, HANDLERS, {RequestCode.GET_ROUTEINFO_BY_TOPIC: route_lookup.route_handler(naming)})

"""The table of request handlers of a name server."""

from __future__ import annotations

from sparrow.nameserver import config, registration, route_lookup
from sparrow.nameserver.auth import AUDITED_CODES, AdminGuard
from sparrow.nameserver.context import NameServerContext
from sparrow.net.access.audit_log import AuditLog
from sparrow.net.access.guarded_dispatcher import GuardedRequestDispatcher
from sparrow.net.dispatcher import InlineHandler, RequestDispatcher, RequestHandler
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import FRAME_BYTES_MAX

HANDLERS: dict[int, RequestHandler[NameServerContext]] = {
    code: handler for part in (registration, route_lookup, config) for code, handler in part.HANDLERS.items()
}


def make_dispatcher(context: NameServerContext) -> RequestDispatcher[NameServerContext]:
    """Return the dispatcher of a name server. Route requests, the most frequent ones, have an inline handler."""
    settings = context.settings
    plain: dict[int, InlineHandler] = {RequestCode.GET_ROUTEINFO_BY_TOPIC: route_lookup.route_handler(context)}
    body_limits: dict[int, int] = {RequestCode.REGISTER_BROKER: FRAME_BYTES_MAX}  # all topics of a broker
    if not settings.auth:
        return RequestDispatcher(context, HANDLERS, plain, body_limits=body_limits)
    guard = AdminGuard(settings.admin_tokens, requires_challenge=settings.auth_requires_challenge)
    audit = AuditLog(AUDITED_CODES)
    return GuardedRequestDispatcher(context, HANDLERS, plain, check=guard.check, audit=audit, body_limits=body_limits)

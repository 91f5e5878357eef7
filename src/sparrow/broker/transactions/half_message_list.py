"""The handler that lists half messages whose transaction is not ended."""

from __future__ import annotations

from sparrow.broker.context import Broker
from sparrow.model.errors import Refused
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import ListHalfMessages
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader

LISTED_MAX = 256


async def list_half_messages(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Return half messages, the oldest first."""
    request = call.body(ListHalfMessages)
    if not 1 <= request.limit <= LISTED_MAX:
        raise Refused(f"cannot list {request.limit} half messages: ask for 1 to {LISTED_MAX}")
    return HandlerResponse.of(await broker.transactions.list_waiting(request))


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.LIST_HALF_MESSAGES: list_half_messages}

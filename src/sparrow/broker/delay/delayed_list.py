"""The handler that lists delayed messages, with the handles that recall them."""

from __future__ import annotations

import msgspec

from sparrow.broker.context import Broker
from sparrow.broker.delay.recall import recall_handle
from sparrow.model.errors import Refused
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import DelayedMessageEntry, ListDelayed
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader

LISTED_MAX = 256


async def list_delayed_messages(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Return waiting messages by delivery time."""
    request = call.body(ListDelayed)
    if not 1 <= request.limit <= LISTED_MAX:
        raise Refused(f"cannot list {request.limit} delayed messages: ask for 1 to {LISTED_MAX}")
    found = await broker.delay.list_waiting(request)
    messages = [_with_handle(entry, broker.name) for entry in found.messages]
    return HandlerResponse.of(msgspec.structs.replace(found, messages=messages))


def _with_handle(entry: DelayedMessageEntry, broker_name: str) -> DelayedMessageEntry:
    if entry.unique_key is None:
        return entry
    handle = recall_handle(entry.topic, broker_name, entry.due_ms, entry.unique_key)
    return msgspec.structs.replace(entry, recall_handle=handle)


HANDLERS: dict[int, RequestHandler[Broker]] = {RequestCode.LIST_DELAYED_MESSAGES: list_delayed_messages}

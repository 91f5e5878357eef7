"""Handlers that find messages by key, by message id, and by queue offset."""

from __future__ import annotations

from sparrow.broker.consume.references import may_hold_references, resolve_record
from sparrow.broker.context import Broker
from sparrow.model.delay_levels import level_delay_ms
from sparrow.model.errors import Refused
from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.store.spi import STATE_TOPIC, Slice
from sparrow.wire import record
from sparrow.wire.bodies import ConsumeQueueEntries, ConsumeQueueEntry
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.hashes import tags_code
from sparrow.wire.headers import QueryConsumeQueue, QueryMessage, QueryMessageResponse, ViewMessage

MATCHES_MAX = 64
"""RocketMQ's limit, whatever the request says."""
UNIQUE_MATCHES_MAX = 32
"""Several messages may have the same unique key, because retries keep it."""
ENTRIES_MAX = 1024


async def query_by_key(request: QueryMessage, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the newest messages with a key, oldest first. The oldest are left out if the answer would be too large."""
    limit = UNIQUE_MATCHES_MAX if request.by_unique_key else min(request.messages_max, MATCHES_MAX)
    if limit < 1:
        raise Refused(f"cannot search for at most {request.messages_max} messages: ask for 1 or more")
    # The index contains everything that was written before the search began.
    searched_ms, searched_to = broker.now_ms(), broker.store.written
    found = await broker.store.find_by_key(
        request.topic, request.key, limit=limit, begin_ms=request.begin_ms, end_ms=request.end_ms
    )
    if may_hold_references(request.topic):
        found = [bytes(raw) for each in found if (raw := await resolve_record(broker.store, each)) is not None]
    if not found:
        return HandlerResponse(
            code=ResponseCode.QUERY_NOT_FOUND,
            remark=f"no message of topic {request.topic!r} has the key {request.key!r} in that time range",
        )
    return HandlerResponse(
        QueryMessageResponse(searched_ms, searched_to), _newest(found, broker.settings.pull_bytes_max)
    )


def _newest(records: list[bytes], bytes_max: int) -> list[bytes]:
    """Return as many records as fit, from the end; at least one."""
    first = len(records) - 1
    size = len(records[first])
    while first > 0 and size + len(records[first - 1]) <= bytes_max:
        first -= 1
        size += len(records[first])
    return records[first:]


async def view_message(request: ViewMessage, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the message at a physical offset, which is the second half of a message id."""
    found = await broker.store.record_at(request.physical_offset)
    if found is not None and record.decode(found, verify_crc=False, expand=False).topic == STATE_TOPIC:
        found = None  # the store's own state contains secret keys
    whole = await resolve_record(broker.store, found) if found is not None else None
    if whole is None:
        return HandlerResponse(
            code=ResponseCode.SYSTEM_ERROR, remark=f"no message starts at physical offset {request.physical_offset}"
        )
    return HandlerResponse(body=bytes(whole))


async def query_consume_queue(request: QueryConsumeQueue, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return consume queue entries and, given a group, whether its filter accepts them."""
    broker.topics[request.topic]
    if not 1 <= request.count <= ENTRIES_MAX:
        raise Refused(f"cannot return {request.count} entries: ask for 1 to {ENTRIES_MAX}")
    queue = Queue(request.topic, request.queue_id)
    wanted = broker.clients.subscription_filter(request.group, request.topic) if request.group else None
    found = await broker.store.read(
        queue, request.index, count_max=request.count, bytes_max=broker.settings.pull_bytes_max
    )
    messages = record.decode_all(found.tobytes(), verify_crc=False, expand=False) if isinstance(found, Slice) else []
    sizes = found.sizes if isinstance(found, Slice) else []
    entries = []
    for message, size in zip(messages, sizes, strict=True):
        code = _tags_code(message)
        is_for_group = wanted is None or wanted.tags_codes is None or code in wanted.tags_codes
        entries.append(ConsumeQueueEntry(message.physical_offset, size, code, eval=is_for_group))
    first, end = found.bounds
    return HandlerResponse.of(ConsumeQueueEntries(entries, first, end, wanted.data if wanted is not None else None))


def _tags_code(message: StoredMessage) -> int:
    """Return the tags code of a message; for a delayed one its delivery time, as in RocketMQ's consume queue."""
    delay_ms = level_delay_ms(message.topic, message.queue_id)
    return tags_code(message.tags) if delay_ms is None else message.store_ms + delay_ms


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.QUERY_MESSAGE: query_by_key,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_CONSUME_QUEUE: query_consume_queue,
}

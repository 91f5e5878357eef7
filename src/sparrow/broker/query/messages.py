"""Finding messages by key, by id, and by their place in a queue."""

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
"""RocketMQ answers no more, whatever is asked for."""
UNIQUE_MATCHES_MAX = 32
"""A unique key may still be in several messages: retries keep it."""
ENTRIES_MAX = 1024


async def query_by_key(request: QueryMessage, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """The newest messages that carry a key, oldest first. Old ones give way to what an answer may hold."""
    limit = UNIQUE_MATCHES_MAX if request.by_unique_key else min(request.messages_max, MATCHES_MAX)
    if limit < 1:
        raise Refused(f"a search for at most {request.messages_max} messages makes no sense: ask for 1 or more")
    # Whatever was written before the search began is in the index when it looks.
    searched_ms, searched_to = broker.now_ms(), broker.store.written
    found = await broker.store.find_by_key(
        request.topic, request.key, limit=limit, begin_ms=request.begin_ms, end_ms=request.end_ms
    )
    if may_hold_references(request.topic):
        found = [bytes(raw) for each in found if (raw := await resolve_record(broker.store, each)) is not None]
    if not found:
        return HandlerResponse(
            code=ResponseCode.QUERY_NOT_FOUND,
            remark=f"no message of topic {request.topic!r} has the key {request.key!r} in that span of time",
        )
    return HandlerResponse(
        QueryMessageResponse(searched_ms, searched_to), _newest(found, broker.settings.pull_bytes_max)
    )


def _newest(records: list[bytes], bytes_max: int) -> list[bytes]:
    """As many as fit, from the end; one at least."""
    kept = len(records) - 1
    size = len(records[kept])
    while kept > 0 and size + len(records[kept - 1]) <= bytes_max:
        kept -= 1
        size += len(records[kept])
    return records[kept:]


async def view_message(request: ViewMessage, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """The message at a physical offset, which is what the second half of its id says."""
    found = await broker.store.record_at(request.physical_offset)
    if found is not None and record.decode(found, verify_crc=False, expand=False).topic == STATE_TOPIC:
        found = None  # the store's own words, among them what signs requests
    whole = await resolve_record(broker.store, found) if found is not None else None
    if whole is None:
        return HandlerResponse(
            code=ResponseCode.SYSTEM_ERROR, remark=f"no message starts at physical offset {request.physical_offset}"
        )
    return HandlerResponse(body=bytes(whole))


async def query_consume_queue(request: QueryConsumeQueue, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """What the consume queue says of some messages and, given a group, whether the group would get them."""
    broker.topics[request.topic]
    if not 1 <= request.count <= ENTRIES_MAX:
        raise Refused(f"{request.count} entries cannot be shown at once: ask for 1 to {ENTRIES_MAX}")
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
    """In a queue of delayed messages, the time of delivery stands in its place."""
    delay_ms = level_delay_ms(message.topic, message.queue_id)
    return tags_code(message.tags) if delay_ms is None else message.store_ms + delay_ms


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.QUERY_MESSAGE: query_by_key,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_CONSUME_QUEUE: query_consume_queue,
}

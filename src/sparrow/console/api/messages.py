"""Routes of messages: search and export, one by id, its body and its journey, and sending."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from sparrow.client.produce.queue_selection import by_sharding_key
from sparrow.console.api.parameters.plans import TopicPath
from sparrow.console.api.parameters.times import FromQuery, ToQuery, parse_time
from sparrow.console.context import ClusterClient, ClusterDependency, ConsoleContext, ContextDependency
from sparrow.console.masks import HIDDEN, check_search, mask_message
from sparrow.console.models.fields import BODY_BYTES_DEFAULT, BODY_BYTES_MAX
from sparrow.console.models.messages import (
    JourneyAnswer,
    MessageAnswer,
    MessageInput,
    SearchAnswer,
    SentAnswer,
    show_message,
)
from sparrow.console.pagination import CursorQuery, LimitQuery, decode_cursor, encode_cursor, show_scan
from sparrow.console.security import Identity, IdentityDependency, Role
from sparrow.model.errors import BadRequest, NotPermitted
from sparrow.model.message import Message
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.model.send_result import SendResult
from sparrow.operations.journeys import trace_journey
from sparrow.operations.message_lines import MessageLine
from sparrow.operations.messages import (
    KEY_MATCHES_MAX,
    MessageView,
    SearchFilter,
    SearchLimits,
    SearchOrder,
    SearchResult,
    find_by_key,
    find_message,
    search_messages,
)

router = APIRouter(tags=["messages"])

MessageIdPath = Annotated[str, Path(min_length=1, max_length=255, description="Unique id or offset id.")]
TopicQuery = Annotated[
    str | None, Query(max_length=127, description="Topic of the message; a unique id needs it.", examples=["orders"])
]
JSON_LINES_TYPE = "application/jsonl"
EXPORT_MAX = 10_000
EXPORT_BYTES_MAX = 64 * 1024 * 1024
"""What an export reads at most; it is in memory until it is sent."""
EXPORT_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Messages, one a line.", "content": {JSON_LINES_TYPE: {"schema": {"type": "string"}}}}
}
BodyBytesQuery = Annotated[
    int, Query(ge=0, le=BODY_BYTES_MAX, description="Bytes after which bodies are cut.", examples=[1024])
]


def _search_query(
    from_time: FromQuery = None,
    to_time: ToQuery = None,
    key: Annotated[str | None, Query(min_length=1, max_length=255, description="Has this key or unique id.")] = None,
    tag: Annotated[str | None, Query(max_length=255, description="Has this tag.")] = None,
    text: Annotated[str | None, Query(max_length=1_024, description="The body contains this text.")] = None,
    broker: Annotated[str | None, Query(max_length=127)] = None,
    queue_id: Annotated[int | None, Query(ge=0, le=65_535)] = None,
) -> SearchFilter:
    from_ms, to_ms = parse_time("from", from_time), parse_time("to", to_time)
    return SearchFilter(from_ms=from_ms, to_ms=to_ms, tag=tag, key=key, text=text, broker=broker, queue_id=queue_id)


SearchFilterDependency = Annotated[SearchFilter, Depends(_search_query)]
ScanQuery = Annotated[int, Query(ge=1, le=100_000, description="Most messages that are read.")]
SecondsQuery = Annotated[float, Query(gt=0, le=20, description="Longest time that the search takes.")]


@router.get("/topics/{topic}/messages", response_model=SearchAnswer)
async def search(
    topic: TopicPath,
    cluster: ClusterDependency,
    wanted: SearchFilterDependency,
    order: SearchOrder = "newest",
    scan: ScanQuery = 20_000,
    seconds: SecondsQuery = 5.0,
    limit: LimitQuery = 50,
    cursor: CursorQuery = None,
    body_bytes: BodyBytesQuery = BODY_BYTES_DEFAULT,
) -> dict[str, Any]:
    """Search the messages of a topic.

    The search reads messages in the order of time until it has found `limit` of them, or has read `scan` messages,
    64 MiB, or for `seconds`. If the answer is not `complete`, `next` continues. A search with only a key uses the
    index of keys.
    """
    limits = SearchLimits(found=limit, scanned=scan, seconds=seconds)
    found = await _search(cluster, topic, wanted, order=order, limits=limits, cursor=cursor)
    return {"messages": [show_message(message, body_bytes) for message in found.messages]} | show_scan(found)


@router.get("/topics/{topic}/messages/export", response_class=Response, responses=EXPORT_RESPONSE)
async def export(
    topic: TopicPath,
    cluster: ClusterDependency,
    context: ContextDependency,
    identity: IdentityDependency,
    wanted: SearchFilterDependency,
    order: SearchOrder = "oldest",
    scan: ScanQuery = 100_000,
    seconds: SecondsQuery = 20.0,
    limit: Annotated[int, Query(ge=1, le=EXPORT_MAX, description="Most messages of the file.")] = 1_000,
    cursor: CursorQuery = None,
) -> Response:
    """Download what a search finds as lines of JSON, one message a line, which `sparrow send --jsonl` reads.

    The headers say whether everything was read: if `X-Complete` is false, `X-Next` is the cursor that continues.
    """
    _check_export(context, identity)
    limits = SearchLimits(found=limit, scanned=scan, scanned_bytes=EXPORT_BYTES_MAX, seconds=seconds)
    found = await _search(cluster, topic, wanted, order=order, limits=limits, cursor=cursor)
    lines = [_line(message) for message in found.messages]
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(topic, safe='')}.jsonl",
        "X-Scanned": str(found.scanned),
        "X-Complete": str(found.complete).lower(),
    }
    if found.next is not None:
        headers["X-Next"] = encode_cursor(found.next)
    return Response(msgspec.json.Encoder().encode_lines(lines), media_type=JSON_LINES_TYPE, headers=headers)


async def _search(
    cluster: ClusterClient,
    topic: str,
    wanted: SearchFilter,
    *,
    order: SearchOrder,
    limits: SearchLimits,
    cursor: str | None,
) -> SearchResult:
    check_search(topic, text=wanted.text, key=wanted.key, tag=wanted.tag)
    by_key = SearchFilter(key=wanted.key, from_ms=wanted.from_ms, to_ms=wanted.to_ms)
    if wanted.key is not None and wanted == by_key and cursor is None:
        messages = await find_by_key(
            cluster.admin, topic, wanted.key, limit=limits.found, from_ms=wanted.from_ms, to_ms=wanted.to_ms
        )
        is_all = len(messages) < min(limits.found, KEY_MATCHES_MAX)
        size = sum(len(message.body) for message in messages)
        return SearchResult(
            messages=tuple(messages), scanned=len(messages), scanned_bytes=size, complete=is_all, next=None
        )
    after = decode_cursor(cursor, dict[str, int])
    return await search_messages(cluster.admin, topic, wanted, order=order, limits=limits, after=after)


def _line(message: MessageView) -> MessageLine:
    masked = mask_message(message)
    line = MessageLine.of(masked.message)
    return msgspec.structs.replace(line, body=None) if masked.is_body_hidden else line


def _check_export(context: ConsoleContext, identity: Identity) -> None:
    if not context.settings.export and identity.role < Role.ADMIN:
        raise NotPermitted("a download of messages", "console.export allows it to the role admin only")


@router.post("/topics/{topic}/messages", response_model=SentAnswer, status_code=201)
async def send(
    topic: TopicPath, body: MessageInput, request: Request, cluster: ClusterDependency, context: ContextDependency
) -> SendResult:
    """Send a message. Exactly one of text, base64 and json is its body."""
    message = Message(topic, _body_of(body), tags=body.tags, keys=body.keys, properties=_properties(body))
    keys, tags = context.masks.mask_labels(topic, body.keys, body.tags)  # every role sees the audit
    asked = {"bytes": len(message.body), "keys": keys, "tags": tags}
    async with cluster.audit.change(request, "message.send", topic, asked=asked) as line:
        selector = by_sharding_key() if body.sharding_key is not None else None
        producer = await cluster.producer()
        sent = await producer.send(message, selector=selector, deliver_after_ms=body.delay_ms)
        line.after = msgspec.to_builtins(sent)
        return sent


@router.get("/messages/{message_id}", response_model=MessageAnswer)
async def get_message(
    message_id: MessageIdPath,
    cluster: ClusterDependency,
    topic: TopicQuery = None,
    body_bytes: BodyBytesQuery = BODY_BYTES_DEFAULT,
) -> dict[str, Any]:
    """Return a message by its id."""
    return show_message(await find_message(cluster.admin, message_id, topic=topic), body_bytes)


@router.get(
    "/messages/{message_id}/body",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_body(
    message_id: MessageIdPath,
    cluster: ClusterDependency,
    context: ContextDependency,
    identity: IdentityDependency,
    topic: TopicQuery = None,
) -> Response:
    """Download the whole body of a message, as it is."""
    _check_export(context, identity)
    message = await find_message(cluster.admin, message_id, topic=topic)
    masked = mask_message(message)
    if masked.is_body_hidden:
        raise NotPermitted("the body", "console.masks hides it from roles below admin")
    return Response(
        masked.message.body,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{message.offset_id}.bin"'},
    )


@router.get("/messages/{message_id}/journey", response_model=JourneyAnswer)
async def get_journey(
    message_id: MessageIdPath,
    cluster: ClusterDependency,
    topic: TopicQuery = None,
    body_bytes: BodyBytesQuery = BODY_BYTES_DEFAULT,
) -> dict[str, Any]:
    """Return what happened to a message: produced, stored, delivered, retried, acknowledged, dead."""
    journey = await trace_journey(cluster.admin, message_id, topic=topic)
    message = show_message(journey.message, body_bytes)
    events = journey.events
    if mask_message(journey.message).is_changed:  # the texts of an error often quote the message
        events = tuple(
            msgspec.structs.replace(event, detail=HIDDEN) if event.source == "dead_letter" else event
            for event in events
        )
    return {
        "message": message,
        "events": events,
        "is_traced": journey.is_traced,
        "omitted_groups": journey.omitted_groups,
    }


def _body_of(given: MessageInput) -> bytes:
    chosen = given.model_fields_set & {"text", "base64", "value"}
    if len(chosen) != 1:
        raise BadRequest("the message", "body", "is missing: give exactly one of text, base64 and json")
    if given.text is not None:
        return given.text.encode("utf-8", "surrogatepass")
    if given.base64 is not None:
        try:
            return base64.b64decode(given.base64, validate=True)
        except (binascii.Error, ValueError) as cause:
            raise BadRequest("the message", "base64", f"is not base64: {cause}") from cause
    if chosen != {"value"}:
        raise BadRequest("the message", "body", "is null: give exactly one of text, base64 and json")
    return msgspec.json.encode(given.value)


def _properties(given: MessageInput) -> dict[str, str]:
    properties = dict(given.properties)
    if given.sharding_key is not None:
        properties[PROPERTY_SHARDING_KEY] = given.sharding_key
    return properties

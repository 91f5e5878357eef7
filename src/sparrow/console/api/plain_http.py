"""Sending and receiving with nothing but an HTTP client: `/api/topics/{topic}/messages`.

    curl -d 'a book' -H 'X-Keys: order-7' http://127.0.0.1:8765/api/topics/orders/messages
    curl 'http://127.0.0.1:8765/api/topics/orders/messages?group=billing&wait_ms=5000'
    curl -d '{"group": "billing", "handles": ["…"]}' -H 'Content-Type: application/json' \
        http://127.0.0.1:8765/api/topics/orders/acknowledgements

Messages are received as a pop consumer does: invisible to others until they are acknowledged, or delivered again.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request
from pydantic import Field

from sparrow.client.aio.consume.pop_consumer import POP_COUNT_MAX, PopConsumer, PopReceipt
from sparrow.console.api.messages import BodyBytesQuery
from sparrow.console.api.parameters.plans import NAME_PATTERN, TopicPath
from sparrow.console.context import ClusterDependency
from sparrow.console.models.fields import BODY_BYTES_MAX, ApiInput, ApiModel
from sparrow.console.models.groups import GroupName
from sparrow.console.models.messages import MessageAnswer, SentAnswer, show_message
from sparrow.console.pagination import decode_cursor, encode_cursor
from sparrow.console.security import Role, needs
from sparrow.model.errors import BadRequest, SparrowError
from sparrow.model.message import Message, StoredMessage
from sparrow.model.send_result import SendResult
from sparrow.operations.messages import view_message

router = APIRouter(tags=["plain HTTP"])

WAIT_MS_MAX = 60_000
_HANDLE_PARTS = 8


class ReceivedAnswer(MessageAnswer):
    """A received message."""

    handle: str = Field(description="Acknowledges the message.")


class ReceivedPageAnswer(ApiModel):
    """The messages that were received; none if the time was up."""

    messages: list[ReceivedAnswer]


class AcknowledgementInput(ApiInput):
    """Handles of received messages."""

    group: GroupName
    handles: list[Annotated[str, Field(min_length=1, max_length=4_096)]] = Field(min_length=1, max_length=1_000)


class AcknowledgementItem(ApiModel):
    """The result of one handle."""

    handle: str
    acknowledged: bool
    error: str | None = None


class AcknowledgementAnswer(ApiModel):
    """The result of each handle."""

    acknowledged: int
    items: list[AcknowledgementItem]


class _Handle(msgspec.Struct, array_like=True):
    broker: str
    topic: str
    receipt: str


@router.post(
    "/topics/{topic}/messages",
    response_model=SentAnswer,
    status_code=201,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}},
)
async def send(
    topic: TopicPath,
    request: Request,
    cluster: ClusterDependency,
    keys: Annotated[
        str | None, Header(alias="X-Keys", max_length=4_096, description="Keys, separated by blanks.")
    ] = None,
    tags: Annotated[str | None, Header(alias="X-Tags", max_length=255)] = None,
    delay_ms: Annotated[int | None, Header(alias="X-Delay-Ms", ge=0, le=366 * 86_400_000)] = None,
) -> SendResult:
    """Send the body of the request as a message. Keys and tag are headers."""
    body = await request.body()  # JSON too: it is not parsed
    message = Message(topic, body, tags=_text(tags) or None, keys=(_text(keys) or "").split())
    return await (await cluster.producer()).send(message, deliver_after_ms=delay_ms)


@router.get("/topics/{topic}/messages", response_model=ReceivedPageAnswer)
@needs(Role.OPERATOR)
async def receive(
    topic: TopicPath,
    cluster: ClusterDependency,
    group: Annotated[str, Query(min_length=1, max_length=120, pattern=NAME_PATTERN, examples=["billing"])],
    wait_ms: Annotated[int, Query(ge=0, le=WAIT_MS_MAX, description="How long to wait for messages.")] = 0,
    limit: Annotated[int, Query(ge=1, le=POP_COUNT_MAX)] = POP_COUNT_MAX,
    invisible_ms: Annotated[
        int, Query(ge=1_000, le=43_200_000, description="Time to acknowledge them before they are delivered again.")
    ] = 60_000,
    body_bytes: BodyBytesQuery = BODY_BYTES_MAX,
) -> dict[str, Any]:
    """Receive messages for a group, and wait for them if there are none. Acknowledge them by their handles."""
    consumer = PopConsumer(group=group, session=cluster.admin.session, invisible_ms=invisible_ms)
    receipts = await consumer.receive(topic, count_max=limit, wait_ms=wait_ms)
    return {
        "messages": [
            show_message(view_message(receipt.message, receipt.broker_name), body_bytes)
            | {"handle": encode_cursor(_Handle(receipt.broker_name, receipt.message.topic, receipt.handle))}
            for receipt in receipts
        ]
    }


@router.post("/topics/{topic}/acknowledgements", response_model=AcknowledgementAnswer)
async def acknowledge(topic: TopicPath, body: AcknowledgementInput, cluster: ClusterDependency) -> dict[str, Any]:
    """Acknowledge received messages, with a result for each handle."""
    consumer = PopConsumer(group=body.group, session=cluster.admin.session)
    await cluster.admin.session.route(topic)
    items: list[dict[str, Any]] = []
    for handle in dict.fromkeys(body.handles):
        try:
            await consumer.ack(_receipt(topic, handle))
        except SparrowError as error:
            items.append({"handle": handle, "acknowledged": False, "error": str(error)})
        else:
            items.append({"handle": handle, "acknowledged": True})
    return {"acknowledged": sum(item["acknowledged"] for item in items), "items": items}


def _receipt(topic: str, handle: str) -> PopReceipt:
    found = decode_cursor(handle, _Handle)
    parts = found.receipt.split(" ") if found is not None else []
    numbers = [*parts[:5], *parts[6:]]
    if (
        found is None
        or found.topic != topic
        or len(parts) != _HANDLE_PARTS
        or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in numbers)
    ):
        raise BadRequest("the request", "handles", "has one that no answer of this topic contained")
    return PopReceipt(StoredMessage(topic=topic), found.broker, found.receipt)


def _text(header: str | None) -> str | None:
    """Return the value of a header, which arrives as Latin-1, as the UTF-8 that curl sends."""
    if header is None:
        return None
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header

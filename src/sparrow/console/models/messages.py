"""Answers and inputs about messages."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from sparrow.console.masks import mask_message
from sparrow.console.models.fields import (
    BINARY_TYPE,
    ApiInput,
    ApiModel,
    BigNumber,
    BodyView,
    Text,
    Time,
    show_body,
)
from sparrow.operations.journeys import JourneyStep
from sparrow.operations.messages import MessageView


class MessageAnswer(ApiModel):
    """A stored message."""

    id: Text = Field(description="The id that the sender assigned, or the offset id.")
    offset_id: str
    topic: Text
    broker: Text | None
    queue_id: int
    queue_offset: int
    physical_offset: BigNumber
    tags: Text | None
    keys: list[Text]
    born: Time
    born_host: str
    stored: Time
    store_host: str
    reconsume_times: int
    properties: dict[Text, Text]
    body: BodyView


class SearchAnswer(ApiModel):
    """What a search found, and how much it has read."""

    messages: list[MessageAnswer]
    scanned: int = Field(description="Messages that were read.")
    complete: bool = Field(description="Whether everything was read.")
    next: str | None = Field(description="The cursor that continues the search; null if it is complete.")


class JourneyEventAnswer(ApiModel):
    """One event of a journey."""

    step: JourneyStep
    time: Time | None = Field(validation_alias="time_ms", description="null: it has happened, but when is not known.")
    source: str = Field(description="message, trace, retry, dead_letter or offsets.")
    group: Text | None
    detail: Text = Field(description="A sentence in English, or the words of an error.")
    values: dict[str, Text | int] = Field(description="The values in `detail`, for other languages.")
    cost_ms: int | None
    attempt: int | None


class JourneyAnswer(ApiModel):
    """A message and what happened to it."""

    message: MessageAnswer
    events: list[JourneyEventAnswer]
    is_traced: bool = Field(description="Whether clients recorded traces.")
    omitted_groups: int


class MessageInput(ApiInput):
    """A message to send: its body as text or base64, or any JSON value."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"json": {"order": 7}, "keys": ["order-7"], "tags": "paid"}]}
    )

    text: str | None = Field(default=None, max_length=16 * 1024 * 1024)
    base64: str | None = Field(default=None, max_length=24 * 1024 * 1024)
    value: Any = Field(default=None, alias="json", description="A JSON value, which becomes the body.")
    tags: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    keys: list[Annotated[str, Field(min_length=1, max_length=255, pattern=r"^\S+$")]] = Field(default=[], max_length=64)
    properties: dict[str, Annotated[str, Field(max_length=8_192)]] = Field(default={}, max_length=64)
    delay_ms: int | None = Field(default=None, ge=0, le=366 * 86_400_000, description="Deliver it this much later.")
    sharding_key: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        default=None, description="Messages with the same key keep their order."
    )


class SentAnswer(ApiModel):
    """Where a sent message is stored."""

    message_id: str
    offset_id: str
    topic: str
    broker: str = Field(validation_alias="broker_name")
    queue_id: int
    queue_offset: int
    recall_handle: str | None = None


def show_message(message: MessageView, body_bytes: int) -> dict[str, Any]:
    """Return a message for an answer, without what its reader may not see, its body cut after that many bytes."""
    masked = mask_message(message)
    if masked.is_body_hidden:
        body = BodyView(size=len(message.body), truncated=False, content_type=BINARY_TYPE, masked=True)
    else:
        body = show_body(masked.message.body, body_bytes)
    shown = {
        name: getattr(masked.message, name)
        for name in type(message).__struct_fields__
        if name not in ("born_ms", "store_ms")
    }
    return shown | {"born": message.born_ms, "stored": message.store_ms, "body": body}

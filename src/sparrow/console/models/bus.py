"""Answers and inputs about the event bus."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from sparrow.console.models.fields import ApiInput, ApiModel, BigNumber, Text, Time

BusStatus = Literal["Scheduled", "Delayed", "Enqueued", "Processing", "Successed", "Failed", "Cancelled", "Open"]
EventIdText = Annotated[str, Field(pattern="^[0-9]{1,19}$", examples=["7241230983245824"])]


class BusEventAnswer(ApiModel):
    """A stored message of the bus."""

    id: BigNumber
    name: Text
    group: Text | None
    status: str
    retries: int
    rounds: int
    added: Time
    expires: Time | None
    due: Time | None = Field(description="Next attempt, or the end of its worker's lease; null if it is closed.")
    key: Text | None
    error: Text | None
    parked: bool = Field(description="Only an operator requeues it.")
    message_id: Text
    locked_by: Text | None
    headers: dict[Text, Text | None]
    value: Any = Field(description="The payload, decoded from JSON.")
    content: Text | None = Field(description="The raw column, if it cannot be decoded.")


class BusPageAnswer(ApiModel):
    """Stored messages, the newest first."""

    events: list[BusEventAnswer]
    next: str | None


class BusFilterInput(ApiInput):
    """Which messages; all given conditions must hold."""

    status: BusStatus | None = None
    name: str | None = Field(default=None, max_length=255)
    group: str | None = Field(default=None, max_length=255)
    content: str | None = Field(default=None, max_length=1_024)
    error: str | None = Field(default=None, max_length=1_024)
    parked: bool | None = None
    added_since: datetime | None = None
    added_until: datetime | None = None


class BusActionInput(ApiInput):
    """Messages by id, or by a filter."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": ["7241230983245824"]}]})

    ids: list[EventIdText] | None = Field(default=None, min_length=1, max_length=500)
    where: BusFilterInput | None = None
    limit: int | None = Field(default=None, ge=1, le=1_000_000)


class BusItemAnswer(ApiModel):
    """The result of one message."""

    id: str
    done: bool
    error: Text | None = None


class BusActionAnswer(ApiModel):
    """What an action would change, or has changed."""

    dry_run: bool
    action: str
    state: Literal["planned", "done", "partial", "failed"]
    count: int
    items: list[BusItemAnswer] = Field(description="The result of each id; for a filter, some of the ids.")
    hash: str | None = None

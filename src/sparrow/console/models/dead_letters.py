"""Answers and inputs about dead letters, resends, tokens, transactions and sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from sparrow.console.masks import mask_message
from sparrow.console.models.fields import TIME_MS_MAX, ApiInput, ApiModel, Text
from sparrow.console.models.groups import GroupName, Offset
from sparrow.console.models.messages import MessageAnswer, show_message
from sparrow.operations.dead_letters import DeadLetterView, RedriveState, view_dead_letter

TimeInput = datetime | Annotated[int, Field(ge=0, le=TIME_MS_MAX)]
"""RFC 3339, or ms since 1970."""


class DeadLetterGroupAnswer(ApiModel):
    """A group with dead letters."""

    group: str
    letters: int


class DeadLetterAnswer(ApiModel):
    """A message that a group gave up, and why."""

    group: str
    topic: Text = Field(description="The topic that it was sent to first.")
    attempts: int | None
    cause: Text
    reason: Text | None
    error_type: Text | None
    traceback: Text | None
    consumer: Text | None
    message: MessageAnswer


class DeadLetterPageAnswer(ApiModel):
    """Some dead letters of a group."""

    letters: list[DeadLetterAnswer]
    scanned: int
    complete: bool
    next: str | None


class RedriveInput(ApiInput):
    """Which dead letters to send again: exactly one of ids, since and everything."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"everything": True}, {"since": "2026-01-01T00:00:00Z"}]})

    ids: list[Annotated[str, Field(min_length=1, max_length=255)]] | None = Field(
        default=None, min_length=1, max_length=1_000
    )
    since: TimeInput | None = Field(default=None, description="RFC 3339, or ms since 1970.")
    everything: bool = False
    to_group_only: bool = Field(default=False, description="Send them to this group only, not to their topic.")


class RedriveItemAnswer(ApiModel):
    """The result of one dead letter."""

    id: Text
    state: RedriveState
    topic: Text | None
    error: Text | None


class RedriveAnswer(ApiModel):
    """What a redrive would send, or has sent."""

    dry_run: bool
    group: str
    state: Literal["planned", "done", "partial", "failed"]
    count: int = Field(description="Dead letters that would be sent, or were sent.")
    failed: int = 0
    not_found: int = 0
    missing: list[Text] = Field(default=[], description="Ids that are no dead letters of the group.")
    items: list[RedriveItemAnswer] = Field(default=[], description="The result of each dead letter.")
    omitted: int = Field(default=0, description="Results that `items` does not list.")
    hash: str | None = None


class ResendInput(ApiInput):
    """Which messages of a topic are delivered again: by offsets, by keys or by store time."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"group": "billing", "keys": ["order-7"]}]})

    group: GroupName | None = Field(default=None, description="Without it, all groups that have read the topic.")
    begin: Offset | None = Field(default=None, description="First queue offset.")
    end: Offset | None = Field(default=None, description="Last queue offset, included.")
    queue_id: int | None = Field(default=None, ge=0, le=65_535)
    priority: Literal["high", "middle", "low"] | None = None
    broker: str | None = Field(default=None, max_length=127)
    keys: list[Annotated[str, Field(min_length=1, max_length=255, pattern=r"^\S+$")]] | None = Field(
        default=None, min_length=1, max_length=100
    )
    from_time: TimeInput | None = Field(default=None, alias="from")
    to_time: TimeInput | None = Field(default=None, alias="to")
    includes_unread: bool = False


class ResendAnswer(ApiModel):
    """What a resend would deliver, or has delivered."""

    dry_run: bool
    topic: str
    groups: list[str]
    count: int
    missing: int
    hash: str


def show_letter(letter: DeadLetterView, body_bytes: int) -> dict[str, Any]:
    """Return a dead letter for an answer."""
    masked = view_dead_letter(letter.group, mask_message(letter.message).message)
    shown = {name: getattr(masked, name) for name in type(letter).__struct_fields__ if name != "message"}
    return shown | {"topic": letter.topic, "cause": masked.cause, "message": show_message(letter.message, body_bytes)}


def input_ms(time: datetime | int | None) -> int | None:
    """Return a time of an input in ms since 1970."""
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else time

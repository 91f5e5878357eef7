"""Answers and inputs about messages that wait: delayed messages and half messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import ConfigDict, Field

from sparrow.console.masks import active_masks
from sparrow.console.models.fields import ApiInput, ApiModel, Text, Time
from sparrow.operations.waiting_messages.actions import IDS_MAX, WaitingAction, WaitingPlan, WaitingReport, WaitingState
from sparrow.operations.waiting_messages.delayed_messages import DelayedMessageView
from sparrow.operations.waiting_messages.half_messages import HalfMessageView


class DelayedMessageAnswer(ApiModel):
    """A message that waits for its delivery time."""

    handle: Text | None = Field(description="The recall handle; null if the sender assigned no id.")
    message_id: Text | None
    topic: Text = Field(description="The topic that it will be delivered to.")
    broker: str
    due: Time = Field(validation_alias="due_ms")
    stored: Time = Field(validation_alias="store_ms")
    keys: list[Text]
    tags: Text | None
    body_bytes: int


class DelayedPageAnswer(ApiModel):
    """Delayed messages, the next to be delivered first."""

    messages: list[DelayedMessageAnswer]
    scanned: int = Field(description="Delayed messages that were read.")
    complete: bool = Field(description="Whether everything was read.")
    next: str | None = Field(description="The cursor that continues the list; null if it is complete.")


class HalfMessageAnswer(ApiModel):
    """A half message whose transaction is not ended."""

    id: Text = Field(description="broker@offset, where the offset is that of the half queue.")
    message_id: Text | None
    topic: Text = Field(description="The topic that it is meant for.")
    broker: str
    producer_group: Text | None = Field(description="null if the half message cannot be read now.")
    stored: Time = Field(validation_alias="store_ms")
    checks: int = Field(description="How often the broker has checked back.")
    checks_max: int = Field(description="After this many check-backs it gives the transaction up.")
    next_check: Time = Field(validation_alias="next_check_ms")
    keys: list[Text]
    tags: Text | None
    body_bytes: int


class HalfPageAnswer(ApiModel):
    """Half messages, the oldest first."""

    messages: list[HalfMessageAnswer]
    scanned: int = Field(description="Half messages that were looked at.")
    complete: bool = Field(description="Whether everything was read.")
    next: str | None = Field(description="The cursor that continues the list; null if it is complete.")


class RecallInput(ApiInput):
    """Delayed messages to recall."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"handles": ["djEgb3JkZXJzIHNwYXJyb3cgMTcg"]}]})

    handles: list[Annotated[str, Field(min_length=1, max_length=2_048)]] = Field(min_length=1, max_length=IDS_MAX)


class EndInput(ApiInput):
    """Transactions to end by force."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": ["sparrow@7"], "verdict": "rollback"}]})

    ids: list[Annotated[str, Field(min_length=1, max_length=255)]] = Field(min_length=1, max_length=IDS_MAX)
    verdict: Literal["commit", "rollback"]


class WaitingItemAnswer(ApiModel):
    """The result of one message."""

    id: Text
    state: WaitingState
    topic: Text | None
    message_id: Text | None
    error: Text | None


class WaitingActionAnswer(ApiModel):
    """What an action on waiting messages would do, or has done."""

    dry_run: bool
    action: WaitingAction
    state: Literal["planned", "done", "partial", "failed"]
    count: int = Field(description="Messages that it would reach, or has reached.")
    not_found: int = 0
    failed: int = 0
    items: list[WaitingItemAnswer] = Field(description="The result of each message.")
    hash: str | None = None


Waiting = TypeVar("Waiting", DelayedMessageView, HalfMessageView)


def mask_waiting(message: Waiting) -> Waiting:
    """Return a waiting message without the keys and tag that the reader of this request may not see."""
    keys, tags = active_masks().mask_labels(message.topic, message.keys, message.tags)
    return msgspec.structs.replace(message, keys=tuple(keys), tags=tags)


def show_waiting_plan(plan: WaitingPlan) -> dict[str, Any]:
    """Return a plan for an answer."""
    return {
        "dry_run": True,
        "action": plan.action,
        "state": "planned",
        "count": plan.count,
        "not_found": sum(item.state is WaitingState.NOT_FOUND for item in plan.items),
        "failed": sum(item.state is WaitingState.FAILED for item in plan.items),
        "items": plan.items,
        "hash": plan.hash,
    }


def show_waiting_report(report: WaitingReport) -> dict[str, Any]:
    """Return a report for an answer."""
    return {
        "dry_run": False,
        "action": report.action,
        "state": report.result,
        "count": report.done,
        "not_found": report.not_found,
        "failed": report.failed,
        "items": report.items,
    }

"""Answers and inputs about consumer groups."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from sparrow.console.models.fields import TIME_MS_MAX, ApiInput, ApiModel, Text, Time

TopicName = Annotated[str, Field(min_length=1, max_length=127, pattern="^[%|a-zA-Z0-9_-]+$", examples=["orders"])]
GroupName = Annotated[str, Field(min_length=1, max_length=120, pattern="^[%|a-zA-Z0-9_-]+$", examples=["billing"])]
Offset = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]


class GroupAnswer(ApiModel):
    """A group in a list."""

    name: str
    is_system: bool
    is_configured: bool
    members: int | None
    topics: list[str]
    lag: int = Field(description="Messages that it has not read.")
    retrying: int = Field(description="Messages that wait in its retry topic.")
    dead_letters: int
    out_per_s: float | None = Field(default=None, description="Messages it read per second, by the last samples.")
    lag_history: list[float | None] = Field(default=[], description="Its lag over the last samples, if asked for.")


class GroupConfigAnswer(ApiModel):
    """The configuration of a group."""

    name: str
    may_consume: bool
    may_broadcast: bool
    is_ordered: bool
    retry_queues: int
    retries_max: int
    attributes: dict[str, Text]


class QueueRefAnswer(ApiModel):
    """A queue."""

    topic: str
    broker: str = Field(validation_alias="broker_name")
    queue_id: int


class MemberAnswer(ApiModel):
    """A consumer that is online."""

    client_id: Text
    address: str
    language: str
    version: int
    queues: list[QueueRefAnswer]


class QueueLagAnswer(ApiModel):
    """How far the group has read a queue."""

    broker: str
    queue_id: int
    committed: int
    end: int
    lag: int
    read: Time | None = Field(validation_alias="read_ms", description="Store time of the last message that was read.")
    delay_ms: int | None = Field(description="How long the next message has waited.")
    member: Text | None


class GroupTopicAnswer(ApiModel):
    """A topic that the group reads."""

    topic: str
    expression: Text | None
    expression_type: str | None
    lag: int
    delay_ms: int | None
    queues: list[QueueLagAnswer]


class GroupDetailAnswer(ApiModel):
    """A group with members, assignment and lag."""

    name: str
    config: GroupConfigAnswer | None
    message_model: str | None
    consume_type: str | None
    members: list[MemberAnswer]
    topics: list[GroupTopicAnswer]
    out_per_s: float
    lag: int
    delay_ms: int | None
    retrying: int
    dead_letters: int


class GroupInput(ApiInput):
    """A group to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "billing", "retries_max": 16}]})

    name: GroupName
    may_consume: bool = True
    may_broadcast: bool = True
    is_ordered: bool = False
    retry_queues: int = Field(default=1, ge=1, le=1_024)
    retries_max: int = Field(default=16, ge=0, le=1_000)


class GroupChangeInput(ApiInput):
    """What to change of a group; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"retries_max": 3}]})

    may_consume: bool | None = None
    may_broadcast: bool | None = None
    is_ordered: bool | None = None
    retry_queues: int | None = Field(default=None, ge=1, le=1_024)
    retries_max: int | None = Field(default=None, ge=0, le=1_000)


class GroupDeletionAnswer(ApiModel):
    """What a deletion would remove, or has removed."""

    dry_run: bool
    group: str
    members: int
    topics: list[str]
    lag: int
    hash: str


class ResetInput(ApiInput):
    """Where a group continues: exactly one of position, time and offset."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"topic": "orders", "position": "first"},
                {"topic": "orders", "time": "2026-01-01T00:00:00Z"},
                {"topic": "orders", "broker": "sparrow", "queue_id": 0, "offset": 17, "expected": 42},
            ]
        }
    )

    topic: TopicName
    position: Literal["first", "last"] | None = None
    time: datetime | Annotated[int, Field(ge=0, le=TIME_MS_MAX)] | None = Field(
        default=None, description="RFC 3339, or ms since 1970."
    )
    offset: Offset | None = Field(default=None, description="Needs the queue.")
    broker: str | None = Field(default=None, max_length=127)
    queue_id: int | None = Field(default=None, ge=0, le=65_535)
    expected: Offset | None = Field(default=None, description="The offset that the queue must have now.")


class QueueResetAnswer(ApiModel):
    """What a reset does to a queue."""

    broker: str
    queue_id: int
    first: int
    end: int
    old: int | None = Field(description="null: the group has not committed an offset.")
    new: int
    difference: int = Field(description="Negative: delivered again; positive: skipped.")


class ResetAnswer(ApiModel):
    """What a reset would do, or has done."""

    dry_run: bool
    group: str
    topic: str
    members: int
    queues: list[QueueResetAnswer]
    again: int = Field(description="Messages that are delivered again.")
    skipped: int = Field(description="Messages that are not delivered.")
    hash: str = Field(description="Send it as `plan` to carry out the reset.")

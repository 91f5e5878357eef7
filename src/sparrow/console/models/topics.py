"""Answers and inputs about topics."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from sparrow.console.models.fields import ApiInput, ApiModel, Time
from sparrow.model.protocol import PERM_READ, PERM_WRITE
from sparrow.operations.topics import TopicKind

QUEUES_MAX = 65_536
QueueCount = Annotated[int, Field(ge=1, le=QUEUES_MAX, description="Write queues on each broker.", examples=[8])]
MessageType = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"]
PERMISSIONS: dict[str, int] = {
    "read_write": PERM_READ | PERM_WRITE,
    "read_only": PERM_READ,
    "write_only": PERM_WRITE,
    "none": 0,
}
TopicPermission = Literal["read_write", "read_only", "write_only", "none"]


class TopicAnswer(ApiModel):
    """A topic in a list."""

    name: str = Field(examples=["orders"])
    kind: TopicKind
    message_type: str | None
    brokers: list[str]
    queues: int = Field(description="Write queues on all brokers.")
    has_lanes: bool
    is_readable: bool
    is_writable: bool
    messages: int = Field(description="Messages that are stored now.")
    in_per_s: float | None = Field(default=None, description="Messages that arrived per second, by the last samples.")
    groups: int | None = Field(default=None, description="Groups that have read it.")
    lag: int | None = Field(default=None, description="Unread messages of all its groups together.")


class QueueAnswer(ApiModel):
    """A read queue of a topic."""

    broker: str
    queue_id: int
    lane: str | None
    first: int
    end: int
    messages: int
    newest: Time | None = Field(validation_alias="newest_ms")
    mean_bytes: int | None


class TopicDetailAnswer(ApiModel):
    """A topic with its queues and readers."""

    summary: TopicAnswer
    in_per_s: float
    queues: list[QueueAnswer]
    groups: list[str]


class TopicInput(ApiInput):
    """A topic to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "orders", "queues": 8}]})

    name: str = Field(min_length=1, max_length=127, pattern="^[%|a-zA-Z0-9_-]+$", examples=["orders"])
    queues: QueueCount = 8
    has_lanes: bool = Field(default=False, description="Three lanes for messages with a priority.")
    message_type: MessageType | None = None
    permission: TopicPermission = "read_write"


class TopicChangeInput(ApiInput):
    """What to change of a topic; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"queues": 16}]})

    queues: QueueCount | None = None
    permission: TopicPermission | None = None


class TopicDeletionAnswer(ApiModel):
    """What a deletion would remove, or has removed."""

    dry_run: bool
    topic: str
    brokers: list[str]
    messages: int
    groups: list[str] = Field(description="Groups that lose their offsets on it.")
    hash: str = Field(description="Send it as `plan` to carry out the deletion.")


class SeriesAnswer(ApiModel):
    """The history of figures: a value for each time; null where there is none."""

    times_ms: list[int]
    series: dict[str, list[float | None]]

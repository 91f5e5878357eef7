"""Answers about pipelines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparrow.console.models.fields import ApiModel, Text, Time


class PipelinePartAnswer(ApiModel):
    """A source, a step or a sink."""

    kind: Literal["source", "step", "sink"]
    name: Text
    what: Text


class BatchAnswer(ApiModel):
    """One micro-batch of a query."""

    time: Time = Field(validation_alias="time_ms")
    duration_ms: int
    rows: int


class QueueProgressAnswer(ApiModel):
    """How far a query has read a queue."""

    queue: Text = Field(description="topic/broker/queue id.")
    offset: int = Field(description="The next offset to read.")
    end: int | None = Field(description="The end of the queue when the last batch began.")


class QueryAnswer(ApiModel):
    """A streaming query, which writes one sink."""

    name: Text
    is_active: bool
    batches: int = Field(description="Batches of this run.")
    rows: int = Field(description="Rows read in this run.")
    lag: int | None = Field(description="Messages not read yet; null if the source does not report it.")
    input_per_s: float | None
    processed_per_s: float | None
    recent: list[BatchAnswer] = Field(description="The last batches, the oldest first.")
    queues: list[QueueProgressAnswer]
    queues_omitted: int


class PipelineRunAnswer(ApiModel):
    """The last run of a pipeline, as its process reported it."""

    pid: int
    host: str
    started: Time = Field(validation_alias="started_ms")
    updated: Time = Field(validation_alias="updated_ms")
    queries: list[QueryAnswer]


class PipelineAnswer(ApiModel):
    """A pipeline."""

    name: Text
    file: Text | None = Field(description="null if it is not declared in the folder of the console.")
    state: Literal["idle", "invalid", "starting", "running", "stopping", "silent", "finished", "stopped", "failed"] = (
        Field(description="idle: it never ran; silent: its process has not reported for 15 s.")
    )
    error: Text | None
    trigger: Text
    parts: list[PipelinePartAnswer]
    can_start: bool
    is_active: bool
    is_own: bool = Field(description="Whether this console started it.")
    run: PipelineRunAnswer | None = Field(validation_alias="status")


class PipelineListAnswer(ApiModel):
    """All pipelines."""

    folder: Text | None = Field(description="Where pipelines are declared; null if the console has no such folder.")
    pipelines: list[PipelineAnswer]


class PipelineDetailAnswer(PipelineAnswer):
    """A pipeline, and the end of the output of a process that the console started."""

    output: Text

"""Answers and inputs about replica sets."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from sparrow.console.models.fields import ApiInput, ApiModel, BigNumber, Text

REPLICA_ID_MAX = 64
ReplicaId = Annotated[int, Field(ge=1, le=REPLICA_ID_MAX)]


class ReplicaAnswer(ApiModel):
    """One replica of a set. A figure that it does not report is null."""

    replica_id: int
    role: str = Field(description="leader, follower, candidate, removed, stopped, or away if it does not answer.")
    is_in_sync: bool
    is_eligible: bool = Field(description="Whether it may be elected although it is not in sync.")
    address: str | None
    error: Text | None = Field(description="Why it does not answer.")
    epoch: int | None
    end: BigNumber | None = Field(description="End of its log, a physical offset.")
    high_watermark: BigNumber | None
    lag_bytes: BigNumber | None = Field(description="What it lacks of the leader's log; null for the leader.")
    lag_ms: int | None = Field(description="How long ago it had everything that the leader had.")


class ReplicaSetAnswer(ApiModel):
    """A replica set, or a master with its slaves."""

    name: Text
    cluster: Text
    set_id: str
    is_fixed: bool = Field(description="Whether roles are fixed: a master and its slaves, which elect nobody.")
    leader: int | None = Field(description="null: nobody leads, and sends are refused.")
    leader_address: str | None
    epoch: int
    in_sync: list[int]
    min_in_sync: int = Field(description="Replicas that must be in sync, otherwise sends are refused.")
    high_watermark: BigNumber | None
    is_serving: bool = Field(description="Whether it takes sends, as far as the coordinator knows.")
    replicas: list[ReplicaAnswer]
    error: Text | None = Field(description="Why the coordinator's state is not known.")


class HandOverInput(ApiInput):
    """Which replica shall lead; without it, the in-sync follower that is furthest."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"to": 2}]})

    to: ReplicaId | None = None


class HandOverAnswer(ApiModel):
    """What a hand-over would do, or has done."""

    dry_run: bool
    name: str
    leader: int = Field(description="The replica that leads before.")
    successor: int
    epoch: int = Field(description="Of a dry run, the epoch that ends; otherwise the one that has begun.")
    lag_bytes: int | None = Field(default=None, description="What the successor has to copy first.")
    in_sync: list[int] = Field(default=[], description="Of a dry run, the replicas that are in sync.")
    took_ms: int | None = None
    hash: str | None = Field(default=None, description="Send it as `plan` to carry out the hand-over.")

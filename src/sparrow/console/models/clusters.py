"""Answers about clusters, brokers and name servers."""

from __future__ import annotations

from pydantic import Field

from sparrow.console.models.fields import ApiModel, BigNumber, Text, Time


class ServedClusterAnswer(ApiModel):
    """A cluster that the console serves."""

    name: str
    name_servers: str = Field(examples=["127.0.0.1:9876"])
    is_default: bool
    is_reachable: bool = Field(description="Whether the last sample succeeded.")
    error: Text | None = Field(description="Why not.")


class BrokerAnswer(ApiModel):
    """A broker, with its newest figures. A figure that it does not report is null."""

    cluster: Text
    name: Text
    broker_id: int = Field(description="0 is the master.")
    is_master: bool
    address: str
    is_reachable: bool
    error: Text | None
    version: str | None = Field(description="The version of RocketMQ whose protocol it speaks.")
    sparrow_version: Text | None = Field(description="null if it is not a broker of Sparrow.")
    started: Time | None = Field(validation_alias="started_ms")
    in_per_s: float | None = Field(description="Messages sent to it per second, over the last 10 s.")
    out_per_s: float | None = Field(description="Messages read from it per second, over the last 10 s.")
    in_total: BigNumber | None
    out_total: BigNumber | None
    parked_pulls: int | None
    connections: int | None = Field(description="Connections of producers and consumers.")
    log_first: BigNumber | None = Field(description="First physical offset.")
    log_end: BigNumber | None
    unflushed_bytes: BigNumber | None
    disk_ratio: float | None = Field(description="Used part of the disk, 0 to 1.")
    oldest: Time | None = Field(validation_alias="oldest_ms")


class BrokerDetailAnswer(BrokerAnswer):
    """A broker with all its runtime figures, under RocketMQ's names."""

    figures: dict[str, Text]


class NameServerAnswer(ApiModel):
    """A name server, and the brokers that it lists."""

    address: str
    is_reachable: bool
    brokers: list[Text]
    error: Text | None


class ClusterAnswer(ApiModel):
    """The brokers and name servers of a cluster."""

    name_servers: list[NameServerAnswer]
    brokers: list[BrokerAnswer]


class BrokerSettingsAnswer(ApiModel):
    """The settings of a broker, under RocketMQ's names."""

    broker: str
    settings: dict[str, Text]

"""The overview: sums, brokers, the busiest topics and groups, alerts and histories."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sparrow import clock
from sparrow.console.models.clusters import BrokerAnswer, NameServerAnswer
from sparrow.console.models.fields import ApiModel, Text, Time
from sparrow.console.sampler import ClusterSample, Sampler
from sparrow.operations.topics import TopicKind

TOP_COUNT = 10
DISK_ALERT_RATIO = 0.85
LAG_ALERT_MESSAGES = 100_000


class AlertAnswer(ApiModel):
    """Something that an operator should look at."""

    severity: Literal["warning", "error"]
    kind: Literal["broker", "name_server", "disk", "lag", "dead_letters", "sample"]
    target: Text = Field(description="Name of the broker, group or topic.")
    detail: Text = Field(description="A sentence in English.")
    values: dict[str, Text | int] = Field(default={}, description="The values in `detail`, for other languages.")


class RankAnswer(ApiModel):
    """A topic or group with a figure."""

    name: str
    value: float


class OverviewAnswer(ApiModel):
    """A cluster at a glance."""

    time: Time
    error: Text | None = Field(description="Why the newest sample failed; then the figures are older.")
    in_per_s: float
    out_per_s: float
    lag: int
    retrying: int
    dead_letters: int
    topics: int
    groups: int
    members: int
    connections: int | None = Field(description="Connections of clients to all brokers; null if none reports them.")
    send_p50_ms: float | None = Field(description="Half of the sends of the last minute took no longer than this.")
    send_p99_ms: float | None = Field(description="99 % of the sends of the last minute took no longer than this.")
    messages: int
    brokers: list[BrokerAnswer]
    name_servers: list[NameServerAnswer]
    top_topics: list[RankAnswer] = Field(description="By messages per second.")
    top_groups: list[RankAnswer] = Field(description="By lag.")
    alerts: list[AlertAnswer]
    times_ms: list[int] = Field(description="Times of the histories.")
    series: dict[str, list[float | None]] = Field(
        description="Histories: in_per_s, out_per_s, lag, connections, send_p50_ms and send_p99_ms."
    )


def describe_overview(sample: ClusterSample, sampler: Sampler | None) -> dict[str, Any]:
    """Return the overview of a sample; with histories and errors if the sampler is given."""
    plain = [topic for topic in sample.topics if topic.kind is TopicKind.NORMAL]
    groups = [group for group in sample.groups if not group.is_system]
    rates = [{"name": topic.name, "value": sample.in_per_s.get(topic.name, 0.0)} for topic in plain]
    lags = [{"name": group.name, "value": group.lag} for group in groups]
    return {
        "time": sample.time_ms,
        "error": sampler.error if sampler is not None else None,
        "in_per_s": sum(rate["value"] for rate in rates),
        "out_per_s": sum(sample.out_per_s.values()),
        "lag": sum(group.lag for group in groups),
        "retrying": sum(group.retrying for group in groups),
        "dead_letters": sum(group.dead_letters for group in groups),
        "topics": len(plain),
        "groups": len(groups),
        "members": sum(group.members or 0 for group in groups),
        "connections": sample.connections,
        "send_p50_ms": sample.send_p50_ms,
        "send_p99_ms": sample.send_p99_ms,
        "messages": sum(topic.messages for topic in plain),
        "brokers": sample.cluster.brokers,
        "name_servers": sample.cluster.name_servers,
        "top_topics": _top(rates),
        "top_groups": _top(lags),
        "alerts": _alerts(sample, sampler),
        "times_ms": sampler.times if sampler is not None else [],
        "series": sampler.total_series() if sampler is not None else {},
    }


def _top(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ranked = sorted(rows, key=lambda row: (-row["value"], row["name"]))
    return [row for row in ranked[:TOP_COUNT] if row["value"]]


def _alerts(sample: ClusterSample, sampler: Sampler | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def add(severity: str, kind: str, target: str, detail: str, **values: str | int) -> None:
        found.append({"severity": severity, "kind": kind, "target": target, "detail": detail, "values": values})

    if sampler is not None and sampler.error is not None:
        age_s = max(0, clock.now_ms() - sample.time_ms) // 1000
        add("error", "sample", "", f"figures are {age_s} s old: {sampler.error}", age_s=age_s, error=sampler.error)
    for broker in sample.cluster.brokers:
        if not broker.is_reachable:
            add("error", "broker", broker.name, broker.error or "it does not respond")
        elif broker.disk_ratio is not None and broker.disk_ratio >= DISK_ALERT_RATIO:
            used = f"{broker.disk_ratio:.0%}"
            add("error", "disk", broker.name, f"{used} of its disk is used", used=used)
    for server in sample.cluster.name_servers:
        if not server.is_reachable:
            add("warning", "name_server", server.address, server.error or "it does not respond")
    for group in sample.groups:
        if group.lag >= LAG_ALERT_MESSAGES:
            add("warning", "lag", group.name, f"{group.lag} messages are not read", count=group.lag)
        if group.dead_letters:
            add("warning", "dead_letters", group.name, f"{group.dead_letters} dead letters", count=group.dead_letters)
    return found

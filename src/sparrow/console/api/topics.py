"""Routes of topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request

from sparrow.console.api.parameters.plans import ConfirmationDependency, TopicPath, with_dry_run
from sparrow.console.context import ClusterDependency
from sparrow.console.models.topics import (
    PERMISSIONS,
    SeriesAnswer,
    TopicAnswer,
    TopicChangeInput,
    TopicDeletionAnswer,
    TopicDetailAnswer,
    TopicInput,
)
from sparrow.console.pagination import CursorQuery, LimitQuery, Page, SearchQuery, make_page
from sparrow.console.sampler import ClusterSample
from sparrow.console.security import Role, needs
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.operations import topics
from sparrow.operations.topics import TopicKind, TopicSummary

router = APIRouter(tags=["topics"])

TopicSort = Literal["name", "-name", "messages", "-messages", "in_per_s", "-in_per_s", "lag", "-lag"]
_SORT_KEYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda topic: topic["name"],
    "messages": lambda topic: topic["messages"],
    "in_per_s": lambda topic: topic["in_per_s"],
    "lag": lambda topic: topic["lag"],
}


@router.get("/topics", response_model=Page[TopicAnswer])
async def list_topics(
    cluster: ClusterDependency,
    q: SearchQuery = None,
    kind: Annotated[
        list[TopicKind] | None, Query(description="Only topics of these kinds; without it, normal.")
    ] = None,
    sort: TopicSort = "name",
    limit: LimitQuery = 50,
    cursor: CursorQuery = None,
) -> dict[str, Any]:
    """List topics with rates and lag, as of the last sample, which is a few seconds old."""
    snapshot = await cluster.sampler.latest()
    wanted = frozenset(kind or (TopicKind.NORMAL,))
    needle = (q or "").lower()
    readers = _readers(snapshot)
    rows = [
        _row(topic, snapshot, readers)
        for topic in snapshot.topics
        if topic.kind in wanted and needle in topic.name.lower()
    ]
    return make_page(
        rows,
        name_of=lambda topic: str(topic["name"]),
        sort_key=_SORT_KEYS[sort.removeprefix("-")],
        is_descending=sort.startswith("-"),
        limit=limit,
        cursor=cursor,
    )


@router.post("/topics", response_model=TopicAnswer, status_code=201)
async def create_topic(body: TopicInput, request: Request, cluster: ClusterDependency) -> TopicSummary:
    """Create a topic on all brokers; 409 if it exists."""
    async with cluster.audit.change(request, "topic.create", body.name, asked=body.model_dump()) as line:
        created = await topics.put_topic(
            cluster.admin,
            body.name,
            queues=body.queues,
            has_lanes=body.has_lanes,
            message_type=body.message_type,
            permission=PERMISSIONS[body.permission],
            is_new=True,
        )
        line.after = msgspec.to_builtins(created)
        return created


@router.get("/topics/{topic}", response_model=TopicDetailAnswer)
async def get_topic(topic: TopicPath, cluster: ClusterDependency) -> topics.TopicDetail:
    """Return a topic with its queues and readers, as they are now."""
    return await topics.fetch_topic(cluster.admin, topic)


@router.get("/topics/{topic}/series", response_model=SeriesAnswer)
async def get_topic_series(topic: TopicPath, cluster: ClusterDependency) -> dict[str, Any]:
    """Return the rate of the topic over the last hour, and the lag of each group that reads it."""
    snapshot = await cluster.sampler.latest()
    series = {"in_per_s": cluster.sampler.topic_series(topic)}
    for group, read in snapshot.lags:
        if read == topic:
            series[f"lag:{group}"] = cluster.sampler.group_series(group, topic)["lag"]
    return {"times_ms": cluster.sampler.times, "series": series}


@router.patch("/topics/{topic}", response_model=TopicAnswer)
async def change_topic(
    topic: TopicPath, body: TopicChangeInput, request: Request, cluster: ClusterDependency
) -> TopicSummary:
    """Change the number of queues or the permission of a topic."""
    found = await topics.fetch_topic(cluster.admin, topic)
    config = next(iter(found.configs.values()))
    async with cluster.audit.change(
        request, "topic.update", topic, asked=body.model_dump(exclude_none=True), before=msgspec.to_builtins(config)
    ) as line:
        changed = await topics.put_topic(
            cluster.admin,
            topic,
            queues=body.queues or config.write_queues,
            has_lanes=found.summary.has_lanes,
            permission=config.permission if body.permission is None else PERMISSIONS[body.permission],
            is_new=False,
        )
        line.after = msgspec.to_builtins(changed)
        return changed


@router.delete("/topics/{topic}", response_model=TopicDeletionAnswer)
@needs(Role.ADMIN)
async def delete_topic(
    topic: TopicPath,
    request: Request,
    cluster: ClusterDependency,
    confirmation: ConfirmationDependency,
) -> dict[str, Any]:
    """Delete a topic with its messages. A dry run returns the plan whose hash the deletion has to name."""
    if confirmation.dry_run:
        return with_dry_run(await topics.plan_deletion(cluster.admin, topic), dry_run=True)
    async with cluster.audit.change(request, "topic.delete", topic, asked=confirmation.audited()) as line:
        deleted = await topics.delete_topic(cluster.admin, topic, plan=confirmation.plan, force=confirmation.force)
        line.before = msgspec.to_builtins(deleted)
        return with_dry_run(deleted, dry_run=False)


def _readers(snapshot: ClusterSample) -> dict[str, tuple[int, int]]:
    """Return the number of groups and their lag for each topic."""
    found: dict[str, tuple[int, int]] = {}
    for (_, topic), lag in snapshot.lags.items():
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            count, total = found.get(topic, (0, 0))
            found[topic] = count + 1, total + lag
    return found


def _row(topic: TopicSummary, snapshot: ClusterSample, readers: dict[str, tuple[int, int]]) -> dict[str, Any]:
    groups, lag = readers.get(topic.name, (0, 0))
    row: dict[str, Any] = msgspec.structs.asdict(topic)
    return row | {"in_per_s": snapshot.in_per_s.get(topic.name, 0.0), "groups": groups, "lag": lag}

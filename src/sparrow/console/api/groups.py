"""Routes of consumer groups: lists, members and lag, changes, resets and deletion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request

from sparrow.console.api.parameters.plans import ConfirmationDependency, GroupPath, with_dry_run
from sparrow.console.context import ClusterDependency
from sparrow.console.models.groups import (
    GroupAnswer,
    GroupChangeInput,
    GroupConfigAnswer,
    GroupDeletionAnswer,
    GroupDetailAnswer,
    GroupInput,
    ResetAnswer,
    ResetInput,
)
from sparrow.console.models.topics import SeriesAnswer
from sparrow.console.pagination import CursorQuery, LimitQuery, Page, SearchQuery, make_page
from sparrow.console.security import Role, needs
from sparrow.model.errors import UnknownGroup
from sparrow.model.topic import Group
from sparrow.operations import groups
from sparrow.operations.offset_resets import ResetTarget, plan_reset, reset_offsets

router = APIRouter(tags=["groups"])

GroupSort = Literal["name", "-name", "lag", "-lag", "members", "-members", "dead_letters", "-dead_letters"]
_SORT_KEYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda group: group["name"],
    "lag": lambda group: group["lag"],
    "members": lambda group: group["members"] or 0,
    "dead_letters": lambda group: group["dead_letters"],
}


@router.get("/groups", response_model=Page[GroupAnswer])
async def list_groups(
    cluster: ClusterDependency,
    q: SearchQuery = None,
    topic: Annotated[str | None, Query(max_length=127, description="Only groups that have read this topic.")] = None,
    system: Annotated[bool, Query(description="Also groups of RocketMQ's brokers and tools.")] = False,
    history: Annotated[int, Query(ge=0, le=360, description="Samples of its lag to add to each group.")] = 0,
    sort: GroupSort = "name",
    limit: LimitQuery = 50,
    cursor: CursorQuery = None,
) -> dict[str, Any]:
    """List groups with lag and rates, as of the last sample, which is a few seconds old."""
    snapshot = await cluster.sampler.latest()
    needle = (q or "").lower()
    rows: list[dict[str, Any]] = []
    for group in snapshot.groups:
        if (group.is_system and not system) or needle not in group.name.lower():
            continue
        if topic is not None and topic not in group.topics:
            continue
        rate = sum(snapshot.out_per_s.get((group.name, name), 0.0) for name in group.topics)
        rows.append({**msgspec.structs.asdict(group), "out_per_s": rate})
    page = make_page(
        rows,
        name_of=lambda group: str(group["name"]),
        sort_key=_SORT_KEYS[sort.removeprefix("-")],
        is_descending=sort.startswith("-"),
        limit=limit,
        cursor=cursor,
    )
    if history:
        for row in page["items"]:
            row["lag_history"] = cluster.sampler.group_lag_series(row["name"], row["topics"], history)
    return page


@router.post("/groups", response_model=GroupConfigAnswer, status_code=201)
async def create_group(body: GroupInput, request: Request, cluster: ClusterDependency) -> Group:
    """Create a group on all brokers; 409 if it exists."""
    async with cluster.audit.change(request, "group.create", body.name, asked=body.model_dump()) as line:
        created = await groups.put_group(cluster.admin, Group(**body.model_dump()), is_new=True)
        line.after = msgspec.to_builtins(created)
        return created


@router.get("/groups/{group}", response_model=GroupDetailAnswer)
async def get_group(group: GroupPath, cluster: ClusterDependency) -> groups.GroupDetail:
    """Return a group with members, assignment and lag of each queue, as they are now."""
    return await groups.fetch_group(cluster.admin, group)


@router.get("/groups/{group}/series", response_model=SeriesAnswer)
async def get_group_series(group: GroupPath, cluster: ClusterDependency) -> dict[str, Any]:
    """Return lag and rate of the group on each topic over the last hour."""
    snapshot = await cluster.sampler.latest()
    series: dict[str, list[float | None]] = {}
    for name, topic in snapshot.lags:
        if name == group:
            series |= {f"{what}:{topic}": values for what, values in cluster.sampler.group_series(group, topic).items()}
    return {"times_ms": cluster.sampler.times, "series": series}


@router.patch("/groups/{group}", response_model=GroupConfigAnswer)
async def change_group(group: GroupPath, body: GroupChangeInput, request: Request, cluster: ClusterDependency) -> Group:
    """Change the configuration of a group."""
    known = (await cluster.admin.groups()).get(group)
    if known is None:
        raise UnknownGroup(group)
    changes = body.model_dump(exclude_none=True)
    async with cluster.audit.change(
        request, "group.update", group, asked=changes, before=msgspec.to_builtins(known)
    ) as line:
        changed = await groups.put_group(cluster.admin, msgspec.structs.replace(known, **changes), is_new=False)
        line.after = msgspec.to_builtins(changed)
        return changed


@router.post("/groups/{group}/reset", response_model=ResetAnswer)
async def reset_group(
    group: GroupPath,
    body: ResetInput,
    request: Request,
    cluster: ClusterDependency,
    confirmation: ConfirmationDependency,
) -> dict[str, Any]:
    """Reset the offsets of a group on a topic, or on one queue.

    A dry run returns the old and the new offset of each queue, and the hash that the reset has to name. Without
    `force` it is refused while members are online.
    """
    target = ResetTarget(**body.model_dump(exclude={"topic"}))
    if confirmation.dry_run:
        return with_dry_run(await plan_reset(cluster.admin, group, body.topic, target), dry_run=True)
    async with cluster.audit.change(request, "group.reset", group, asked=confirmation.audited(body)) as line:
        done = await reset_offsets(
            cluster.admin, group, body.topic, target, plan=confirmation.plan, force=confirmation.force
        )
        line.before = {f"{queue.broker}/{queue.queue_id}": queue.old for queue in done.queues}
        line.after = {f"{queue.broker}/{queue.queue_id}": queue.new for queue in done.queues}
        return with_dry_run(done, dry_run=False)


@router.delete("/groups/{group}", response_model=GroupDeletionAnswer)
@needs(Role.ADMIN)
async def delete_group(
    group: GroupPath,
    request: Request,
    cluster: ClusterDependency,
    confirmation: ConfirmationDependency,
) -> dict[str, Any]:
    """Delete a group with its offsets. A dry run returns the plan whose hash the deletion has to name."""
    if confirmation.dry_run:
        return with_dry_run(await groups.plan_deletion(cluster.admin, group), dry_run=True)
    async with cluster.audit.change(request, "group.delete", group, asked=confirmation.audited()) as line:
        deleted = await groups.delete_group(cluster.admin, group, plan=confirmation.plan, force=confirmation.force)
        line.before = msgspec.to_builtins(deleted)
        return with_dry_run(deleted, dry_run=False)

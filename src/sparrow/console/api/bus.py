"""Routes of the event bus: statistics, stored messages by state, and actions on them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request

from sparrow.console.api.parameters.plans import ConfirmationDependency
from sparrow.console.bus_client import BusClient
from sparrow.console.context import ClusterDependency, ContextDependency
from sparrow.console.masks import HIDDEN, active_masks, check_event_search
from sparrow.console.models.bus import (
    BusActionAnswer,
    BusActionInput,
    BusEventAnswer,
    BusPageAnswer,
    BusStatus,
)
from sparrow.console.pagination import CursorQuery, LimitQuery, decode_cursor, encode_cursor
from sparrow.model.errors import BadRequest, Refused
from sparrow.operations.errors import NotFound
from sparrow.operations.plans import check_plan, hash_plan

router = APIRouter(prefix="/bus", tags=["event bus"])

BusSide = Literal["published", "received"]
BusAction = Literal["requeue", "reexecute", "cancel", "publish-now", "delete", "park", "unpark"]
SidePath = Annotated[BusSide, Path(description="published or received.")]
EventIdPath = Annotated[str, Path(pattern="^[0-9]{1,19}$", examples=["7241230983245824"])]
_ACTIONS: dict[str, tuple[str, ...]] = {
    "published": ("requeue", "cancel", "publish-now", "delete", "park", "unpark"),
    "received": ("reexecute", "cancel", "delete", "park", "unpark"),
}


def _client(context: ContextDependency) -> BusClient:
    if context.bus is None:
        raise NotFound("event bus", "", "start the console with --bus-database URL")
    return context.bus


@router.get("/stats", response_model=dict[str, Any])
async def get_stats(context: ContextDependency) -> dict[str, Any]:
    """Return counts by state, the backlog of each group and the age of the oldest open message, for both sides."""
    async with _client(context).operations() as operations:
        return (await operations.stats()).to_builtins()


@router.get("/{side}", response_model=BusPageAnswer)
async def list_events(
    side: SidePath,
    context: ContextDependency,
    status: Annotated[BusStatus | None, Query(description="Only this state; Open stands for all open ones.")] = None,
    name: Annotated[str | None, Query(max_length=255)] = None,
    group: Annotated[str | None, Query(max_length=255)] = None,
    content: Annotated[str | None, Query(max_length=1_024, description="Headers or payload contain this.")] = None,
    error: Annotated[str | None, Query(max_length=1_024, description="The last error contains this.")] = None,
    limit: LimitQuery = 50,
    cursor: CursorQuery = None,
) -> dict[str, Any]:
    """List stored messages, the newest first."""
    check_event_search(content or error)
    where = {"status": status, "name": name, "group": group, "content": content, "error": error}
    before_id = decode_cursor(cursor, int)
    async with _client(context).operations() as operations:
        from sparrow.bus.operations.stored_event import Where

        found = await operations.find(side, Where(**where), limit=limit, before_id=before_id)  # type: ignore[arg-type]
    following = encode_cursor(found[-1].id) if len(found) == limit else None
    return {"events": [_shown(event) for event in found], "next": following}


@router.get("/{side}/{event_id}", response_model=BusEventAnswer)
async def get_event(side: SidePath, event_id: EventIdPath, context: ContextDependency) -> dict[str, Any]:
    """Return a stored message with headers and payload."""
    async with _client(context).operations() as operations:
        return _shown(await operations.get(side, int(event_id)))


@router.post("/{side}/actions/{action}", response_model=BusActionAnswer)
async def act(
    side: SidePath,
    action: BusAction,
    body: BusActionInput,
    request: Request,
    context: ContextDependency,
    cluster: ClusterDependency,
    confirmation: ConfirmationDependency,
) -> dict[str, Any]:
    """Requeue published messages, execute received ones again, or cancel, delete or park them.

    By ids, each has its own result. By a filter, a dry run returns the count and the hash that the action has to name.
    """
    if action not in _ACTIONS[side]:
        raise Refused(f"{side} messages have no action {action!r}: use one of {', '.join(_ACTIONS[side])}")
    if (body.ids is None) == (body.where is None):
        raise BadRequest("the request", "ids", "and where exclude each other: give exactly one of them")
    if body.where is not None:
        check_event_search(body.where.content or body.where.error)
    asked = body.model_dump(mode="json", exclude_none=True)
    if body.ids is not None:
        if confirmation.dry_run:
            return await _act_on_ids(context, side, action, body.ids, dry_run=True)
        async with cluster.audit.change(request, f"bus.{action}", side, asked=asked) as line:
            answer = await _act_on_ids(context, side, action, body.ids, dry_run=False)
            line.result, line.after = answer["state"], {"count": answer["count"]}
            return answer
    planned = await _act_where(context, side, action, body, dry_run=True)
    if confirmation.dry_run:
        return planned
    async with cluster.audit.change(request, f"bus.{action}", side, asked=asked) as line:
        check_plan(f"{action} of {side} messages", confirmation.plan, planned["hash"], force=confirmation.force)
        answer = await _act_where(context, side, action, body, dry_run=False)
        line.after = {"count": answer["count"]}
        return answer


async def _act_on_ids(
    context: ContextDependency, side: BusSide, action: str, ids: list[str], *, dry_run: bool
) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    async with _client(context).operations() as operations:
        for event_id in dict.fromkeys(ids):
            try:
                await _call(operations, side, action, int(event_id), dry_run=dry_run)
            except Refused as error:
                items.append({"id": event_id, "done": False, "error": str(error)})
            else:
                items.append({"id": event_id, "done": True})
    done = sum(item["done"] for item in items)
    state = "done" if done == len(items) else "partial" if done else "failed"
    return {
        "dry_run": dry_run,
        "action": action,
        "state": "planned" if dry_run else state,
        "count": done,
        "items": items,
    }


async def _act_where(
    context: ContextDependency, side: BusSide, action: str, body: BusActionInput, *, dry_run: bool
) -> dict[str, Any]:
    from sparrow.bus.operations.stored_event import Where

    assert body.where is not None
    where = Where(**body.where.model_dump())
    async with _client(context).operations() as operations:
        done = await _call(operations, side, action, where=where, limit=body.limit, dry_run=dry_run)
    basis = body.model_dump(mode="json")
    return {
        "dry_run": dry_run,
        "action": action,
        "state": "planned" if dry_run else "done",
        "count": done.count,
        "items": [{"id": str(number), "done": not dry_run} for number in done.ids],
        "hash": hash_plan("bus", side, action, basis, done.count) if dry_run else None,
    }


async def _call(operations: Any, side: BusSide, action: str, *ids: int, **how: Any) -> Any:
    if action in ("requeue", "reexecute", "publish-now"):
        return await getattr(operations, action.replace("-", "_"))(*ids, **how)
    return await getattr(operations, action)(*ids, side=side, **how)


def _shown(event: Any) -> dict[str, Any]:
    masks = active_masks()
    is_hidden = masks.hides_anything(event.name)
    key, _ = masks.mask_labels(event.name, (event.key,) if event.key else (), None)
    return {
        "id": event.id,
        "name": event.name,
        "group": event.group,
        "status": event.status.value,
        "retries": event.retries,
        "rounds": event.rounds,
        "added": _ms(event.added),
        "expires": _ms(event.expires_at),
        "due": _ms(event.due_at),
        "key": key[0] if key else event.key,
        "error": HIDDEN if is_hidden and event.error else event.error,
        "parked": event.parked,
        "message_id": event.message_id,
        "locked_by": event.locked_by,
        "headers": masks.mask_headers(event.name, event.headers),
        "value": masks.mask_value(event.name, event.value),
        "content": None if event.headers or not event.content else HIDDEN if is_hidden else event.content,
    }


def _ms(time: datetime | None) -> int | None:
    if time is None:
        return None
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)

"""Routes of dead letters and resends."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request

from sparrow.console.api.messages import BodyBytesQuery
from sparrow.console.api.parameters.plans import ConfirmationDependency, GroupPath, TopicPath, with_dry_run
from sparrow.console.api.parameters.times import FromQuery, ToQuery, parse_time
from sparrow.console.context import ClusterDependency, ContextDependency
from sparrow.console.masks import check_search
from sparrow.console.models.dead_letters import (
    DeadLetterAnswer,
    DeadLetterGroupAnswer,
    DeadLetterPageAnswer,
    RedriveAnswer,
    RedriveInput,
    ResendAnswer,
    ResendInput,
    input_ms,
    show_letter,
)
from sparrow.console.models.fields import BODY_BYTES_DEFAULT
from sparrow.console.pagination import CursorQuery, LimitQuery, decode_cursor, show_scan
from sparrow.model.protocol import DLQ_TOPIC_PREFIX
from sparrow.operations import dead_letters, resends
from sparrow.operations.messages import SearchFilter, SearchLimits, SearchOrder

router = APIRouter(tags=["dead letters"])

LetterIdPath = Annotated[str, Path(min_length=1, max_length=255, description="Unique id or offset id.")]


@router.get("/dead-letters", response_model=list[DeadLetterGroupAnswer])
async def list_groups(cluster: ClusterDependency) -> list[dead_letters.DeadLetterGroup]:
    """List the groups that have dead letters."""
    return await dead_letters.list_groups_with_dead_letters(cluster.admin)


@router.get("/dead-letters/{group}", response_model=DeadLetterPageAnswer)
async def list_letters(
    group: GroupPath,
    cluster: ClusterDependency,
    from_time: FromQuery = None,
    to_time: ToQuery = None,
    key: Annotated[str | None, Query(min_length=1, max_length=255)] = None,
    text: Annotated[str | None, Query(max_length=1_024, description="The body contains this text.")] = None,
    order: SearchOrder = "newest",
    limit: LimitQuery = 50,
    cursor: CursorQuery = None,
    body_bytes: BodyBytesQuery = BODY_BYTES_DEFAULT,
) -> dict[str, Any]:
    """List dead letters of a group and why they failed."""
    check_search(DLQ_TOPIC_PREFIX + group, text=text, key=key)
    wanted = SearchFilter(from_ms=parse_time("from", from_time), to_ms=parse_time("to", to_time), key=key, text=text)
    page = await dead_letters.list_dead_letters(
        cluster.admin,
        group,
        wanted,
        order=order,
        limits=SearchLimits(found=limit),
        after=decode_cursor(cursor, dict[str, int]),
    )
    return {"letters": [show_letter(letter, body_bytes) for letter in page.letters]} | show_scan(page)


@router.get("/dead-letters/{group}/{letter_id}", response_model=DeadLetterAnswer)
async def get_letter(
    group: GroupPath,
    letter_id: LetterIdPath,
    cluster: ClusterDependency,
    body_bytes: BodyBytesQuery = BODY_BYTES_DEFAULT,
) -> dict[str, Any]:
    """Return a dead letter with its traceback and body."""
    return show_letter(await dead_letters.find_dead_letter(cluster.admin, group, letter_id), body_bytes)


@router.post("/dead-letters/{group}/redrive", response_model=RedriveAnswer)
async def redrive(
    group: GroupPath,
    body: RedriveInput,
    request: Request,
    cluster: ClusterDependency,
    confirmation: ConfirmationDependency,
) -> dict[str, Any]:
    """Send dead letters again, with a result for each. They stay among the dead letters.

    A dry run returns the number of letters and the hash that the redrive has to name.
    """
    selection = dead_letters.RedriveSelection(
        ids=tuple(body.ids) if body.ids is not None else None,
        since_ms=input_ms(body.since),
        everything=body.everything,
    )
    if confirmation.dry_run:
        planned = await dead_letters.plan_redrive(cluster.admin, group, selection)
        return {
            "dry_run": True,
            "group": group,
            "state": "planned",
            "count": planned.count,
            "missing": planned.missing,
            "hash": planned.hash,
        }
    async with cluster.audit.change(request, "dead_letter.redrive", group, asked=confirmation.audited(body)) as line:
        done = await dead_letters.redrive(
            cluster.admin,
            group,
            selection,
            plan=confirmation.plan,
            force=confirmation.force,
            to_group_only=body.to_group_only,
        )
        failed = done.failed + done.not_found
        line.result = "partial" if done.is_partial else "failed" if failed else "done"
        line.after = {"sent": done.sent, "failed": done.failed, "not_found": done.not_found}
    return {
        "dry_run": False,
        "group": group,
        "state": line.result,
        "count": done.sent,
        "failed": done.failed,
        "not_found": done.not_found,
        "items": done.items,
        "omitted": done.omitted,
    }


@router.post("/topics/{topic}/resend", response_model=ResendAnswer)
async def resend(
    topic: TopicPath,
    body: ResendInput,
    request: Request,
    cluster: ClusterDependency,
    context: ContextDependency,
    confirmation: ConfirmationDependency,
) -> dict[str, Any]:
    """Deliver stored messages to a group once more, without copying them.

    A dry run counts them, and returns the hash that the resend has to name.
    """
    for key in body.keys or ():
        check_search(topic, key=key)
    query = resends.ResendQuery(
        group=body.group,
        begin=body.begin,
        end=body.end,
        queue_id=body.queue_id,
        priority=body.priority,
        broker=body.broker,
        keys=tuple(body.keys) if body.keys is not None else None,
        from_ms=input_ms(body.from_time),
        to_ms=input_ms(body.to_time),
        includes_unread=body.includes_unread,
    )
    keys, _ = context.masks.mask_labels(topic, query.keys or (), None)  # every role sees the audit
    asked = msgspec.to_builtins(query) | {"keys": keys or None}
    if confirmation.dry_run:
        return with_dry_run(await resends.plan_resend(cluster.admin, topic, query), dry_run=True)
    async with cluster.audit.change(request, "message.resend", topic, asked=asked) as line:
        done = await resends.resend(cluster.admin, topic, query, plan=confirmation.plan, force=confirmation.force)
        line.after = msgspec.to_builtins(done)
        return with_dry_run(done, dry_run=False)

"""Routes of delayed messages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from sparrow.console.api.parameters.plans import ConfirmationDependency
from sparrow.console.api.parameters.times import FromQuery, ToQuery, parse_time
from sparrow.console.context import ClusterDependency
from sparrow.console.models.waiting_messages import (
    DelayedPageAnswer,
    RecallInput,
    WaitingActionAnswer,
    mask_waiting,
    show_waiting_plan,
    show_waiting_report,
)
from sparrow.console.pagination import CursorQuery, LimitQuery, decode_cursor, show_scan
from sparrow.operations.waiting_messages import delayed_messages
from sparrow.operations.waiting_messages.delayed_messages import DelayedCursor

router = APIRouter(tags=["delayed messages"])

WaitingTopicQuery = Annotated[
    str | None, Query(min_length=1, max_length=255, description="Only messages for this topic.")
]


@router.get("/delayed-messages", response_model=DelayedPageAnswer)
async def list_delayed(
    cluster: ClusterDependency,
    topic: WaitingTopicQuery = None,
    from_time: FromQuery = None,
    to_time: ToQuery = None,
    limit: LimitQuery = 50,
    cursor: CursorQuery = None,
) -> dict[str, Any]:
    """List messages that wait for their delivery time, the next to be delivered first.

    `from` and `to` limit the delivery time. A broker reads 2,000 messages for one page; `next` continues.
    """
    page = await delayed_messages.list_delayed(
        cluster.admin,
        topic=topic,
        from_ms=parse_time("from", from_time) or 0,
        until_ms=parse_time("to", to_time),
        limit=limit,
        after=decode_cursor(cursor, DelayedCursor),
    )
    return {"messages": [mask_waiting(message) for message in page.messages]} | show_scan(page)


@router.post("/delayed-messages/recall", response_model=WaitingActionAnswer)
async def recall(
    body: RecallInput,
    request: Request,
    cluster: ClusterDependency,
    confirmation: ConfirmationDependency,
) -> dict[str, Any]:
    """Cancel the delivery of delayed messages, with a result for each.

    A dry run says which of them wait, and returns the hash that the recall has to name.
    """
    if confirmation.dry_run:
        return show_waiting_plan(await delayed_messages.plan_recall(cluster.admin, body.handles))
    asked = confirmation.audited(body)
    async with cluster.audit.change(request, "delayed_message.recall", f"{len(body.handles)}", asked=asked) as line:
        done = await delayed_messages.recall_delayed(
            cluster.admin, body.handles, plan=confirmation.plan, force=confirmation.force
        )
        line.result, line.after = done.result, done.items
        return show_waiting_report(done)

"""Routes of transactions: half messages that wait, ending them by force, and transactions that were given up."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from sparrow.console.api.delayed_messages import WaitingTopicQuery
from sparrow.console.api.messages import BodyBytesQuery
from sparrow.console.api.parameters.plans import ConfirmationDependency
from sparrow.console.context import ClusterDependency
from sparrow.console.models.access import TransactionAnswer
from sparrow.console.models.fields import BODY_BYTES_DEFAULT
from sparrow.console.models.messages import show_message
from sparrow.console.models.waiting_messages import (
    EndInput,
    HalfPageAnswer,
    WaitingActionAnswer,
    mask_waiting,
    show_waiting_plan,
    show_waiting_report,
)
from sparrow.console.pagination import CursorQuery, LimitQuery, decode_cursor, show_scan
from sparrow.model.protocol import PROPERTY_CHECK_TIMES, PROPERTY_PRODUCER_GROUP
from sparrow.operations.messages import view_message
from sparrow.operations.waiting_messages import half_messages
from sparrow.operations.waiting_messages.actions import WaitingAction
from sparrow.operations.waiting_messages.half_messages import HalfCursor

router = APIRouter(tags=["transactions"])


@router.get("/transactions/half", response_model=HalfPageAnswer)
async def list_half(
    cluster: ClusterDependency, topic: WaitingTopicQuery = None, limit: LimitQuery = 50, cursor: CursorQuery = None
) -> dict[str, Any]:
    """List half messages: transactions that no producer has ended yet, the oldest first."""
    page = await half_messages.list_half_messages(
        cluster.admin, topic=topic, limit=limit, after=decode_cursor(cursor, HalfCursor)
    )
    return {"messages": [mask_waiting(message) for message in page.messages]} | show_scan(page)


@router.post("/transactions/end", response_model=WaitingActionAnswer)
async def end(
    body: EndInput, request: Request, cluster: ClusterDependency, confirmation: ConfirmationDependency
) -> dict[str, Any]:
    """Commit or roll back transactions in the name of their producers, with a result for each.

    A dry run says which of them wait, and returns the hash that the request has to name.
    """
    action = WaitingAction(body.verdict)
    if confirmation.dry_run:
        return show_waiting_plan(await half_messages.plan_end(cluster.admin, body.ids, action))
    asked = confirmation.audited(body)
    async with cluster.audit.change(request, f"transaction.{action}", f"{len(body.ids)}", asked=asked) as line:
        done = await half_messages.end_half_messages(
            cluster.admin, body.ids, action, plan=confirmation.plan, force=confirmation.force
        )
        line.result, line.after = done.result, done.items
        return show_waiting_report(done)


@router.get("/transactions/given-up", response_model=list[TransactionAnswer])
async def list_given_up(
    cluster: ClusterDependency, limit: LimitQuery = 50, body_bytes: BodyBytesQuery = BODY_BYTES_DEFAULT
) -> list[dict[str, Any]]:
    """List the newest transactions that no producer ended, and that brokers gave up after the last check-back."""
    found = await cluster.admin.given_up_transactions(newest=limit)
    newest = sorted(found, key=lambda message: message.store_ms, reverse=True)[:limit]
    rows = []
    for message in newest:
        checks = message.properties.get(PROPERTY_CHECK_TIMES, "")
        rows.append(
            {
                "topic": message.topic,
                "producer_group": message.properties.get(PROPERTY_PRODUCER_GROUP, ""),
                "checks": int(checks) if checks.isdecimal() else None,
                "message": show_message(view_message(message, None), body_bytes),
            }
        )
    return rows

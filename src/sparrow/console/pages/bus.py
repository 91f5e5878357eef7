"""Pages of the event bus: published and received events by state, one event, and what an operator can do with them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame import formats
from sparrow.console.pages.frame.api_client import ApiProblem
from sparrow.console.pages.frame.forms import carry_out, read_choice
from sparrow.console.pages.frame.view import Flash, Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)
REFUSED_SHOWN = 5
"""Events that an action refused, and that a page names with their reason."""
SIDES = ("published", "received")
STATUSES = ("Failed", "Open", "Scheduled", "Enqueued", "Processing", "Delayed", "Successed", "Cancelled")
VERBS = {
    "published": ("requeue", "publish-now", "cancel", "delete"),
    "received": ("reexecute", "park", "unpark", "delete"),
}


@router.get("/bus")
@router.get("/bus/{side}")
async def show_events(request: Request, side: str = SIDES[0]) -> Response:
    """Show the events of one side."""
    visit = Visit(request)
    side = side if side in SIDES else SIDES[0]
    stats, problem = await visit.try_get("/bus/stats")
    if problem is not None:
        if problem.status != 404:
            raise problem
        return visit.render("bus.html", "bus", configured=False)
    asked = request.query_params
    events, problem = await visit.try_get(
        f"/bus/{side}", **{name: asked.get(name) for name in ("status", "name", "content", "cursor")}
    )
    statuses = [("", visit.t("bus.any_status")), *((name, visit.t(f"bus_status.{name}")) for name in STATUSES)]
    return visit.render(
        "bus.html",
        "bus",
        configured=True,
        side=side,
        stats=stats,
        page_of_events=events,
        problem=problem,
        statuses=statuses,
        verbs=VERBS[side],
    )


@router.get("/bus/{side}/{event_id}")
async def show_event(request: Request, side: str, event_id: str) -> Response:
    """Show one event."""
    visit = Visit(request)
    if side not in SIDES or not event_id.isdecimal():
        raise ApiProblem(404, {})
    event = await visit.api.get(f"/bus/{side}/{event_id}")
    payload = event["content"] or json.dumps(event["value"], ensure_ascii=False, indent=2)
    return visit.render("bus_event.html", "bus", side=side, event=event, payload=payload, verbs=VERBS[side])


@router.post("/bus/{side}/actions")
async def act(request: Request, side: str) -> Response:
    """Show what an action does; once confirmed, do it."""
    visit, form, ids = await read_choice(request)
    verb = form.get("verb", "")
    if side not in SIDES or verb not in VERBS[side]:
        raise ApiProblem(404, {})
    back = f"/bus/{side}"
    if not ids:
        return visit.redirect(back, Flash("warn", visit.t("bus.action_none")))
    path = f"/bus/{side}/actions/{verb}"
    name, problem = visit.t(f"bus.verb_{verb}"), None
    if form.get("plan"):
        done, problem = await carry_out(visit, form, "POST", path, body={"ids": ids})
        if problem is None:
            return visit.redirect(back, _result(visit, name, done))
    plan = await visit.api.request("POST", path, query={"dry_run": "true"}, body={"ids": ids})
    count = formats.exact(plan["count"])
    refused = [f"{item['id']}: {item['error']}" for item in plan["items"] if not item["done"]]
    return visit.render_plan(
        "bus",
        title=visit.t("bus.action_title", verb=name, count=count),
        text=visit.t(f"bus.what_{verb}"),
        facts=[("ID", ", ".join(item["id"] for item in plan["items"] if item["done"]) or formats.DASH)],
        warnings=refused[:REFUSED_SHOWN],
        action=visit.url(f"/bus/{side}/actions"),
        back=visit.url(back),
        button=visit.t("bus.action_button", verb=name, count=count),
        hidden=[*(("ids", each) for each in ids), ("verb", verb), ("plan", "1")],
        problem=problem,
    )


def _result(visit: Visit, name: str, done: dict[str, Any]) -> Flash:
    sentence = visit.t("bus.action_done", verb=name, count=formats.exact(done["count"]))
    refused = [f"{item['id']}: {item['error']}" for item in done["items"] if not item["done"]]
    return Flash("warn" if refused else "good", sentence, "; ".join(refused[:REFUSED_SHOWN]))

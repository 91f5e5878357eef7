"""Pages of dead letters: groups that have some, their messages with the cause, and redriving one or many."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame import formats
from sparrow.console.pages.frame.api_client import path_of
from sparrow.console.pages.frame.forms import carry_out, read_choice
from sparrow.console.pages.frame.view import Flash, Visit
from sparrow.console.pages.messages import BODY_SHOWN_BYTES, PREVIEW_BYTES, export_url, show_body
from sparrow.console.pages.routes import PageRoute
from sparrow.model.protocol import DLQ_TOPIC_PREFIX

router = APIRouter(route_class=PageRoute)


@router.get("/dead-letters")
async def show_groups(request: Request) -> Response:
    """Show the groups that have dead letters."""
    visit = Visit(request)
    groups = await visit.api.get("/dead-letters")
    return visit.render("dead_letters.html", "dead-letters", groups=groups)


@router.get("/dead-letters/{group}")
async def show_letters(request: Request, group: str) -> Response:
    """Show the dead letters of a group."""
    visit = Visit(request)
    page = await visit.api.get(
        path_of("dead-letters", group), cursor=request.query_params.get("cursor"), body_bytes=PREVIEW_BYTES
    )
    return visit.render(
        "dead_letter_list.html",
        "dead-letters",
        group=group,
        letters=page["letters"],
        next_cursor=page["next"],
        export=export_url(visit, DLQ_TOPIC_PREFIX + group),
    )


@router.get("/dead-letters/{group}/{letter_id}")
async def show_letter(request: Request, group: str, letter_id: str) -> Response:
    """Show one dead letter with its cause."""
    visit = Visit(request)
    letter = await visit.api.get(path_of("dead-letters", group, letter_id), body_bytes=BODY_SHOWN_BYTES)
    shown = show_body(visit, letter["message"]["body"])
    return visit.render("dead_letter.html", "dead-letters", group=group, letter=letter, **shown)


@router.post("/dead-letters/{group}/redrive")
async def redrive(request: Request, group: str) -> Response:
    """Show what a redrive sends; with a plan that was confirmed, send it."""
    visit, form, ids = await read_choice(request)
    selection: dict[str, Any] = {"everything": True} if form.get("everything") else {"ids": ids}
    path = path_of("dead-letters", group, "redrive")
    back = path_of("dead-letters", group)
    if not selection.get("everything") and not ids:
        return visit.redirect(back, Flash("warn", visit.t("dead_letters.redrive_none")))
    problem = None
    if "plan" in form:
        done, problem = await carry_out(visit, form, "POST", path, body=selection)
        if problem is None:
            return visit.redirect(back, _result(visit, done))
    plan = await visit.api.request("POST", path, query={"dry_run": "true"}, body=selection)
    count = formats.exact(plan["count"])
    missing = len(plan["missing"])
    return visit.render_plan(
        "dead-letters",
        title=visit.t("dead_letters.redrive_title", group=group),
        text=visit.t("dead_letters.redrive_text", count=count, group=group),
        warnings=[visit.t("dead_letters.redrive_missing", n=missing)] if missing else [],
        action=visit.url(path_of("dead-letters", group, "redrive")),
        back=visit.url(back),
        button=visit.t("dead_letters.redrive_button", count=count),
        hidden=[
            *(("ids", each) for each in ids),
            ("everything", "1" if selection.get("everything") else ""),
            ("plan", plan["hash"]),
        ],
        problem=problem,
    )


def _result(visit: Visit, done: dict[str, Any]) -> Flash:
    if not done["failed"] and not done["not_found"]:
        return Flash("good", visit.t("dead_letters.redrive_done", sent=formats.exact(done["count"])))
    numbers = {"sent": done["count"], "failed": done["failed"], "missing": done["not_found"]}
    reasons = "; ".join(f"{item['id']}: {item['error']}" for item in done["items"] if item["error"])
    return Flash("warn", visit.t("dead_letters.redrive_partial", **numbers), reasons)

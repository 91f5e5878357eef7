"""Pages of messages that wait: delayed messages with their recall, and transactions that no producer has ended."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow import clock
from sparrow.console.pages.frame import formats
from sparrow.console.pages.frame.api_client import ApiProblem
from sparrow.console.pages.frame.forms import read_choice, utc
from sparrow.console.pages.frame.view import Flash, Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)
PROBLEMS_SHOWN = 5
"""Messages that an action did not reach, and that a page names with their reason."""
VERDICTS = ("commit", "rollback")


@router.get("/delayed")
async def show_delayed(request: Request) -> Response:
    """Show the messages that wait for their delivery time."""
    visit = Visit(request)
    asked = request.query_params
    found, problem = await visit.try_get(
        "/delayed-messages",
        topic=asked.get("topic", "").strip() or None,
        **{"from": utc(asked.get("from")), "to": utc(asked.get("to")), "cursor": asked.get("cursor")},
    )
    return visit.render(
        "delayed.html",
        "delayed",
        status=problem.status if problem else 200,
        found=found,
        problem=problem,
        now_ms=clock.now_ms(),
        topic_names=await _topic_names(visit),
    )


@router.post("/delayed/recall")
async def recall(request: Request) -> Response:
    """Show which messages a recall cancels; with a plan that was confirmed, cancel them."""
    visit, form, handles = await read_choice(request)
    return await _act(visit, form, handles, path="/delayed-messages/recall", body={"handles": handles}, verb="recall")


@router.get("/transactions")
async def show_transactions(request: Request) -> Response:
    """Show half messages, and the transactions that were given up."""
    visit = Visit(request)
    asked = request.query_params
    half, problem = await visit.try_get(
        "/transactions/half", topic=asked.get("topic", "").strip() or None, cursor=asked.get("cursor")
    )
    given_up, _ = await visit.try_get("/transactions/given-up")
    return visit.render(
        "transactions.html",
        "transactions",
        status=problem.status if problem else 200,
        half=half,
        problem=problem,
        now_ms=clock.now_ms(),
        transactions=given_up or [],
        topic_names=await _topic_names(visit),
    )


@router.post("/transactions/end")
async def end(request: Request) -> Response:
    """Show which transactions are ended, and how; with a plan that was confirmed, end them."""
    visit, form, ids = await read_choice(request)
    verdict = form.get("verdict", "")
    if verdict not in VERDICTS:
        raise ApiProblem(404, {})
    body = {"ids": ids, "verdict": verdict}
    return await _act(
        visit, form, ids, path="/transactions/end", body=body, verb=verdict, extra=(("verdict", verdict),)
    )


async def _topic_names(visit: Visit) -> list[str]:
    names, _ = await visit.try_get("/topics", kind="normal", limit=200)
    return [topic["name"] for topic in names["items"]] if names else []


async def _act(
    visit: Visit,
    form: dict[str, str],
    ids: list[str],
    *,
    path: str,
    body: dict[str, Any],
    verb: str,
    extra: tuple[tuple[str, str], ...] = (),
) -> Response:
    page = "delayed" if verb == "recall" else "transactions"
    back = f"/{page}"
    if not ids:
        return visit.redirect(back, Flash("warn", visit.t("waiting.none_chosen")))
    problem = None
    if "plan" in form:
        try:
            done = await visit.api.request("POST", path, query={"plan": form["plan"]}, body=body)
        except ApiProblem as error:
            problem = error
        else:
            return visit.redirect(back, _result(visit, verb, done))
    plan = await visit.api.request("POST", path, query={"dry_run": "true"}, body=body)
    count = formats.exact(plan["count"])
    gone = plan["not_found"] + plan["failed"]
    return visit.render_plan(
        page,
        title=visit.t(f"waiting.{verb}_title", count=count),
        text=visit.t(f"waiting.{verb}_text", count=count),
        warnings=[visit.t("waiting.missing", n=gone)] if gone else [],
        columns=[
            (visit.t("messages.id"), "mono id"),
            (visit.t("messages.topic"), "name"),
            (visit.t("waiting.state"), ""),
        ],
        rows=[_row(visit, item) for item in plan["items"]],
        action=visit.url(f"/{page}/{'recall' if verb == 'recall' else 'end'}"),
        back=visit.url(back),
        button=visit.t(f"waiting.{verb}_button", count=count),
        hidden=[*(("ids", each) for each in ids), *extra, ("plan", plan["hash"])],
        problem=problem,
    )


def _row(visit: Visit, item: dict[str, Any]) -> tuple[str, str, str]:
    state = visit.t(f"waiting_state.{item['state']}")
    return (
        item["message_id"] or item["id"],
        item["topic"] or formats.DASH,
        f"{state}: {item['error']}" if item["error"] else state,
    )


def _result(visit: Visit, verb: str, done: dict[str, Any]) -> Flash:
    sentence = visit.t(f"waiting.{verb}_done", count=formats.exact(done["count"]))
    missed = [
        f"{row[0]}: {row[2]}"
        for item, row in ((item, _row(visit, item)) for item in done["items"])
        if item["state"] in ("not_found", "failed")
    ]
    return Flash("warn" if missed else "good", sentence, "; ".join(missed[:PROBLEMS_SHOWN]))

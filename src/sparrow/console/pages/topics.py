"""Pages of topics: the list, one topic with its queues and its live tail, forms to create, change, send and delete."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame import charts, formats
from sparrow.console.pages.frame.api_client import ApiProblem, path_of
from sparrow.console.pages.frame.forms import carry_out, read_form
from sparrow.console.pages.frame.view import Flash, Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)
KINDS = ("normal", "retry", "dead_letter", "system")
ALL_KINDS = "all"
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY")
PERMISSIONS = ("read_write", "read_only", "write_only", "none")
LAG_PREFIX = "lag:"
"""The series of a topic that are the lag of a group have its name after this."""


@router.get("/topics")
async def show_topics(request: Request) -> Response:
    """Show the list of topics."""
    visit = Visit(request)
    asked = request.query_params
    kind = asked.get("kind", KINDS[0])
    topics = await visit.api.get(
        "/topics",
        q=asked.get("q"),
        kind=KINDS if kind == ALL_KINDS else kind,
        sort=asked.get("sort"),
        cursor=asked.get("cursor"),
    )
    kinds = [(name, visit.t(f"topic_kind.{name}")) for name in (*KINDS, ALL_KINDS)]
    return visit.render("topics.html", "topics", topics=topics, kinds=kinds)


@router.get("/topics/new")
async def show_new_topic(request: Request) -> Response:
    """Show the form for a new topic."""
    return _topic_form(Visit(request), "", {"queues": 8, "permission": PERMISSIONS[0]})


@router.post("/topics/new")
async def create_topic(request: Request) -> Response:
    """Create a topic."""
    visit, form = await read_form(request)
    name = form.get("name", "").strip()
    values = _topic_values(form)
    try:
        await visit.api.request("POST", "/topics", body={"name": name, **values})
    except ApiProblem as problem:
        return _topic_form(visit, name, values, is_new=True, problem=problem)
    return visit.redirect(path_of("topics", name), Flash("good", visit.t("topics.created", name=name)))


@router.get("/topics/{name}/edit")
async def show_topic_change(request: Request, name: str) -> Response:
    """Show the form that changes a topic."""
    visit = Visit(request)
    topic = await visit.api.get(path_of("topics", name))
    summary = topic["summary"]
    is_readable, is_writable = summary["is_readable"], summary["is_writable"]
    permission = PERMISSIONS[(0 if is_writable else 1) if is_readable else (2 if is_writable else 3)]
    values = {"queues": summary["queues"] // max(len(summary["brokers"]), 1), "permission": permission}
    return _topic_form(visit, name, values, is_new=False)


@router.post("/topics/{name}/edit")
async def change_topic(request: Request, name: str) -> Response:
    """Change a topic."""
    visit, form = await read_form(request)
    values = {key: value for key, value in _topic_values(form).items() if key in ("queues", "permission")}
    try:
        await visit.api.request("PATCH", path_of("topics", name), body=values)
    except ApiProblem as problem:
        return _topic_form(visit, name, values, is_new=False, problem=problem)
    return visit.redirect(path_of("topics", name), Flash("good", visit.t("topics.changed", name=name)))


@router.get("/topics/{name}/send")
async def show_send(request: Request, name: str) -> Response:
    """Show the form that sends a message."""
    return _send_form(Visit(request), name, {})


@router.post("/topics/{name}/send")
async def send_message(request: Request, name: str) -> Response:
    """Send a message."""
    visit, form = await read_form(request)
    body: dict[str, Any] = {"text": form.get("body", "")}
    if form.get("keys", "").split():
        body["keys"] = form["keys"].split()
    if form.get("tag"):
        body["tags"] = form["tag"]
    if form.get("delay_s"):
        body["delay_ms"] = int(float(form["delay_s"]) * 1000)
    try:
        sent = await visit.api.request("POST", path_of("topics", name, "messages"), body=body)
    except ApiProblem as problem:
        return _send_form(visit, name, form, problem=problem)
    text = visit.t("topics.sent_text", id=sent["message_id"], queue=sent["queue_id"], offset=sent["queue_offset"])
    return visit.redirect(path_of("topics", name), Flash("good", visit.t("topics.sent"), text))


@router.get("/topics/{name}/delete")
async def show_deletion(request: Request, name: str) -> Response:
    """Show what the deletion of a topic removes."""
    return await _deletion_plan(Visit(request), name)


@router.post("/topics/{name}/delete")
async def delete_topic(request: Request, name: str) -> Response:
    """Delete a topic as planned."""
    visit, form = await read_form(request)
    _, problem = await carry_out(visit, form, "DELETE", path_of("topics", name), confirm_name=name)
    if problem is not None:
        return await _deletion_plan(visit, name, problem=problem)
    return visit.redirect("/topics", Flash("good", visit.t("topics.deleted", name=name)))


@router.get("/topics/{name}")
async def show_topic(request: Request, name: str) -> Response:
    """Show one topic."""
    visit = Visit(request)
    topic = await visit.api.get(path_of("topics", name))
    series, _ = await visit.try_get(path_of("topics", name, "series"))
    found = series or {"times_ms": [], "series": {}}
    readers = []
    for group in topic["groups"]:
        history = found["series"].get(LAG_PREFIX + group, [])
        readers.append({"name": group, "lag": history[-1] if history else None, "history": history})
    arrived = [charts.Series(visit.t("common.in"), found["series"].get("in_per_s", []))]
    return visit.render(
        "topic.html",
        "topics",
        topic=topic,
        readers=readers,
        lag=sum(reader["lag"] or 0 for reader in readers),
        chart=charts.time_chart(found["times_ms"], arrived, formats.rate),
    )


def _topic_values(form: dict[str, str]) -> dict[str, Any]:
    return {
        "queues": form.get("queues", ""),
        "permission": form.get("permission", PERMISSIONS[0]),
        "message_type": form.get("message_type") or None,
        "has_lanes": "has_lanes" in form,
    }


def _topic_form(
    visit: Visit, name: str, values: dict[str, Any], *, is_new: bool = True, problem: ApiProblem | None = None
) -> Response:
    return visit.render(
        "topic_form.html",
        "topics",
        status=problem.status if problem else 200,
        name=name,
        is_new=is_new,
        values={"message_type": None, "has_lanes": False, **values},
        problem=problem,
        permissions=[(value, visit.t(f"permission.{value}")) for value in PERMISSIONS],
        message_types=[
            ("", visit.t("topics.any_type")),
            *((name, visit.t(f"message_type.{name}")) for name in MESSAGE_TYPES),
        ],
    )


def _send_form(visit: Visit, name: str, form: dict[str, str], *, problem: ApiProblem | None = None) -> Response:
    values = {key: form.get(key, "") for key in ("body", "keys", "tag", "delay_s")}
    status = problem.status if problem else 200
    return visit.render("send_form.html", "topics", status=status, name=name, values=values, problem=problem)


async def _deletion_plan(visit: Visit, name: str, problem: ApiProblem | None = None) -> Response:
    plan = await visit.api.request("DELETE", path_of("topics", name), query={"dry_run": "true"})
    t = visit.t
    return visit.render_plan(
        "topics",
        title=t("topics.delete_title", name=name),
        text=t("topics.delete_text"),
        facts=[
            (t("topics.delete_messages"), formats.exact(plan["messages"])),
            (t("topics.delete_brokers"), ", ".join(plan["brokers"])),
            (t("topics.delete_groups"), ", ".join(plan["groups"]) or formats.DASH),
        ],
        action=visit.url(path_of("topics", name, "delete")),
        back=visit.url(path_of("topics", name)),
        button=t("topics.delete_button"),
        hidden=[("plan", plan["hash"])],
        confirm_name=name,
        problem=problem,
    )

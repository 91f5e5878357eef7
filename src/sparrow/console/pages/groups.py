"""Pages of consumer groups: the list with lag, one group by queue, and the forms that reset, resend and delete."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame import charts, formats
from sparrow.console.pages.frame.api_client import ApiProblem, path_of
from sparrow.console.pages.frame.forms import carry_out, read_form, utc
from sparrow.console.pages.frame.view import Flash, Visit
from sparrow.console.pages.routes import PageRoute
from sparrow.model.protocol import RETRY_TOPIC_PREFIX

router = APIRouter(route_class=PageRoute)
POSITIONS = ("first", "last", "time")
LAG_PREFIX = "lag:"
"""The series of a group that are its lag have the topic after this."""
KEEPS_UP_S = 3
"""A lag that is read in this time is only what is on its way."""
TREND_SAMPLES = 30
"""Samples from which the trend of the lag is taken: five minutes at the usual interval."""


@router.get("/groups")
async def show_groups(request: Request) -> Response:
    """Show the list of groups."""
    visit = Visit(request)
    asked = request.query_params
    chosen = {name: asked.get(name) for name in ("q", "sort", "cursor")}
    groups = await visit.api.get("/groups", history=charts.SPARKLINE_SAMPLES, **chosen)
    return visit.render("groups.html", "groups", groups=groups)


@router.get("/groups/{name}/reset")
async def show_reset(request: Request, name: str) -> Response:
    """Show the form that resets offsets."""
    return await _selection_form(Visit(request), name, "reset", {})


@router.post("/groups/{name}/reset")
async def reset_offsets(request: Request, name: str) -> Response:
    """Show what a reset does; with a plan that was confirmed, do it."""
    visit, form = await read_form(request)
    topic, position = form.get("topic", ""), form.get("position", "")
    target: dict[str, Any] = {"time": utc(form.get("time"))} if position == "time" else {"position": position}
    path, body = path_of("groups", name, "reset"), {"topic": topic, **target}
    problem = None
    if "plan" in form:
        done, problem = await carry_out(visit, form, "POST", path, body=body, confirm_name=name)
        if problem is None:
            numbers = {"again": formats.exact(done["again"]), "skipped": formats.exact(done["skipped"])}
            sentence = visit.t("groups.reset_done", group=name)
            flash = Flash("good", sentence, visit.t("groups.reset_done_text", **numbers))
            return visit.redirect(path_of("groups", name), flash)
    try:
        plan = await visit.api.request("POST", path, query={"dry_run": "true"}, body=body)
    except ApiProblem as error:
        return await _selection_form(visit, name, "reset", form, problem=problem or error)
    return _reset_plan(visit, name, form, plan, problem)


@router.get("/groups/{name}/resend")
async def show_resend(request: Request, name: str) -> Response:
    """Show the form that resends messages."""
    return await _selection_form(Visit(request), name, "resend", {})


@router.post("/groups/{name}/resend")
async def resend_messages(request: Request, name: str) -> Response:
    """Show what a resend delivers; with a plan that was confirmed, do it."""
    visit, form = await read_form(request)
    topic = form.get("topic", "")
    selection = {"group": name, "from": utc(form.get("from")), "to": utc(form.get("to"))}
    path = path_of("topics", topic, "resend")
    problem = None
    if "plan" in form:
        done, problem = await carry_out(visit, form, "POST", path, body=selection)
        if problem is None:
            sentence = visit.t("groups.resend_done", group=name, count=formats.exact(done["count"]))
            return visit.redirect(path_of("groups", name), Flash("good", sentence))
    try:
        plan = await visit.api.request("POST", path, query={"dry_run": "true"}, body=selection)
    except ApiProblem as error:
        return await _selection_form(visit, name, "resend", form, problem=problem or error)
    count = formats.exact(plan["count"])
    missing = [visit.t("groups.resend_missing", n=formats.exact(plan["missing"]))] if plan["missing"] else []
    return visit.render_plan(
        "groups",
        title=visit.t("groups.resend_title", name=name),
        text=visit.t("groups.resend_plan", count=count, topic=topic, group=name),
        warnings=missing,
        action=visit.url(path_of("groups", name, "resend")),
        back=visit.url(path_of("groups", name)),
        button=visit.t("groups.resend_button", count=count),
        hidden=[*((key, form.get(key, "")) for key in ("topic", "from", "to")), ("plan", plan["hash"])],
        problem=problem,
    )


@router.get("/groups/{name}/delete")
async def show_deletion(request: Request, name: str) -> Response:
    """Show what the deletion of a group removes."""
    return await _deletion_plan(Visit(request), name)


@router.post("/groups/{name}/delete")
async def delete_group(request: Request, name: str) -> Response:
    """Delete a group as planned."""
    visit, form = await read_form(request)
    _, problem = await carry_out(visit, form, "DELETE", path_of("groups", name), confirm_name=name)
    if problem is not None:
        return await _deletion_plan(visit, name, problem=problem)
    return visit.redirect("/groups", Flash("good", visit.t("groups.deleted", name=name)))


@router.get("/groups/{name}")
async def show_group(request: Request, name: str) -> Response:
    """Show one group."""
    visit = Visit(request)
    group = await visit.api.get(path_of("groups", name))
    series, _ = await visit.try_get(path_of("groups", name, "series"))
    found = series or {"times_ms": [], "series": {}}
    lags = {
        key.removeprefix(LAG_PREFIX): values
        for key, values in found["series"].items()
        if key.startswith(LAG_PREFIX) and not key.startswith(LAG_PREFIX + RETRY_TOPIC_PREFIX)
    }
    lines = [charts.Series(topic, values) for topic, values in sorted(lags.items())][: charts.SERIES_COLOURS]
    return visit.render(
        "group.html",
        "groups",
        group=group,
        chart=charts.time_chart(found["times_ms"], lines, formats.count),
        clears_in=_clears_in(visit, group, found["times_ms"], list(lags.values())),
    )


def _clears_in(visit: Visit, group: dict[str, Any], times_ms: list[int], lags: list[list[float | None]]) -> str:
    """Return when the group will have caught up, from how its lag has changed in the last minutes."""
    if not group["lag"]:
        return visit.t("groups.clears_now")
    if group["lag"] <= KEEPS_UP_S * group["out_per_s"]:
        return visit.t("groups.clears_keeps")
    sums = [sum(value or 0 for value in values) for values in zip(*lags, strict=False)][-TREND_SAMPLES:]
    times = times_ms[-len(sums) :] if sums else []
    if len(sums) < 2 or times[-1] <= times[0]:
        return visit.t("groups.clears_unknown")
    per_ms = (sums[0] - sums[-1]) / (times[-1] - times[0])
    return formats.duration(group["lag"] / per_ms) if per_ms > 0 else visit.t("groups.clears_never")


async def _selection_form(
    visit: Visit, name: str, verb: str, form: dict[str, str], *, problem: ApiProblem | None = None
) -> Response:
    group = await visit.api.get(path_of("groups", name))
    topics = [(each["topic"], each["topic"]) for each in group["topics"]]
    values = {key: form.get(key, "") for key in ("topic", "position", "time", "from", "to")}
    return visit.render(
        "reset_form.html",
        "groups",
        status=problem.status if problem else 200,
        name=name,
        verb=verb,
        topics=topics,
        positions=[(value, visit.t(f"groups.position_{value}")) for value in POSITIONS],
        values=values,
        problem=problem,
    )


def _reset_plan(
    visit: Visit, name: str, form: dict[str, str], plan: dict[str, Any], problem: ApiProblem | None
) -> Response:
    t = visit.t
    rows = [
        (
            f"{queue['broker']} / {queue['queue_id']}",
            formats.exact(queue["old"]),
            formats.exact(queue["new"]),
            formats.DASH if queue["old"] is None else f"{queue['new'] - queue['old']:+,}",
        )
        for queue in plan["queues"]
    ]
    again, skipped = formats.exact(plan["again"]), formats.exact(plan["skipped"])
    return visit.render_plan(
        "groups",
        title=t("groups.reset_title", name=name),
        text=t("groups.reset_plan", group=name, topic=plan["topic"], again=again, skipped=skipped),
        warnings=[t("groups.reset_members", n=plan["members"])] if plan["members"] else [],
        columns=[
            (t("topics.queue"), ""),
            (t("groups.old"), "number"),
            (t("groups.new"), "number"),
            (t("groups.difference"), "number"),
        ],
        rows=rows,
        action=visit.url(path_of("groups", name, "reset")),
        back=visit.url(path_of("groups", name)),
        button=t("groups.reset_button"),
        hidden=[
            *((key, form.get(key, "")) for key in ("topic", "position", "time")),
            ("plan", plan["hash"]),
            ("force", "true" if plan["members"] else ""),
        ],
        confirm_name=name,
        problem=problem,
    )


async def _deletion_plan(visit: Visit, name: str, problem: ApiProblem | None = None) -> Response:
    plan = await visit.api.request("DELETE", path_of("groups", name), query={"dry_run": "true"})
    t = visit.t
    return visit.render_plan(
        "groups",
        title=t("groups.delete_title", name=name),
        text=t("groups.delete_text"),
        facts=[
            (t("groups.members"), formats.exact(plan["members"])),
            (t("groups.delete_topics"), ", ".join(plan["topics"]) or formats.DASH),
            (t("groups.delete_lag"), formats.exact(plan["lag"])),
        ],
        action=visit.url(path_of("groups", name, "delete")),
        back=visit.url(path_of("groups", name)),
        button=t("groups.delete_button"),
        hidden=[("plan", plan["hash"])],
        confirm_name=name,
        problem=problem,
    )

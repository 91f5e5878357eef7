"""Pages of pipelines: the list, one pipeline with its queries, and starting and stopping it."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame import charts, formats
from sparrow.console.pages.frame.api_client import ApiProblem, path_of
from sparrow.console.pages.frame.forms import read_form
from sparrow.console.pages.frame.view import Flash, Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)
STATE_KINDS = {
    "running": "good",
    "starting": "info",
    "stopping": "warn",
    "silent": "bad",
    "failed": "bad",
    "invalid": "bad",
}
QUEUES_SHOWN = 50
_INTERVAL = re.compile(r"(\d+) (millisecond|second|minute|hour|day)s?")
_UNIT_MS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}


@router.get("/pipelines")
async def show_pipelines(request: Request) -> Response:
    """Show all pipelines with the figures of their queries."""
    visit = Visit(request)
    found = await visit.api.get("/pipelines")
    rows = [{**pipeline, **_figures(pipeline), "trigger": _trigger(visit, pipeline)} for pipeline in found["pipelines"]]
    return visit.render("pipelines.html", "pipelines", folder=found["folder"], pipelines=rows, kinds=STATE_KINDS)


@router.get("/pipelines/{name}")
async def show_pipeline(request: Request, name: str) -> Response:
    """Show one pipeline: its parts, and for each query batch times, rates and offsets."""
    visit = Visit(request)
    pipeline = await visit.api.get(path_of("pipelines", name))
    queries = [_query(visit, query) for query in (pipeline["run"] or {"queries": []})["queries"]]
    return visit.render(
        "pipeline.html",
        "pipelines",
        pipeline={**pipeline, **_figures(pipeline), "trigger": _trigger(visit, pipeline)},
        queries=queries,
        kinds=STATE_KINDS,
        queues_shown=QUEUES_SHOWN,
    )


@router.post("/pipelines/{name}/start")
async def start(request: Request, name: str) -> Response:
    """Start a declared pipeline."""
    visit, _ = await read_form(request)
    return await _act(visit, name, "start", visit.t("pipelines.started", name=name))


@router.get("/pipelines/{name}/stop")
async def show_stop(request: Request, name: str) -> Response:
    """Show what stopping a pipeline means."""
    return _stop_plan(Visit(request), name)


@router.post("/pipelines/{name}/stop")
async def stop(request: Request, name: str) -> Response:
    """Stop a pipeline."""
    visit, _ = await read_form(request)
    return await _act(visit, name, "stop", visit.t("pipelines.stopping", name=name))


async def _act(visit: Visit, name: str, verb: str, done: str) -> Response:
    page = path_of("pipelines", name)
    try:
        await visit.api.request("POST", path_of("pipelines", name, verb))
    except ApiProblem as problem:
        if problem.status == 401:
            raise
        return visit.redirect(page, Flash("bad", problem.title, problem.detail))
    return visit.redirect(page, Flash("good", done))


def _stop_plan(visit: Visit, name: str) -> Response:
    return visit.render_plan(
        "pipelines",
        title=visit.t("pipelines.stop_title", name=name),
        text=visit.t("pipelines.stop_text"),
        action=visit.url(path_of("pipelines", name, "stop")),
        back=visit.url(path_of("pipelines", name)),
        button=visit.t("pipelines.stop"),
    )


def _figures(pipeline: dict[str, Any]) -> dict[str, Any]:
    """Return the sums of the queries of a pipeline."""
    queries = (pipeline["run"] or {"queries": []})["queries"]
    lags = [query["lag"] for query in queries if query["lag"] is not None]
    rates = [query["processed_per_s"] for query in queries if query["processed_per_s"] is not None]
    last = [query["recent"][-1]["duration_ms"] for query in queries if query["recent"]]
    return {
        "rows": sum(query["rows"] for query in queries) if queries else None,
        "lag": sum(lags) if lags else None,
        "per_s": sum(rates) if rates and pipeline["is_active"] else None,
        "batch_ms": max(last) if last else None,
    }


def _trigger(visit: Visit, pipeline: dict[str, Any]) -> str:
    """Return when a pipeline starts a batch, in words; an interval that is not understood, as the file has it."""
    if pipeline["state"] == "invalid":
        return formats.DASH
    trigger: str = pipeline["trigger"]
    interval = _INTERVAL.fullmatch(trigger)
    if interval is not None:
        return visit.t("pipeline_trigger.every", time=formats.duration(int(interval[1]) * _UNIT_MS[interval[2]]))
    return visit.t.known(f"pipeline_trigger.{trigger or 'once'}", trigger)


def _query(visit: Visit, query: dict[str, Any]) -> dict[str, Any]:
    times = [batch["time"]["ms"] for batch in query["recent"]]
    durations: list[float | None] = [batch["duration_ms"] for batch in query["recent"]]
    rows: list[float | None] = [batch["rows"] for batch in query["recent"]]
    return {
        **query,
        "durations": charts.time_chart(
            times, [charts.Series(visit.t("pipelines.batch_time"), durations)], formats.duration
        ),
        "batch_rows": charts.time_chart(times, [charts.Series(visit.t("pipelines.rows"), rows)], formats.count),
    }

"""Pages of the platform: brokers and name servers, the settings of a broker, and the settings of the console."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame import formats
from sparrow.console.pages.frame.api_client import path_of
from sparrow.console.pages.frame.view import Visit
from sparrow.console.pages.replica_sets import describe_set
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)


@router.get("/cluster")
async def show_cluster(request: Request) -> Response:
    """Show brokers, replica sets and name servers."""
    visit = Visit(request)
    cluster = await visit.api.get("/cluster")
    sets, problem = await visit.try_get("/replica-sets")
    replica_sets = [describe_set(each) for each in sets or ()]
    return visit.render("cluster.html", "cluster", cluster=cluster, replica_sets=replica_sets, problem=problem)


@router.get("/cluster/{broker}")
async def show_broker_settings(request: Request, broker: str) -> Response:
    """Show the settings of a broker."""
    visit = Visit(request)
    settings = await visit.api.get(path_of("brokers", broker, "settings"))
    t = visit.t
    rows = [(name, value) for name, value in sorted(settings["settings"].items()) if _is_wanted(request, name, value)]
    return visit.render(
        "name_values.html",
        "cluster",
        title=t("cluster.settings_of", name=broker),
        text=t("cluster.settings_text"),
        crumb=(t("nav.cluster"), visit.url("/cluster")),
        columns=(t("settings.name"), t("settings.value")),
        rows=rows,
    )


@router.get("/settings")
async def show_settings(request: Request) -> Response:
    """Show the settings that the console runs with, and where they come from."""
    visit = Visit(request)
    settings = await visit.api.get("/settings")
    t = visit.t
    rows = [
        (
            each["name"],
            each["value"] or formats.DASH,
            t.known(f"settings.origin_{each['origin']}", each["origin"]),
            t.known(f"setting_meaning.{each['name']}", each["description"]),
        )
        for each in settings
        if _is_wanted(request, each["name"], each["value"], each["origin"], each["description"])
    ]
    return visit.render(
        "name_values.html",
        "settings",
        title=t("nav.settings"),
        text=t("settings.text"),
        crumb=None,
        columns=(t("settings.name"), t("settings.value"), t("settings.origin"), t("settings.meaning")),
        rows=rows,
    )


@router.get("/audit")
async def show_audit(request: Request) -> Response:
    """Show the changes that were made."""
    visit = Visit(request)
    records = await visit.api.get("/audit", cursor=request.query_params.get("cursor"))
    for line in records["lines"]:
        line["details"] = _details(line)
    return visit.render("audit.html", "audit", records=records)


def _details(line: dict[str, Any]) -> str:
    """Return what was asked for, without what the line shows elsewhere."""
    asked = line["request"] if isinstance(line["request"], dict) else {}
    known = {name: value for name, value in asked.items() if value not in (None, "", [], False) and name != "plan"}
    return json.dumps(known, ensure_ascii=False) if known else ""


def _is_wanted(request: Request, *texts: object) -> bool:
    wanted = request.query_params.get("q", "").strip().lower()
    return any(wanted in str(text).lower() for text in texts)

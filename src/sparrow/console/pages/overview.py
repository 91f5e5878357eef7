"""The overview: rates, lag, disk, connections and alerts of a cluster, with charts of the last hour."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame import charts, formats
from sparrow.console.pages.frame.api_client import path_of
from sparrow.console.pages.frame.view import Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)
ALERTS_SHOWN = 5
SEVERITIES = {"error": "bad", "warning": "warn"}


@router.get("/")
async def show_overview(request: Request) -> Response:
    """Show the overview."""
    visit = Visit(request)
    overview = await visit.api.get("/overview")
    times, series = overview["times_ms"], overview["series"]
    t = visit.t
    rates = [charts.Series(t(f"common.{side}"), series.get(f"{side}_per_s", [])) for side in ("in", "out")]
    lag = [charts.Series(t("common.lag"), series.get("lag", []))]
    latency = [charts.Series(name, series.get(f"send_{name}_ms", [])) for name in ("p50", "p99")]
    connections = [charts.Series(t("overview.connections"), series.get("connections", []))]
    alerts = [_alert(visit, alert) for alert in overview["alerts"]]
    disks = [broker["disk_ratio"] for broker in overview["brokers"] if broker["disk_ratio"] is not None]
    return visit.render(
        "overview.html",
        "overview",
        overview=overview,
        alerts=alerts[:ALERTS_SHOWN],
        alerts_more=len(alerts[ALERTS_SHOWN:]),
        disk_ratio=max(disks, default=None),
        recent={name: values[-charts.SPARKLINE_SAMPLES :] for name, values in series.items()},
        rates=charts.time_chart(times, rates, formats.rate),
        lag=charts.time_chart(times, lag, formats.count),
        latency=charts.time_chart(times, latency, formats.duration),
        connections=charts.time_chart(times, connections, formats.count),
        top_topics=_with_bars(overview["top_topics"]),
        top_groups=_with_bars(overview["top_groups"]),
    )


def _alert(visit: Visit, alert: dict[str, Any]) -> dict[str, Any]:
    pages = {
        "broker": "/cluster",
        "disk": "/cluster",
        "name_server": "/cluster",
        "sample": "/cluster",
        "lag": path_of("groups", alert["target"]),
        "dead_letters": path_of("dead-letters", alert["target"]),
    }
    return {
        "kind": SEVERITIES.get(alert["severity"], "warn"),
        "title": visit.t.known(f"alert.{alert['kind']}", alert["kind"]).format(target=alert["target"]),
        "text": _alert_text(visit, alert),
        "href": visit.url(pages.get(alert["kind"], "/cluster")),
    }


def _alert_text(visit: Visit, alert: dict[str, Any]) -> str:
    """Return the sentence of an alert in the visitor's language; the words of an error as they are."""
    sentence = visit.t.known(f"alert_detail.{alert['kind']}", "")
    values = {
        name: formats.exact(value) if isinstance(value, int) else value for name, value in alert["values"].items()
    }
    return sentence.format_map(values) if sentence and values else alert["detail"]


def _with_bars(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    most = max((rank["value"] for rank in ranks), default=0)
    return [{**rank, "most": most} for rank in ranks]

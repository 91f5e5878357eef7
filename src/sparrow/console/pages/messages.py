"""Pages of messages: the search, and one message with its body and its journey."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.masks import HIDDEN
from sparrow.console.pages.frame import formats
from sparrow.console.pages.frame.api_client import API_PREFIX, ApiProblem, path_of
from sparrow.console.pages.frame.view import Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)
PREVIEW_CHARS, PREVIEW_BYTES = 160, 1024
BODY_SHOWN_BYTES = 256 * 1024
"""A page shows this much of a body; more would make the browser slow. The whole body can be downloaded."""
STEP_KINDS = {
    "produced": "info",
    "stored": "info",
    "handled": "good",
    "acknowledged": "good",
    "failed": "bad",
    "dead": "bad",
    "retried": "warn",
    "waiting": "warn",
}


@router.get("/messages")
async def show_search(request: Request) -> Response:
    """Show the search form, and what the search found."""
    visit = Visit(request)
    asked = {name: value.strip() for name, value in request.query_params.items()}
    names, _ = await visit.try_get("/topics", kind="normal", limit=200)
    found = problem = None
    if asked.get("topic"):
        try:
            found = await _search(visit, asked)
        except ApiProblem as error:
            problem = error
    export = export_url(visit, **asked) if asked.get("topic") and not asked.get("id") else None
    topics = [topic["name"] for topic in names["items"]] if names else []
    return visit.render("messages.html", "messages", found=found, problem=problem, topic_names=topics, export=export)


def export_url(visit: Visit, topic: str, **asked: str) -> str:
    """Return the address of a download of the messages that a search of a topic finds."""
    conditions = {name: asked.get(name) for name in ("key", "tag", "text", "from", "to", "order")}
    return visit.url(f"{API_PREFIX}{path_of('topics', topic, 'messages', 'export')}", **conditions)


async def _search(visit: Visit, asked: dict[str, str]) -> dict[str, Any]:
    if asked.get("id"):
        message = await visit.api.get(path_of("messages", asked["id"]), topic=asked["topic"])
        found: dict[str, Any] = {"messages": [message], "scanned": None, "complete": True, "next": None}
    else:
        found = await visit.api.get(
            path_of("topics", asked["topic"], "messages"),
            body_bytes=PREVIEW_BYTES,
            **{name: asked.get(name) for name in ("key", "tag", "text", "from", "to", "order", "cursor")},
        )
    for message in found["messages"]:
        message["preview"] = preview(message["body"])
    return found


@router.get("/topics/{topic}/messages/{message_id}")
async def show_message(request: Request, topic: str, message_id: str) -> Response:
    """Show one message."""
    visit = Visit(request)
    journey = await visit.api.get(path_of("messages", message_id, "journey"), topic=topic, body_bytes=BODY_SHOWN_BYTES)
    message = journey["message"]
    # The clocks of client and broker differ by some ms; nothing comes before the send.
    events = sorted(journey["events"], key=lambda event: event["step"] != "produced")
    steps = [_step(visit, event) for event in events]
    return visit.render(
        "message.html",
        "messages",
        message=message,
        journey=steps,
        journey_note="" if journey["is_traced"] else visit.t("messages.no_trace"),
        download=visit.url(f"{API_PREFIX}{path_of('messages', message_id, 'body')}", topic=topic),
        **show_body(visit, message["body"]),
    )


def _step(visit: Visit, event: dict[str, Any]) -> dict[str, Any]:
    details = [_detail(visit, event)] if event["detail"] else []
    if event["attempt"] is not None:
        details.append(visit.t("journey.attempt", n=event["attempt"]))
    if event["cost_ms"] is not None:
        details.append(visit.t("journey.cost", time=formats.duration(event["cost_ms"])))
    return {
        "kind": STEP_KINDS.get(event["step"], ""),
        "title": visit.t(f"journey.{event['step']}", group=event["group"] or formats.DASH),
        "time": event["time"],
        "text": " · ".join(details),
    }


def _detail(visit: Visit, event: dict[str, Any]) -> str:
    """Return what is known of an event in the visitor's language; the words of an error as they are."""
    sentence = visit.t.known(f"journey_detail.{event['step']}", "")
    values = {**event["values"]}
    if "state" in values:
        values["state"] = visit.t.known(f"transaction_state.{values['state']}", str(values["state"]))
    return sentence.format_map(values) if sentence and values else event["detail"]


def show_body(visit: Visit, body: dict[str, Any]) -> dict[str, Any]:
    """Return what a page shows of a body: indented JSON, text or hexadecimal digits, whichever is asked for."""
    text = visit.t("messages.masked") if body["masked"] else body["text"]
    content = text.encode() if text is not None else base64.b64decode(body["base64"] or "")
    renderings = {"json": formats.pretty_json(text) if text is not None else None, "text": text}
    views = [*(name for name, found in renderings.items() if found is not None), *([] if body["masked"] else ["hex"])]
    asked = visit.request.query_params.get("view")
    view = asked if asked in views else views[0]
    whole = formats.hex_dump(content) if view == "hex" else renderings[view] or ""
    shown = whole[:BODY_SHOWN_BYTES]
    read_bytes = formats.HEX_SHOWN_BYTES if view == "hex" else len(shown.encode())
    return {
        "views": views,
        "view": view,
        "shown": shown if content else visit.t("messages.empty_body"),
        "cut": len(whole) > len(shown) or (view == "hex" and len(content) > formats.HEX_SHOWN_BYTES),
        "shown_bytes": min(len(content), read_bytes),
    }


def preview(body: dict[str, Any]) -> str:
    """Return the first characters of a body on one line."""
    if body["masked"]:
        return HIDDEN
    if body["text"] is not None:
        return " ".join(body["text"][: 2 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]
    return base64.b64decode((body["base64"] or "")[:64]).hex(" ")

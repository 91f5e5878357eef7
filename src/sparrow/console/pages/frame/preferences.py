"""Small pages of the frame: language and theme, and the search field that leads to a topic, a group or a message."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from sparrow.console.i18n import LANGUAGES
from sparrow.console.pages.frame.api_client import path_of
from sparrow.console.pages.frame.forms import read_form
from sparrow.console.pages.frame.view import LANGUAGE_COOKIE, PREFERENCE_MAX_AGE_S, THEME_COOKIE, THEMES, Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)
_MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{40}|[0-9A-Fa-f]{56}")
"""Offset ids (IPv4, IPv6) and unique ids have these lengths."""


@router.post("/preferences")
async def set_preferences(request: Request) -> Response:
    """Keep the language or the theme in a cookie, and go back."""
    visit, form = await read_form(request, is_checked=False)
    answer = RedirectResponse(visit.url(local_path(form.get("next", ""))), status_code=303)
    for cookie, value, known in (
        (LANGUAGE_COOKIE, form.get("language"), LANGUAGES),
        (THEME_COOKIE, form.get("theme"), THEMES),
    ):
        if value in known:
            answer.set_cookie(cookie, str(value), max_age=PREFERENCE_MAX_AGE_S, httponly=True, samesite="lax")
    return answer


@router.get("/search")
async def search(request: Request) -> Response:
    """Go to the topic or group of that name, to the search for that message id, or to the filtered list of topics."""
    visit = Visit(request)
    text = request.query_params.get("q", "").strip()
    if not text:
        return visit.redirect("/")
    if _MESSAGE_ID.fullmatch(text):
        return RedirectResponse(visit.url("/messages", id=text), status_code=303)
    for noun in ("topics", "groups"):
        found, _ = await visit.try_get(f"/{noun}", q=text, limit=50)
        if found and any(item["name"] == text for item in found["items"]):
            return visit.redirect(path_of(noun, text))
        if found and found["items"]:
            return RedirectResponse(visit.url(f"/{noun}", q=text), status_code=303)
    return RedirectResponse(visit.url("/topics", q=text, kind="all"), status_code=303)


def local_path(text: str) -> str:
    """Return the path if it stays on this host, otherwise the overview."""
    return text if re.match(r"/(?![/\\])[^\x00-\x20\\]*\Z", text) else "/"

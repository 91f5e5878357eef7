"""The pages of the console: HTML for people, drawn on the server from answers of `/api/v1` and nothing else."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sparrow.console.pages import (
    bus,
    cluster,
    dead_letters,
    groups,
    login,
    messages,
    overview,
    pipelines,
    replica_sets,
    tokens,
    topics,
    waiting_messages,
)
from sparrow.console.pages.frame import preferences
from sparrow.console.pages.frame.api_client import API_ROOT
from sparrow.console.pages.frame.static_files import StaticFiles
from sparrow.console.pages.routes import show_missing

ROUTERS = (
    overview.router,
    topics.router,
    groups.router,
    messages.router,
    dead_letters.router,
    waiting_messages.router,
    bus.router,
    pipelines.router,
    replica_sets.router,
    cluster.router,
    tokens.router,
    login.router,
    preferences.router,
)


def add_pages(app: FastAPI) -> None:
    """Add the pages and their static files to an application that has the API."""
    for router in ROUTERS:
        app.include_router(router, include_in_schema=False)
    app.mount("/static", StaticFiles())
    answer_otherwise = app.router.default

    async def default(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a path that no route has: below the API with a problem, elsewhere with a page."""
        is_page = scope["type"] == "http" and not scope["path"].startswith(API_ROOT)
        answer: Response | None = show_missing(Request(scope, receive)) if is_page else None
        await (answer or answer_otherwise)(scope, receive, send)

    app.router.default = default

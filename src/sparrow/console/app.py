"""The application of the console: routes, error answers, security headers and the OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from sparrow import __version__
from sparrow.client.options import default_name_servers
from sparrow.console.api import (
    access,
    bus,
    clusters,
    dead_letters,
    delayed_messages,
    groups,
    messages,
    overview,
    pipelines,
    plain_http,
    replica_sets,
    topics,
    transactions,
)
from sparrow.console.api import (
    settings as settings_routes,
)
from sparrow.console.context import ConsoleContext
from sparrow.console.middleware import BodyLimit, SecurityHeaders
from sparrow.console.pages import add_pages
from sparrow.console.problems import PROBLEM_RESPONSES, Problem, add_problem_handlers
from sparrow.console.security import authorize
from sparrow.model.access.token import Credentials
from sparrow.settings import ConsoleSettings

DEFAULT_CLUSTER = "default"
API_PREFIX = "/api/v1"
OPENAPI_PATH = f"{API_PREFIX}/openapi.json"


def create_app(
    clusters_served: Mapping[str, str] | None = None,
    *,
    settings: ConsoleSettings | None = None,
    credentials: Credentials | None = None,
    origins: Mapping[str, str] | None = None,
) -> FastAPI:
    """Return the application. `clusters_served`: names of clusters and their name servers; the first is the default.

    `credentials` sign the requests to brokers, if they require tokens. `origins` says where settings come from, by
    full names such as `console.port`.
    """
    settings = settings or ConsoleSettings()
    served = dict(clusters_served or settings.clusters or {DEFAULT_CLUSTER: default_name_servers()})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Clients belong to the loop that serves, so they are made here.
        app.state.console = context = ConsoleContext(settings, served, credentials, origins or {})
        await context.open()
        try:
            yield
        finally:
            await context.close()

    app = FastAPI(
        title="Sparrow",
        version=__version__,
        summary="Administration of a message platform: topics, groups, messages, dead letters.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=OPENAPI_PATH,
        redirect_slashes=False,
    )
    add_problem_handlers(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(SecurityHeaders)
    app.include_router(_api_router(has_bus=settings.bus_database is not None))
    add_pages(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _api_router(*, has_bus: bool) -> APIRouter:
    """Return all routes of the API, behind one check of who may use them. Only log-in is outside."""
    api = APIRouter(prefix=API_PREFIX, dependencies=[Depends(authorize)])
    for module in (
        *(overview, clusters, replica_sets, topics, groups, messages, dead_letters, delayed_messages),
        *(transactions, pipelines, access, settings_routes),
    ):
        api.include_router(module.router)
    if has_bus:
        api.include_router(bus.router)
    root = APIRouter(responses=PROBLEM_RESPONSES)
    root.include_router(api)
    root.include_router(plain_http.router, prefix="/api", dependencies=[Depends(authorize)])
    root.include_router(access.log_in_router, prefix=API_PREFIX)
    return root


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the schema of problems."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes, openapi_version="3.1.0"
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        app.openapi_schema = document
    return app.openapi_schema

"""The routes of pages: what goes wrong becomes a page that says so, and a visitor without a session logs in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sparrow.console.pages.frame.api_client import ApiProblem
from sparrow.console.pages.frame.view import Visit
from sparrow.console.problems import status_of
from sparrow.console.security import NotAuthenticated
from sparrow.model.errors import SparrowError

log = logging.getLogger(__name__)


class PageRoute(APIRoute):
    """A route whose errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its errors handled."""
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                return await handle(request)
            except NotAuthenticated:
                return _to_login(request)
            except ApiProblem as problem:
                return _to_login(request) if problem.status == 401 else show_problem(request, problem)
            except SparrowError as error:
                return show_problem(request, ApiProblem(status_of(error), {"detail": str(error)}))
            except Exception:
                log.exception("the page %(path)s failed", {"path": request.url.path})
                detail = "an internal error happened: the log of the console has details"
                return show_problem(request, ApiProblem(500, {"detail": detail}))

        return handle_page


def show_problem(request: Request, problem: ApiProblem) -> Response:
    """Return the page of a problem."""
    try:
        visit = Visit(request)
    except SparrowError:  # a visitor without a session sees less of the frame
        visit = Visit(request, is_checked=False)
    return visit.render("problem.html", "", status=problem.status, problem=problem)


def show_missing(request: Request) -> Response:
    """Return the page for a path that does not exist."""
    return show_problem(request, ApiProblem(404, {}))


def _to_login(request: Request) -> Response:
    visit = Visit(request, is_checked=False)
    here = visit.path + (f"?{request.url.query}" if request.url.query else "")
    if visit.is_fragment:
        return Response(status_code=204, headers={"X-Location": visit.url("/login")})
    return RedirectResponse(visit.url("/login", next=here if request.method == "GET" else "/"), status_code=303)

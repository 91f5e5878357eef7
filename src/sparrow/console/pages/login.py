"""The log-in page, and the way out."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from sparrow.console.pages.frame.forms import read_form
from sparrow.console.pages.frame.preferences import local_path
from sparrow.console.pages.frame.view import Visit
from sparrow.console.pages.routes import PageRoute
from sparrow.console.security import CrossSiteRequest, NotAuthenticated

router = APIRouter(route_class=PageRoute)


@router.get("/login")
async def show_login(request: Request) -> Response:
    """Show the form; without log-in, go to the overview."""
    visit = Visit(request, is_checked=False)
    if not visit.gatekeeper.is_on:
        return visit.redirect("/")
    return visit.render("login.html", next=local_path(request.query_params.get("next", "")), problem="")


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Start a session, and go to the page that was asked for."""
    visit, form = await read_form(request, is_checked=False)
    path = local_path(form.get("next", ""))
    answer = RedirectResponse(visit.url(path), status_code=303)
    try:
        visit.gatekeeper.log_in(request, answer, form.get("secret", ""))
    except (NotAuthenticated, CrossSiteRequest):
        return visit.render("login.html", status=401, next=path, problem=visit.t("login.failed"))
    return answer


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """End the session. Another site cannot do it: browsers send no cookie with its forms (SameSite)."""
    visit, _ = await read_form(request, is_checked=False)
    answer = RedirectResponse(visit.url("/login"), status_code=303)
    visit.gatekeeper.log_out(request, answer)
    return answer

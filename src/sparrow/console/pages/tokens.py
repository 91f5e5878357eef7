"""Pages of tokens: the list, and the forms that issue and revoke one."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame.api_client import ApiProblem, path_of
from sparrow.console.pages.frame.forms import carry_out, read_form
from sparrow.console.pages.frame.view import Flash, Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)


@router.get("/tokens")
async def show_tokens(request: Request) -> Response:
    """Show the tokens of clients."""
    visit = Visit(request)
    return visit.render("tokens.html", "tokens", tokens=await visit.api.get("/tokens"))


@router.get("/tokens/new")
async def show_new_token(request: Request) -> Response:
    """Show the form that issues a token."""
    return _token_form(Visit(request), {"kind": "p"})


@router.post("/tokens/new")
async def issue_token(request: Request) -> Response:
    """Issue a token, and show its secret once."""
    visit, form = await read_form(request)
    body = {
        "name": form.get("name", ""),
        "type": form.get("kind", "p"),
        "topics": form.get("topics", "").split() or None,
        "groups": form.get("groups", "").split() or None,
        "addresses": form.get("addresses", "").split() or None,
    }
    try:
        issued = await visit.api.request("POST", "/tokens", body=body)
    except ApiProblem as problem:
        return _token_form(visit, form, problem=problem)
    return _token_form(visit, form, secret=issued["secret_key"])


@router.get("/tokens/{name}/revoke")
async def show_revocation(request: Request, name: str) -> Response:
    """Show what the revocation of a token means."""
    return _revocation_plan(Visit(request), name)


@router.post("/tokens/{name}/revoke")
async def revoke_token(request: Request, name: str) -> Response:
    """Revoke a token."""
    visit, form = await read_form(request)
    _, problem = await carry_out(visit, form, "DELETE", path_of("tokens", name), confirm_name=name)
    if problem is not None:
        return _revocation_plan(visit, name, problem=problem)
    return visit.redirect("/tokens", Flash("good", visit.t("tokens.revoked_done", name=name)))


def _token_form(
    visit: Visit, form: Mapping[str, str], *, secret: str | None = None, problem: ApiProblem | None = None
) -> Response:
    return visit.render(
        "token_form.html",
        "tokens",
        status=problem.status if problem else 200,
        name=form.get("name", ""),
        kind=form.get("kind", "p"),
        topics=form.get("topics", ""),
        groups=form.get("groups", ""),
        addresses=form.get("addresses", ""),
        secret=secret,
        problem=problem,
    )


def _revocation_plan(visit: Visit, name: str, problem: ApiProblem | None = None) -> Response:
    return visit.render_plan(
        "tokens",
        title=visit.t("tokens.revoke_title", name=name),
        text=visit.t("tokens.revoke_text"),
        action=visit.url(path_of("tokens", name, "revoke")),
        back=visit.url("/tokens"),
        button=visit.t("tokens.revoke_button"),
        confirm_name=name,
        problem=problem,
    )

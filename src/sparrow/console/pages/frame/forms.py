"""Forms that pages post: their fields as text, and the visit with the CSRF token that the form carries."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import FormData
from starlette.requests import Request

from sparrow.console.pages.frame.api_client import ApiProblem
from sparrow.console.pages.frame.view import Visit
from sparrow.console.security import CSRF_FIELD

FIELDS_MAX = 1_100
"""A redrive may name a thousand dead letters."""
FIELD_BYTES_MAX = 8 << 20


async def read_form(request: Request, *, is_checked: bool = True) -> tuple[Visit, dict[str, str]]:
    """Return the visit and the fields of a posted form; of several with one name, the last."""
    visit, fields, _ = await read_choice(request, is_checked=is_checked)
    return visit, fields


async def read_choice(request: Request, *, is_checked: bool = True) -> tuple[Visit, dict[str, str], list[str]]:
    """Return the visit, the fields of a posted form, and the ids of the rows that were chosen in its table."""
    async with request.form(max_files=0, max_fields=FIELDS_MAX, max_part_size=FIELD_BYTES_MAX) as form:
        fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
        visit = Visit(request, posted_token=fields.get(CSRF_FIELD), is_checked=is_checked)
        return visit, fields, _texts(form, "ids")


async def carry_out(
    visit: Visit,
    form: dict[str, str],
    method: str,
    path: str,
    *,
    body: Any = None,
    confirm_name: str = "",
) -> tuple[Any, ApiProblem | None]:
    """Ask the API for a change whose plan a form confirms; return the answer, or the problem to show with the plan.

    `confirm_name`: what the visitor has to type, if the plan asks for it.
    """
    if confirm_name and form.get("confirm") != confirm_name:
        return None, ApiProblem(422, {"title": visit.t("common.not_confirmed", name=confirm_name)})
    try:
        agreed = {"plan": form.get("plan"), "force": form.get("force")}
        return await visit.api.request(method, path, query=agreed, body=body), None
    except ApiProblem as problem:
        return None, problem


def utc(text: str | None) -> str | None:
    """Return the value of a `datetime-local` field as RFC 3339: browsers write no zone, and pages say UTC."""
    return f"{text}Z" if text and text[-1].isdigit() and "+" not in text else text or None


def _texts(form: FormData, name: str) -> list[str]:
    return [value for value in form.getlist(name) if isinstance(value, str)]

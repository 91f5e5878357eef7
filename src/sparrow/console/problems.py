"""Errors of the API as problem details (RFC 9457), with the status that their kind of error has."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.exceptions import HTTPException

from sparrow.console.models.fields import ApiModel, clean_text
from sparrow.model.errors import (
    NotPermitted,
    OffsetConflict,
    Refused,
    SettingsError,
    SparrowError,
    StorageError,
    TooLarge,
    Unavailable,
    UnknownGroup,
    UnknownOffset,
    UnknownTopic,
)
from sparrow.operations.errors import AlreadyExists, MembersOnline, NotFound, PlanChanged
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import RemoteRefused

log = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
_DETAIL_CHARS_MAX = 2_000

# Subclasses first.
_STATUSES: tuple[tuple[type[SparrowError], int], ...] = (
    (NotFound, 404),
    (UnknownTopic, 404),
    (UnknownGroup, 404),
    (UnknownOffset, 404),
    (NotPermitted, 403),
    (AlreadyExists, 409),
    (PlanChanged, 409),
    (MembersOnline, 409),
    (OffsetConflict, 409),
    (TooLarge, 413),
    (Refused, 422),
    (SettingsError, 422),
    (Unavailable, 503),
    (StorageError, 503),
)
_STATUS_BY_NAME = {"NotAuthenticated": 401, "UnknownMessage": 404, "IllegalTransition": 409, "MissingExtra": 503}
"""Of errors in modules that cannot be imported here: the bus needs SQLAlchemy, and security needs this module."""
_REMOTE_STATUSES = {
    ResponseCode.TOPIC_NOT_EXIST: 404,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: 404,
    ResponseCode.QUERY_NOT_FOUND: 404,
    ResponseCode.NO_PERMISSION: 403,
    ResponseCode.CONSUMER_NOT_ONLINE: 409,
    ResponseCode.ILLEGAL_OPERATION: 409,
    ResponseCode.SYSTEM_BUSY: 503,
}


class Problem(ApiModel):
    """What went wrong, and what to do."""

    type: str = Field(default="about:blank", description="A URI of the kind of problem.")
    title: str = Field(description="The kind of problem.", examples=["Not Found"])
    status: int = Field(description="The HTTP status.", examples=[404])
    detail: str = Field(
        description="What happened, with which value, and what to do.",
        examples=["topic 'orders' does not exist: create it, or enable automatic creation on the brokers"],
    )
    code: str = Field(description="The name of the error, for programs.", examples=["UnknownTopic"])
    plan: str | None = Field(default=None, description="The hash of the current plan, if a plan was outdated.")
    errors: list[dict[str, Any]] | None = Field(default=None, description="The fields that are not valid.")


def problem_response(
    status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    """Return the response for a problem."""
    text = clean_text(detail)[:_DETAIL_CHARS_MAX]
    content = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": text,
        "code": code,
    }
    given = {name: value for name, value in more.items() if value is not None}
    extra = dict(headers or {})
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        extra.setdefault("Retry-After", str(RETRY_AFTER_S))
    return JSONResponse(content | given, status, headers=extra, media_type=PROBLEM_TYPE)


def status_of(error: SparrowError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RemoteRefused):
        return _REMOTE_STATUSES.get(error.code, 422)  # type: ignore[call-overload,no-any-return]
    declared = _STATUS_BY_NAME.get(type(error).__name__)
    if declared is not None:
        return declared
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def response_of(error: SparrowError) -> JSONResponse:
    """Return the response for an error of Sparrow."""
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.SERVICE_UNAVAILABLE:
        log.error("a request failed: %(error)s", {"error": error}, exc_info=error)
    plan = error.current if isinstance(error, PlanChanged) else None
    return problem_response(status, type(error).__name__, str(error), plan=plan)


def add_problem_handlers(app: FastAPI) -> None:
    """Make every error of an application a problem."""

    @app.exception_handler(SparrowError)
    async def on_error(_request: Request, error: SparrowError) -> JSONResponse:
        return response_of(error)

    @app.exception_handler(HTTPException)
    async def on_http_error(_request: Request, error: HTTPException) -> JSONResponse:
        code = HTTPStatus(error.status_code).phrase.title().replace(" ", "").replace("-", "")
        return problem_response(error.status_code, code, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        errors = [{"field": ".".join(map(str, each["loc"])), "problem": each["msg"]} for each in error.errors()[:20]]
        detail = "; ".join(f"{each['field']}: {each['problem']}" for each in errors[:3])
        return problem_response(422, "InvalidRequest", clean_text(detail), errors=_clean(errors))

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> JSONResponse:
        log.error("%(method)s %(path)s failed", {"method": request.method, "path": request.url.path}, exc_info=error)
        return problem_response(500, "InternalError", "an internal error happened: the log of the console has details")


def _clean(errors: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: clean_text(value) for name, value in each.items()} for each in errors]


_DESCRIPTIONS = {
    400: "The request cannot be read.",
    401: "A token is needed, or is not valid.",
    403: "The token's role, the origin or the broker does not permit it.",
    404: "It does not exist.",
    409: "The state does not allow it, or has changed since the plan was made.",
    413: "The message is too large.",
    422: "A value is not valid.",
    503: "A broker, a name server or a database does not respond, or a limit is reached.",
}
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, text in _DESCRIPTIONS.items()
}
"""The answers that every route may give, for the OpenAPI document."""

"""Routes of access: log-in, tokens of brokers, and the audit."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request, Response

from sparrow.console.audit import AuditLine
from sparrow.console.context import ClusterDependency, ContextDependency
from sparrow.console.models.access import (
    AuditPageAnswer,
    CredentialsAnswer,
    IdentityAnswer,
    LogInInput,
    TokenAnswer,
    TokenInput,
    TokenPermissionsInput,
)
from sparrow.console.pagination import CursorQuery, LimitQuery, decode_cursor, encode_cursor
from sparrow.console.security import Identity, IdentityDependency, Role, needs
from sparrow.model.access.token import Credentials
from sparrow.model.errors import UnknownTopic
from sparrow.operations.errors import NotFound
from sparrow.operations.messages import SearchLimits, search_messages

router = APIRouter()
log_in_router = APIRouter(tags=["session"])
"""The only route that works without a token."""

TokenPath = Annotated[str, Path(min_length=1, max_length=190, description="Name of the token.")]


@log_in_router.post("/session", response_model=IdentityAnswer)
async def log_in(body: LogInInput, request: Request, response: Response, context: ContextDependency) -> dict[str, Any]:
    """Log in with the secret key of a token of the console, and set the cookie of the session."""
    return _shown(context.gatekeeper.log_in(request, response, body.secret_key), context)


@router.get("/session", response_model=IdentityAnswer, tags=["session"])
async def get_session(identity: IdentityDependency, context: ContextDependency) -> dict[str, Any]:
    """Return who makes the request, and what the role is."""
    return _shown(identity, context)


@router.delete("/session", status_code=204, tags=["session"])
@needs(Role.VIEWER)
async def log_out(request: Request, context: ContextDependency) -> Response:
    """End the session."""
    response = Response(status_code=204)
    context.gatekeeper.log_out(request, response)
    return response


@router.get("/tokens", response_model=list[TokenAnswer], tags=["tokens"])
async def list_tokens(cluster: ClusterDependency) -> list[dict[str, Any]]:
    """List the tokens of clients, without secrets."""
    return [
        {
            "name": token.name,
            "type": token.type,
            "topics": token.topics,
            "groups": token.groups,
            "addresses": token.addresses,
            "acl": token.acl,
            "created": token.created_ms,
            "disabled": token.disabled_ms,
            "revoked": token.revoked_ms,
        }
        for token in await cluster.admin.tokens()
    ]


@router.post("/tokens", response_model=CredentialsAnswer, status_code=201, tags=["tokens"])
@needs(Role.ADMIN)
async def issue_token(body: TokenInput, request: Request, cluster: ClusterDependency) -> Credentials:
    """Issue a token on all brokers. A name that was issued before is refused: secrets are shown once."""
    async with cluster.audit.change(request, "token.issue", body.name, asked=body.model_dump()):
        return await cluster.admin.issue_token(
            body.name, body.type, topics=body.topics, groups=body.groups, addresses=body.addresses
        )


@router.put("/tokens/{name}", status_code=204, tags=["tokens"])
@needs(Role.ADMIN)
async def change_token(
    name: TokenPath, body: TokenPermissionsInput, request: Request, cluster: ClusterDependency
) -> Response:
    """Replace what a token may do. Its keys stay; limits that are left out do not."""
    async with cluster.audit.change(request, "token.change", name, asked=body.model_dump()):
        if all(token.name != name for token in await cluster.admin.tokens()):
            raise NotFound("token", name, "`GET /api/v1/tokens` lists them")
        await cluster.admin.change_token(
            name, body.type, topics=body.topics, groups=body.groups, addresses=body.addresses
        )
    return Response(status_code=204)


@router.delete("/tokens/{name}", status_code=204, tags=["tokens"])
@needs(Role.ADMIN)
async def revoke_token(name: TokenPath, request: Request, cluster: ClusterDependency) -> Response:
    """Revoke a token for good."""
    async with cluster.audit.change(request, "token.revoke", name):
        if all(token.name != name for token in await cluster.admin.tokens()):
            raise NotFound("token", name, "`GET /api/v1/tokens` lists them")
        await cluster.admin.revoke_token(name)
    return Response(status_code=204)


@router.get("/audit", response_model=AuditPageAnswer, tags=["audit"])
async def list_audit(cluster: ClusterDependency, limit: LimitQuery = 50, cursor: CursorQuery = None) -> dict[str, Any]:
    """List the changes that were made through the console, the newest first."""
    try:
        found = await search_messages(
            cluster.admin,
            cluster.audit.topic,
            limits=SearchLimits(found=limit),
            after=decode_cursor(cursor, dict[str, int]),
        )
    except UnknownTopic:  # nothing was changed yet
        return {"lines": [], "complete": True, "next": None}
    lines = [_line(message.body) for message in found.messages]
    return {
        "lines": [line for line in lines if line is not None],
        "complete": found.complete,
        "next": None if found.next is None else encode_cursor(found.next),
    }


def _shown(identity: Identity, context: ContextDependency) -> dict[str, Any]:
    return {
        "name": identity.name,
        "role": identity.role.label,
        "csrf_token": identity.csrf_token,
        "is_auth_on": context.gatekeeper.is_on,
    }


def _line(body: bytes) -> dict[str, Any] | None:
    try:
        line = msgspec.json.decode(body, type=AuditLine)
    except msgspec.MsgspecError:  # anyone may send to a topic
        return None
    return msgspec.structs.asdict(line) | {"time": line.time_ms}

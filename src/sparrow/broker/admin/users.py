"""RocketMQ 5's admin requests for users (`mqadmin createUser`, …). A user is a token whose secret key is the password.

1. A new user may do nothing until it gets an ACL (`admin/acls`); a Super user may do everything.
2. No answer contains a password.
3. A deleted user is a revoked token. A user of that name can be created again; older messages still refer to it.
4. What is refused is answered with NO_PERMISSION, as by RocketMQ.
5. While `auth` is off, users are shown and not changed, like tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

import msgspec

from sparrow.broker.admin.tokens import require_auth, validate_new_name
from sparrow.broker.context import Broker
from sparrow.model.access.acl import SHOWN_CHARS_MAX, as_normal, as_super, is_super
from sparrow.model.access.token import TOKEN_NAME_CHARS_MAX, Token, parse_password
from sparrow.model.errors import BadRequest, IllegalName, Refused
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire import bodies
from sparrow.wire.bodies import UserInfo
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import Header, ListUsers, UserRequest

_H = TypeVar("_H", bound=Header)
_Handler = Callable[[_H, Broker, RequestContext], Coroutine[Any, Any, HandlerResponse]]


def refusing_like_rocketmq(handler: _Handler[_H]) -> _Handler[_H]:
    """Return the handler with the response code that RocketMQ has for what it refuses about users and ACLs."""

    @wraps(handler)
    async def refusing(request: _H, broker: Broker, call: RequestContext) -> HandlerResponse:
        try:
            return await handler(request, broker, call)
        except (BadRequest, IllegalName):
            raise
        except Refused as refusal:
            return HandlerResponse(code=ResponseCode.NO_PERMISSION, remark=str(refusal))

    return refusing


@refusing_like_rocketmq
async def create_user(request: UserRequest, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Issue a token with a given secret, or give the name of a revoked one a new token."""
    require_auth(broker)
    info = call.body(UserInfo)
    name = validate_new_name(broker, request.username)
    if info.password is None:
        raise Refused(f"user {name!r} needs a password: give one, which clients then have as their secret key")
    secret = parse_password(info.password)
    async with broker.token_turn:
        tokens = await broker.store.tokens.all()
        before = tokens.get(name)
        if before is not None and not before.is_revoked:
            raise Refused(f"user {name!r} exists: change it with updateUser, or choose another name")
        token = Token(
            id=before.id if before is not None else max((token.id for token in tokens.values()), default=0) + 1,
            name=name,
            kind="p",
            secret=secret,
            created_ms=broker.now_ms(),
            topics=(),
            groups=(),
            acl=(),
        )
        token = _changed(token, info, broker.now_ms())
        await broker.store.tokens.put(token, before=before, replaces_secret=before is not None)
        stored = (await broker.store.tokens.all())[name]
        if stored.secret != secret:  # of two brokers on one database, the first to write has created it
            raise Refused(f"user {name!r} exists: change it with updateUser, or choose another name")
    return HandlerResponse()


@refusing_like_rocketmq
async def update_user(request: UserRequest, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Change password, type or status of a user; what the request leaves out stays."""
    require_auth(broker)
    info = call.body(UserInfo)
    async with broker.token_turn:
        token = await existing_user(broker, request.username)
        changed = _changed(token, info, broker.now_ms())
        if info.password:
            changed = msgspec.structs.replace(changed, secret=parse_password(info.password))
        await broker.store.tokens.put(changed, before=token, replaces_secret=bool(info.password))
    return HandlerResponse()


@refusing_like_rocketmq
async def delete_user(request: UserRequest, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Revoke the token of a user. Deleting a user that does not exist is no error."""
    require_auth(broker)
    async with broker.token_turn:
        token = (await broker.store.tokens.all()).get(request.username)
        if token is not None and not token.is_revoked:
            revoked = msgspec.structs.replace(token, revoked_ms=broker.now_ms())
            await broker.store.tokens.put(revoked, before=token)
    return HandlerResponse()


@refusing_like_rocketmq
async def get_user(request: UserRequest, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return a user; no body if there is none."""
    token = (await broker.store.tokens.all()).get(request.username)
    return HandlerResponse() if token is None or token.is_revoked else HandlerResponse.of(_shown(token))


@refusing_like_rocketmq
async def list_users(request: ListUsers, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the users whose name contains the filter; no body if there are none."""
    found = [_shown(token) for token in await existing_users(broker) if (request.filter or "") in token.name]
    return HandlerResponse(body=bodies.write(found)) if found else HandlerResponse()


async def existing_users(broker: Broker) -> list[Token]:
    """Return the tokens that are not revoked, by name."""
    tokens = await broker.store.tokens.all()
    return [tokens[name] for name in sorted(tokens) if not tokens[name].is_revoked]


async def existing_user(broker: Broker, name: str) -> Token:
    """Return the token of a user; raise `Refused` if there is none."""
    token = (await broker.store.tokens.all()).get(name)
    if token is None or token.is_revoked:
        raise Refused(f"there is no user {name[:TOKEN_NAME_CHARS_MAX]!r}: create it with createUser")
    return token


def _changed(token: Token, info: UserInfo, now_ms: int) -> Token:
    match (info.user_type or "").lower():
        case "":
            pass
        case "super":
            token = as_super(token)
        case "normal":
            token = as_normal(token)
        case _:
            raise Refused(f"{(info.user_type or '')[:SHOWN_CHARS_MAX]!r} is no type of user: use Super or Normal")
    match (info.user_status or "").lower():
        case "":
            return token
        case "enable":
            return msgspec.structs.replace(token, disabled_ms=None)
        case "disable":
            return msgspec.structs.replace(token, disabled_ms=token.disabled_ms or now_ms)
        case _:
            raise Refused(f"{(info.user_status or '')[:SHOWN_CHARS_MAX]!r} is no status: use enable or disable")


def _shown(token: Token) -> UserInfo:
    return UserInfo(token.name, "Super" if is_super(token) else "Normal", "disable" if token.is_disabled else "enable")


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.AUTH_CREATE_USER: create_user,
    RequestCode.AUTH_UPDATE_USER: update_user,
    RequestCode.AUTH_DELETE_USER: delete_user,
    RequestCode.AUTH_GET_USER: get_user,
    RequestCode.AUTH_LIST_USER: list_users,
}

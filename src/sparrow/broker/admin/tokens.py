"""Admin requests for tokens: issue, change, list and revoke. The setting `auth` decides whether requests need one.

1. A name has one token, for ever. Issuing it again is refused, unless the request has its secret: so the same token
   can be issued on several brokers, and a lost answer can be repeated.
2. A secret is in one response only, that of its issue, and only if the broker has made it. Lists contain no secrets.
3. Changes and revocations take effect with the next request.
4. While `auth` is off, nobody is known to be an administrator, so tokens are listed and not changed.
5. A change of a token replaces its ACL, too (`admin/acls`): from then on its type and patterns decide.
"""

from __future__ import annotations

import msgspec

from sparrow.broker.context import Broker
from sparrow.model.access.acl import is_limited_by_acl
from sparrow.model.access.permissions import parse_patterns
from sparrow.model.access.source_addresses import parse_source_addresses
from sparrow.model.access.token import (
    TOKEN_NAME_CHARS_MAX,
    Token,
    parse_secret_key,
    parse_token_kind,
    validate_reissue,
    validate_token_name,
)
from sparrow.model.errors import Refused
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import ACL_TYPE, ChangeToken, IssueToken, RevokeToken, TokenDescription, TokenList
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader


async def issue_token(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Create the token of that name; with its secret, return the one that exists."""
    require_auth(broker)
    wanted = call.body(IssueToken)
    name = validate_new_name(broker, wanted.name)
    tokens = await broker.store.tokens.all()
    token = Token(
        id=max((token.id for token in tokens.values()), default=0) + 1,
        name=name,
        kind=parse_token_kind(wanted.type),
        topics=parse_patterns(wanted.topics, "topic"),
        groups=parse_patterns(wanted.groups, "group"),
        addresses=parse_source_addresses(wanted.addresses),
        secret=parse_secret_key(wanted.secret_key),
        created_ms=broker.now_ms(),
    )
    if name not in tokens:
        await broker.store.tokens.put(token)
        tokens = await broker.store.tokens.all()  # of two brokers on one database, the first to write has issued it
    issued = validate_reissue(tokens[name], token)
    return HandlerResponse.of(_shown(issued, secret_key=None if wanted.secret_key else issued.secret_key))


async def change_token(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Replace the permissions of a token."""
    require_auth(broker)
    wanted = call.body(ChangeToken)
    async with broker.token_turn:
        token = await _existing(broker, wanted.name)
        if token.is_revoked:
            raise Refused(f"token {token.name!r} was revoked: issue one under another name")
        changed = msgspec.structs.replace(
            token,
            kind=parse_token_kind(wanted.type),
            topics=parse_patterns(wanted.topics, "topic"),
            groups=parse_patterns(wanted.groups, "group"),
            addresses=parse_source_addresses(wanted.addresses),
            acl=None,
        )
        await broker.store.tokens.put(changed, before=token)
    return HandlerResponse.of(_shown(changed))


async def list_tokens(_request: EmptyHeader, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return all tokens in the order in which they were issued, revoked ones included."""
    tokens = sorted((await broker.store.tokens.all()).values(), key=lambda token: token.id)
    return HandlerResponse.of(TokenList([_shown(token) for token in tokens]))


async def revoke_token(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Revoke a token. Revoking it again is no error."""
    require_auth(broker)
    async with broker.token_turn:
        token = await _existing(broker, call.body(RevokeToken).name)
        if not token.is_revoked:
            revoked = msgspec.structs.replace(token, revoked_ms=broker.now_ms())
            await broker.store.tokens.put(revoked, before=token)
            token = revoked
    return HandlerResponse.of(_shown(token))


def require_auth(broker: Broker) -> None:
    """Raise `Refused` if the broker does not know who sends requests."""
    if not broker.settings.auth:
        raise Refused(
            "this broker does not know who you are, because broker.auth is off; a token that anybody can issue "
            "protects nothing once it is on: set broker.auth = true first"
        )


def validate_new_name(broker: Broker, name: str) -> str:
    """Return the name if a token may have it; raise `Refused` otherwise."""
    validate_token_name(name)
    if name in broker.settings.admin_tokens:
        raise Refused(f"{name!r} is the name of an admin token in the broker's settings: choose another name")
    return name


async def _existing(broker: Broker, name: str) -> Token:
    token = (await broker.store.tokens.all()).get(name)
    if token is None:
        raise Refused(f"there is no token {name[:TOKEN_NAME_CHARS_MAX]!r}")
    return token


def _shown(token: Token, *, secret_key: str | None = None) -> TokenDescription:
    return TokenDescription(
        token.id,
        token.name,
        ACL_TYPE if is_limited_by_acl(token) else token.kind,
        token.created_ms,
        token.revoked_ms,
        secret_key,
        list(token.topics),
        list(token.groups),
        list(token.addresses),
        [str(entry) for entry in token.acl or ()],
        token.disabled_ms,
    )


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.ISSUE_TOKEN: issue_token,
    RequestCode.CHANGE_TOKEN: change_token,
    RequestCode.LIST_TOKENS: list_tokens,
    RequestCode.REVOKE_TOKEN: revoke_token,
}

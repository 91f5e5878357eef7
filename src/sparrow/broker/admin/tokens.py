"""Tokens as operators see them: issued, listed, revoked. Whether anybody is asked for one is a setting (`auth`).

1. A name has one token, for ever. Issued again it is the same one, secret and all, so that whoever missed the answer
   can ask once more; of another kind, or after it was revoked, it is refused.
2. Whoever lists tokens sees no secrets.
3. Revoking counts from the next request on.
"""

from __future__ import annotations

import msgspec

from sparrow.broker.context import Broker
from sparrow.model.errors import Refused
from sparrow.model.token import Token, parse_secret_key, parse_token_kind, validate_reissue, validate_token_name
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import IssueToken, RevokeToken, TokenDescription, TokenList
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader


async def issue_token(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """The token of that name, made if there is none."""
    wanted = call.body(IssueToken)
    name, kind, secret = (
        validate_token_name(wanted.name),
        parse_token_kind(wanted.type),
        parse_secret_key(wanted.secret_key),
    )
    if name in broker.settings.admin_tokens:
        raise Refused(f"{name!r} is one of the broker's admin tokens: issue one under another name")
    tokens = await broker.store.tokens.all()
    if name not in tokens:
        token = Token(
            id=max((token.id for token in tokens.values()), default=0) + 1,
            name=name,
            kind=kind,
            secret=secret,
            created_ms=broker.now_ms(),
        )
        await broker.store.tokens.put(token)
        tokens = await broker.store.tokens.all()  # of two brokers on one database, the first to write has issued it
    token = validate_reissue(tokens[name], kind)
    return HandlerResponse.of(_shown(token, secret_key=token.secret_key))


async def list_tokens(_request: EmptyHeader, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """In the order they were issued, the revoked ones too."""
    tokens = sorted((await broker.store.tokens.all()).values(), key=lambda token: token.id)
    return HandlerResponse.of(TokenList([_shown(token) for token in tokens]))


async def revoke_token(_request: EmptyHeader, broker: Broker, call: RequestContext) -> HandlerResponse:
    """To revoke what was revoked is no error: operators make sure."""
    name = call.body(RevokeToken).name
    token = (await broker.store.tokens.all()).get(name)
    if token is None:
        raise Refused(f"there is no token {name[:190]!r} here")
    if not token.is_revoked:
        token = msgspec.structs.replace(token, revoked_ms=broker.now_ms())
        await broker.store.tokens.put(token)
    return HandlerResponse.of(_shown(token))


def _shown(token: Token, *, secret_key: str | None = None) -> TokenDescription:
    return TokenDescription(token.id, token.name, token.kind, token.created_ms, token.revoked_ms, secret_key)


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.ISSUE_TOKEN: issue_token,
    RequestCode.LIST_TOKENS: list_tokens,
    RequestCode.REVOKE_TOKEN: revoke_token,
}

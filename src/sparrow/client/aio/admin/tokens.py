"""Tokens of producers and consumers, the same on all masters."""

from __future__ import annotations

from sparrow.client.aio.admin.clusters import fetch_masters, gather_all
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import Refused
from sparrow.model.token import Credentials, TokenKind
from sparrow.wire import bodies
from sparrow.wire.bodies import IssueToken, RevokeToken, TokenDescription, TokenList
from sparrow.wire.codes import RequestCode


async def issue_token(session: ClientSession, name: str, kind: TokenKind) -> Credentials:
    """Issue a token on every master, with the same secret, and return its credentials."""
    masters = await fetch_masters(session)
    known = await gather_all(_tokens_on(session, address) for address in masters.values())
    has_it = {address: name in tokens for address, tokens in zip(masters.values(), known, strict=True)}
    secret_key: str | None = None
    # Brokers that have the token come first: the others take over its secret.
    for broker_name, address in sorted(masters.items(), key=lambda master: not has_it[master[1]]):
        body = bodies.write(IssueToken(name, kind, secret_key))
        answer = await session.invoke(address, RequestCode.ISSUE_TOKEN, None, body)
        given = bodies.read(TokenDescription, answer.body).secret_key
        if given is None or secret_key not in (None, given):
            raise Refused(
                f"token {name!r} has another secret on broker {broker_name!r}: revoke it, and issue another name"
            )
        secret_key = given
    return Credentials(name, secret_key or "")


async def fetch_tokens(session: ClientSession) -> list[TokenDescription]:
    """Return every token of any master by name, revoked ones included, without secrets."""
    masters = await fetch_masters(session)
    found: dict[str, TokenDescription] = {}
    for tokens in await gather_all(_tokens_on(session, address) for address in masters.values()):
        for name, token in tokens.items():
            if name not in found or token.revoked_ms is None:  # revoked only when every broker has revoked it
                found[name] = token
    return [found[name] for name in sorted(found)]


async def revoke_token(session: ClientSession, name: str) -> None:
    """Revoke a token on every master that has it."""
    masters = await fetch_masters(session)
    known = await gather_all(_tokens_on(session, address) for address in masters.values())
    having = [address for address, tokens in zip(masters.values(), known, strict=True) if name in tokens]
    if not having:
        raise Refused(f"there is no token {name!r}")
    body = bodies.write(RevokeToken(name))
    await gather_all(session.invoke(address, RequestCode.REVOKE_TOKEN, None, body) for address in having)


async def _tokens_on(session: ClientSession, address: str) -> dict[str, TokenDescription]:
    answer = await session.invoke(address, RequestCode.LIST_TOKENS)
    return {token.name: token for token in bodies.read(TokenList, answer.body).tokens}

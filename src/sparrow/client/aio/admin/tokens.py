"""Tokens of clients, the same on all masters."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from sparrow.client.aio.admin.clusters import fetch_masters, gather_all
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.access.token import SECRET_BYTES, Credentials, TokenKind
from sparrow.model.errors import Refused
from sparrow.wire import bodies
from sparrow.wire.bodies import ChangeToken, IssueToken, RevokeToken, TokenDescription, TokenList
from sparrow.wire.codes import RequestCode


async def issue_token(
    session: ClientSession,
    name: str,
    kind: TokenKind,
    *,
    topics: Iterable[str] | None = None,
    groups: Iterable[str] | None = None,
    addresses: Iterable[str] | None = None,
    secret_key: str | None = None,
) -> Credentials:
    """Issue a token on every master, with the same secret, and return its credentials."""
    masters = await fetch_masters(session)
    if secret_key is None:
        known = await gather_all(_tokens_on(session, address) for address in masters.values())
        for broker_name, tokens in zip(masters, known, strict=True):
            if name in tokens:  # before a broker that does not have it gets another secret
                raise Refused(
                    f"token {name!r} exists on broker {broker_name!r}, and its secret key was shown when it was "
                    "issued: issue one under another name, or give its secret key to issue it on other brokers, too"
                )
        # Made here, so that a request whose answer is lost can be repeated, and no answer contains a secret.
        secret_key = secrets.token_hex(SECRET_BYTES)
    body = bodies.write(IssueToken(name, kind, secret_key, _listed(topics), _listed(groups), _listed(addresses)))
    for address in masters.values():
        await session.invoke(address, RequestCode.ISSUE_TOKEN, None, body)
    return Credentials(name, secret_key)


async def change_token(
    session: ClientSession,
    name: str,
    kind: TokenKind,
    *,
    topics: Iterable[str] | None = None,
    groups: Iterable[str] | None = None,
    addresses: Iterable[str] | None = None,
) -> None:
    """Replace the permissions of a token on every master that has it."""
    body = bodies.write(ChangeToken(name, kind, _listed(topics), _listed(groups), _listed(addresses)))
    masters = await _masters_with(session, name)
    await gather_all(session.invoke(address, RequestCode.CHANGE_TOKEN, None, body) for address in masters)


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
    body = bodies.write(RevokeToken(name))
    masters = await _masters_with(session, name)
    await gather_all(session.invoke(address, RequestCode.REVOKE_TOKEN, None, body) for address in masters)


async def _masters_with(session: ClientSession, name: str) -> list[str]:
    masters = await fetch_masters(session)
    known = await gather_all(_tokens_on(session, address) for address in masters.values())
    having = [address for address, tokens in zip(masters.values(), known, strict=True) if name in tokens]
    if not having:
        raise Refused(f"there is no token {name!r}")
    return having


async def _tokens_on(session: ClientSession, address: str) -> dict[str, TokenDescription]:
    answer = await session.invoke(address, RequestCode.LIST_TOKENS)
    return {token.name: token for token in bodies.read(TokenList, answer.body).tokens}


def _listed(values: Iterable[str] | None) -> list[str] | None:
    return None if values is None else list(values)

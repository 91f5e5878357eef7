"""Tokens, in the table `meta_token`. None is ever deleted, because messages refer to it by its number."""

from __future__ import annotations

from collections.abc import Mapping

from sparrow.model.token import Token, parse_token_kind, validate_token_name
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.statements import tokens as statements
from sparrow.store.sql.upserts import insert_if_absent


class SqlTokens:
    """The tokens of a database, and a copy of them in memory."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database
        self._known: dict[str, Token] = {}

    async def all(self) -> Mapping[str, Token]:
        """Read all tokens, by name, without the one that stands for messages sent without a token."""
        rows = await self._database.fetch(statements.SELECT_ALL)
        found = {token.name: token for token in (_token(*row) for row in rows)}
        self._known.clear()
        self._known.update(found)
        return found

    def all_nowait(self) -> Mapping[str, Token]:
        """Return the tokens as last read; changes of other brokers appear within a second."""
        return self._known

    async def put(self, token: Token) -> None:
        """Issue a token under its name, or revoke it. The database chooses its number."""
        validate_token_name(token.name)
        is_new = await insert_if_absent(
            self._database,
            "meta_token",
            token=token.name,
            type=parse_token_kind(token.kind),
            secret_hash=token.secret,
            created_at=token.created_ms,
            revoked_at=token.revoked_ms,
        )
        if not is_new:
            await self._database.execute(statements.REVOKE, revoked=token.revoked_ms, token=token.name, type=token.kind)
        await self.all()


def _token(number: int, name: str, kind: str, secret: bytes, created_ms: int, revoked_ms: int | None) -> Token:
    return Token(
        id=number, name=name, kind=parse_token_kind(kind), secret=secret, created_ms=created_ms, revoked_ms=revoked_ms
    )

"""Tokens, in the table `meta_token`. None is ever deleted, because messages refer to it by its number.

1. A row without a secret only gives a name its number: the admin tokens of the settings, and messages without a token.
2. A store whose settings do not decrypt all secrets is not opened. If another broker changes the key later, this one
   keeps the secrets that it knows, and refuses the tokens that it does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sparrow.log_intervals import LogIntervals
from sparrow.model.access.acl_entry import AclEntry
from sparrow.model.access.permissions import is_unlimited
from sparrow.model.access.token import (
    EVERY_NAME,
    TOKEN_NAME_CHARS_MAX,
    Token,
    TokenKind,
    parse_token_kind,
    validate_token_name,
)
from sparrow.model.errors import Busy, Refused
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.lanes import split_physical_offset
from sparrow.store.sql.state.catalog import StoreCatalog
from sparrow.store.sql.state.token_secrets import TokenSecrets, UnreadableSecret
from sparrow.store.sql.statements import messages as message_statements
from sparrow.store.sql.statements.state import tokens as statements
from sparrow.store.sql.upserts import insert_if_absent

log = logging.getLogger(__name__)


class _StoredPermissions(msgspec.Struct, frozen=True):
    """What the column `permissions` holds, as JSON."""

    kind: TokenKind
    topics: tuple[str, ...] = (EVERY_NAME,)
    groups: tuple[str, ...] = (EVERY_NAME,)


_decode = msgspec.json.Decoder(_StoredPermissions).decode
_decode_addresses = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_acl = msgspec.json.Decoder(tuple[AclEntry, ...]).decode


def _permissions_of(token: Token) -> str | None:
    if is_unlimited(token) and token.kind == _type_of(token):
        return None
    return msgspec.json.encode(_StoredPermissions(token.kind, token.topics, token.groups)).decode()


def _addresses_of(token: Token) -> str | None:
    return msgspec.json.encode(token.addresses).decode() if token.addresses else None


def _acl_of(token: Token) -> str | None:
    return None if token.acl is None else msgspec.json.encode(token.acl).decode()


def _type_of(token: Token) -> str:
    """Return what the column `type` can hold; `permissions` has the whole kind."""
    return "c" if token.kind == "c" else "p"


class SqlTokens:
    """The tokens of a database, and a copy of them in memory."""

    def __init__(self, database: StoreDatabase, catalog: StoreCatalog, secrets: TokenSecrets) -> None:
        self._database, self._catalog, self._secrets = database, catalog, secrets
        self._known: dict[str, Token] = {}
        self._ids: dict[str, int] = {}
        self._unreadable: dict[str, UnreadableSecret] = {}
        self._decrypted: dict[bytes, bytes] = {}
        """Secrets by what is stored: tokens are read every second, and decryption takes time."""
        self._failures = LogIntervals()

    async def open(self, admins: Iterable[str], now_ms: int) -> None:
        """Read all tokens, and store their secrets under the current key; raise `UnreadableSecret` if that fails.

        `admins`, the names of the admin tokens in the settings, get numbers, so that messages can refer to them.
        """
        await self._read(is_strict=True)
        for name, stored in await self._database.fetch(statements.SELECT_SECRETS):
            if not self._secrets.is_current(bytes(stored)):
                await self._database.execute(
                    statements.REPLACE_SECRET,
                    token=name,
                    before=bytes(stored),
                    secret=self._secrets.to_stored(self._known[name].secret),
                )
        # Only if the row is missing: an INSERT that does nothing uses up a number, too.
        for name in (name for name in admins if name not in self._ids and len(name) <= TOKEN_NAME_CHARS_MAX):
            await insert_if_absent(self._database, "meta_token", token=name, type="p", created_at=now_ms)
        await self._read(is_strict=True)

    async def all(self) -> Mapping[str, Token]:
        """Read all tokens, by name, without names that only have a number."""
        await self._read(is_strict=False)
        return dict(self._known)

    def all_nowait(self) -> Mapping[str, Token]:
        """Return the tokens as last read; changes of other brokers appear within a second."""
        return self._known

    def id_nowait(self, name: str) -> int:
        """Return the number of a token or of an admin token, as last read; 0 if there is none."""
        return self._ids.get(name, 0)

    async def senders(self, physical_offsets: Sequence[int]) -> Mapping[int, int]:
        """Return the numbers of the tokens that messages were sent with, by physical offset."""
        if not self._ids:
            return {}  # no message was sent with a token
        ids_by_lane: dict[int, list[int]] = {}
        for offset in physical_offsets:
            number, message_id = split_physical_offset(offset)
            ids_by_lane.setdefault(number, []).append(message_id)
        found: dict[int, int] = {}
        for number, ids in ids_by_lane.items():
            if number in self._catalog.lanes_by_number:
                lane, _ = self._catalog.lanes_by_number[number]
                rows = await self._database.fetch(message_statements.select_tokens(lane.table, ids))
                found |= {lane.physical_offset(message_id): token for message_id, token in rows}
        return found

    async def put(self, token: Token, *, before: Token | None = None, replaces_secret: bool = False) -> None:
        """Issue a token under its name, change it, or revoke it. The database chooses its number."""
        validate_token_name(token.name)
        parse_token_kind(token.kind)
        if token.name in self._unreadable:
            raise self._unreadable[token.name]
        permissions, addresses, acl = _permissions_of(token), _addresses_of(token), _acl_of(token)
        known = self._known.get(token.name)
        changes: dict[str, object] = {
            "token": token.name,
            "type": _type_of(token),
            "permissions": permissions,
            "addresses": addresses,
            "acl": acl,
            "revoked": token.revoked_ms,
            "disabled": token.disabled_ms,
        }
        if known is not None and replaces_secret:
            changes |= {"secret": self._secrets.to_stored(token.secret), "created": token.created_ms}
            await self._change(before, statements.CHANGE_WITH_SECRET, changes)
        elif known is not None and known.secret == token.secret:
            await self._change(before, statements.CHANGE, changes)
        else:  # if another broker has just issued the name, that one counts
            await insert_if_absent(
                self._database,
                "meta_token",
                token=token.name,
                type=_type_of(token),
                secret=self._secrets.to_stored(token.secret),
                created_at=token.created_ms,
                revoked_at=token.revoked_ms,
                permissions=permissions,
                addresses=addresses,
                acl=acl,
                disabled_at=token.disabled_ms,
            )
        await self._read(is_strict=False)
        if token.name not in self._known:
            raise self._unreadable.get(token.name) or Refused(
                f"the name {token.name!r} is taken by an admin token, or by one without a secret: choose another name"
            )

    async def _change(self, before: Token | None, statement: str, changes: Mapping[str, object]) -> None:
        """Change the row of a token, unless it is not what the change was made of any more."""
        async with self._database.transaction() as session:
            if before is not None:
                await session.execute(statements.LOCK, token=before.name)
                rows = await session.fetch(statements.SELECT_ONE, token=before.name)
                if not rows or self._token_of(rows[0]) != before:
                    raise Busy(
                        f"token {before.name!r} was changed by another broker at the same time: look at it before you "
                        "change it again"
                    )
            await session.execute(statement, **changes)

    def _token_of(self, row: Sequence[Any]) -> Token:
        """Return the token of a row with a secret; raise `UnreadableSecret` if that cannot be decrypted."""
        number, name, kind, stored, created_ms, revoked_ms, permissions, addresses, acl, disabled_ms = row
        secret = self._decrypted.get(bytes(stored)) or self._secrets.from_stored(bytes(stored), token=name)
        permitted = _StoredPermissions(parse_token_kind(kind)) if permissions is None else _decode(permissions)
        return Token(
            id=number,
            name=name,
            kind=permitted.kind,
            secret=secret,
            created_ms=created_ms,
            revoked_ms=revoked_ms,
            topics=permitted.topics,
            groups=permitted.groups,
            addresses=() if addresses is None else _decode_addresses(addresses),
            acl=None if acl is None else _decode_acl(acl),
            disabled_ms=disabled_ms,
        )

    async def _read(self, *, is_strict: bool) -> None:
        known: dict[str, Token] = {}
        ids: dict[str, int] = {}
        unreadable: dict[str, UnreadableSecret] = {}
        decrypted: dict[bytes, bytes] = {}
        for row in await self._database.fetch(statements.SELECT_ALL):
            number, name, _, stored, *_ = row
            ids[name] = number
            if stored is None:
                continue
            stored = bytes(stored)
            try:
                known[name] = self._token_of(row)
            except UnreadableSecret as error:
                if is_strict:
                    raise
                if name not in self._known:
                    unreadable[name] = error
                    continue
                # Most likely only its encryption has changed.
                self._decrypted[stored] = self._known[name].secret
                known[name] = self._token_of(row)
            decrypted[stored] = known[name].secret
        self._known.clear()
        self._known.update(known)
        self._ids, self._unreadable, self._decrypted = ids, unreadable, decrypted
        if unreadable:
            first = next(iter(unreadable.values()))
            if self._failures.is_due("decrypt", type(first)):
                log.error(
                    "requests with %(tokens)s tokens are refused: %(error)s",
                    {"tokens": len(unreadable), "error": first},
                )
        elif self._failures.end("decrypt"):
            log.info("the secrets of all tokens can be decrypted again")

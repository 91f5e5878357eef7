"""Tokens: who may produce and who may consume, and what a client proves it with.

A token's name is its identity and stands in every request; its secret never travels, it only signs. Tokens are never
deleted: a name that was revoked stays taken, so that what it once did remains its own.
"""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec

from sparrow.model.errors import IllegalName, Refused

TokenKind = Literal["p", "c"]
"""`p` may produce, `c` may consume."""

TOKEN_NAME_CHARS_MAX = 190
"""What a key column of every database can hold."""
SECRET_BYTES = 32
_KINDS: dict[str, TokenKind] = {"p": "p", "c": "c"}
TOKEN_KIND_LABELS: dict[TokenKind, str] = {"p": "a producer's", "c": "a consumer's"}


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """One identity and what it may do."""

    id: int
    """Small and never used again: what a database keeps of the token with each message."""
    name: str
    kind: TokenKind
    secret: bytes
    created_ms: int
    revoked_ms: int | None = None

    @property
    def secret_key(self) -> str:
        """The secret as clients are configured with it, and so as they sign with it."""
        return self.secret.hex()

    @property
    def is_revoked(self) -> bool:
        return self.revoked_ms is not None

    def __repr__(self) -> str:
        return f"Token(id={self.id}, name={self.name!r}, kind={self.kind!r}, revoked_ms={self.revoked_ms})"


class Credentials(msgspec.Struct, frozen=True):
    """What a client signs its requests with: a token's name, and its secret as the issuer showed it."""

    access_key: str
    secret_key: str

    def __post_init__(self) -> None:
        # Anybody can sign with an empty key; most likely a variable was not set.
        if not self.access_key or not self.secret_key:
            raise Refused("credentials need both an access key and a secret key: one of them is empty")

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"


def validate_token_name(name: str) -> str:
    """The name itself if a token may have it, else `IllegalName`."""
    if not name or name != name.strip() or not name.isprintable():
        raise IllegalName("token", name, "use at least one character, printable ones only, and no blank at an end")
    if len(name) > TOKEN_NAME_CHARS_MAX:
        raise IllegalName(
            "token", name[:TOKEN_NAME_CHARS_MAX], f"it has {len(name)} characters of {TOKEN_NAME_CHARS_MAX} at most"
        )
    return name


def parse_token_kind(kind: str) -> TokenKind:
    """The kind itself if there is such a one, else `Refused`."""
    found = _KINDS.get(kind)
    if found is None:
        raise Refused(f"{kind[:80]!r} is no type of token: say p for one that produces, or c for one that consumes")
    return found


def parse_secret_key(secret_key: str | None) -> bytes:
    """A secret from its text, so that several brokers can have the same; without one, a new one."""
    if secret_key is None:
        return secrets.token_bytes(SECRET_BYTES)
    try:
        secret = bytes.fromhex(secret_key)
    except ValueError:
        secret = b""
    # Spelled in one way only: the text itself is what clients sign with.
    if len(secret) != SECRET_BYTES or secret.hex() != secret_key:
        raise Refused(f"the secret is not {SECRET_BYTES} bytes, written as {2 * SECRET_BYTES} small hexadecimal digits")
    return secret


def validate_reissue(token: Token, kind: TokenKind) -> Token:
    """The token that a name asked for once more already has; `Refused` if it is of no use to whoever asks."""
    if token.kind != kind:
        raise Refused(
            f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]} (type {token.kind}) already: "
            f"issue {TOKEN_KIND_LABELS[kind]} (type {kind}) under another name"
        )
    if token.is_revoked:
        raise Refused(f"token {token.name!r} was revoked: issue one under another name")
    return token

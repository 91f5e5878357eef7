"""Tokens: who may produce, consume or administer, and the credentials that clients sign requests with.

Every request contains the name of a token; the secret is never sent, it only signs. Tokens are never deleted: the name
of a revoked token stays in use, so that its past messages remain attributed to it.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal

import msgspec

from sparrow.model.access.acl_entry import AclEntry
from sparrow.model.errors import IllegalName, Refused

TokenKind = Literal["p", "c", "pc", "a"]
"""`p` may produce, `c` may consume, `pc` both; `a` may also administer."""

TOKEN_NAME_CHARS_MAX = 190
"""The length that a key column of every supported database can hold."""
SECRET_BYTES = 32
"""Length of a random secret. A secret of another length is a password, which an administrator has chosen."""
PASSWORD_BYTES_MAX = 96
_PASSWORD_FILLER = b"\0"
"""Follows a password that has the length of a random secret. No password contains it."""
TOKEN_KIND_LABELS: dict[TokenKind, str] = {
    "p": "a producer's",
    "c": "a consumer's",
    "pc": "a producer's and consumer's",
    "a": "an administrator's",
}
_KINDS: dict[str, TokenKind] = {kind: kind for kind in TOKEN_KIND_LABELS}
EVERY_NAME = "*"
"""The pattern that every topic and every group matches."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An identity and its permissions (`model/access/permissions` has the rules)."""

    id: int
    """A small number that is never reused; SQL stores keep it with each message."""
    name: str
    kind: TokenKind
    secret: bytes
    created_ms: int
    revoked_ms: int | None = None
    topics: tuple[str, ...] = (EVERY_NAME,)
    """Patterns of the topics that it may use. Tokens that were stored before there were patterns may use all."""
    groups: tuple[str, ...] = (EVERY_NAME,)
    """Patterns of the consumer groups that it may use."""
    addresses: tuple[str, ...] = ()
    """Addresses and networks that its requests may come from (`model/access/source_addresses`); none: from anywhere."""
    acl: tuple[AclEntry, ...] | None = None
    """What it may do as a user of RocketMQ (`model/access/acl`). None: kind, topics, groups and addresses have it."""
    disabled_ms: int | None = None
    """When it was disabled; None: it is not. Unlike a revoked token, it can be enabled again."""

    @property
    def secret_key(self) -> str:
        """The secret as clients are configured with it, and sign with it."""
        if len(self.secret) == SECRET_BYTES:
            return self.secret.hex()
        return self.secret.removesuffix(_PASSWORD_FILLER).decode()

    @property
    def is_revoked(self) -> bool:
        """Whether the token was revoked."""
        return self.revoked_ms is not None

    @property
    def is_disabled(self) -> bool:
        """Whether the token is disabled for now."""
        return self.disabled_ms is not None

    @property
    def permissions(self) -> tuple[TokenKind, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """What `sparrow token change` replaces: kind, topics, groups and addresses."""
        return self.kind, self.topics, self.groups, self.addresses

    def __repr__(self) -> str:
        return f"Token(id={self.id}, name={self.name!r}, kind={self.kind!r}, revoked_ms={self.revoked_ms})"


class Credentials(msgspec.Struct, frozen=True):
    """What a client signs its requests with: the name of a token, and its secret key."""

    access_key: str
    secret_key: str

    def __post_init__(self) -> None:
        # An empty key protects nothing; most likely an environment variable is not set.
        if not self.access_key or not self.secret_key:
            raise Refused("the credentials have an empty access key or secret key: set both")

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"


def validate_token_name(name: str) -> str:
    """Return the name if it is valid for a token; raise `IllegalName` otherwise."""
    if not name or name != name.strip() or not name.isprintable():
        raise IllegalName("token", name, "use printable characters, at least one, and no blank at either end")
    if len(name) > TOKEN_NAME_CHARS_MAX:
        raise IllegalName(
            "token", name[:TOKEN_NAME_CHARS_MAX], f"it has {len(name)} characters of {TOKEN_NAME_CHARS_MAX} at most"
        )
    return name


def parse_token_kind(kind: str) -> TokenKind:
    """Return the kind if it is `p`, `c`, `pc` or `a`; raise `Refused` otherwise."""
    found = _KINDS.get(kind)
    if found is None:
        raise Refused(
            f"{kind[:80]!r} is no kind of token: use p for producing, c for consuming, pc for both, "
            "or a for administering"
        )
    return found


def parse_secret_key(secret_key: str | None) -> bytes:
    """Return the secret of a secret key, which several brokers may share; without a key, a new secret."""
    if secret_key is None:
        return secrets.token_bytes(SECRET_BYTES)
    try:
        secret = bytes.fromhex(secret_key)
    except ValueError:
        secret = b""
    # Exactly one spelling is valid, because clients sign with the text itself.
    if len(secret) != SECRET_BYTES or secret.hex() != secret_key:
        raise Refused(f"the secret key must be {2 * SECRET_BYTES} lower-case hexadecimal digits ({SECRET_BYTES} bytes)")
    return secret


def parse_password(password: str) -> bytes:
    """Return the secret whose secret key is a password that an administrator has chosen."""
    encoded = password.encode("utf-8", "replace")
    if not password or password != password.strip() or not password.isprintable():
        raise Refused("the password must have printable characters, at least one, and no blank at either end")
    if len(encoded) > PASSWORD_BYTES_MAX:
        raise Refused(f"the password has {len(encoded)} bytes of {PASSWORD_BYTES_MAX} at most: choose a shorter one")
    try:
        return parse_secret_key(password)
    except Refused:
        return encoded + _PASSWORD_FILLER if len(encoded) == SECRET_BYTES else encoded


def validate_reissue(token: Token, wanted: Token) -> Token:
    """Return a token that is issued again with the same secret, for brokers that do not have it yet.

    Raises `Refused` if it is revoked, has other permissions, or the caller does not know its secret.
    """
    if token.is_revoked:
        raise Refused(f"token {token.name!r} was revoked: issue one under another name")
    if not hmac.compare_digest(token.secret, wanted.secret):
        raise Refused(
            f"token {token.name!r} exists, and its secret key is shown only once, when it is issued: issue one under "
            "another name, or give the secret key with the request"
        )
    if token.permissions != wanted.permissions:
        raise Refused(
            f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]} (type {token.kind}), for topics "
            f"{', '.join(token.topics)} and groups {', '.join(token.groups)}, from "
            f"{', '.join(token.addresses) or 'anywhere'}: change it with `sparrow token change`, or issue one under "
            "another name"
        )
    return token

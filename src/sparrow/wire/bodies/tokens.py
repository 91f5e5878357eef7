"""Requests that issue, change, list and revoke tokens, and their answers. All are Sparrow's own."""

from __future__ import annotations

import msgspec

from sparrow.model.access.token import EVERY_NAME
from sparrow.wire.bodies.codec import Body

ACL_TYPE = "acl"
"""The type in the description of a token whose ACL decides what it may do."""


class IssueToken(Body, frozen=True):
    name: str
    type: str
    secret_key: str | None = None
    """The secret key that the client has made, so that all brokers share it. Without it, the broker makes one."""
    topics: list[str] | None = None
    """Patterns of topics; without them, the token is for all topics."""
    groups: list[str] | None = None
    addresses: list[str] | None = None
    """Addresses and networks that its requests may come from; without them, from anywhere."""


class ChangeToken(Body, frozen=True):
    """The permissions that a token has from now on."""

    name: str
    type: str
    topics: list[str] | None = None
    groups: list[str] | None = None
    addresses: list[str] | None = None


class RevokeToken(Body, frozen=True):
    name: str


class TokenDescription(Body, frozen=True):
    """A token, for administrators."""

    id: int
    name: str
    type: str
    created_ms: int
    revoked_ms: int | None = None
    secret_key: str | None = None
    """Only in the response to `IssueToken`, if the broker has made it."""
    topics: list[str] = msgspec.field(default_factory=lambda: [EVERY_NAME])
    groups: list[str] = msgspec.field(default_factory=lambda: [EVERY_NAME])
    addresses: list[str] = msgspec.field(default_factory=list)
    """Addresses and networks that its requests may come from; empty: from anywhere."""
    acl: list[str] = msgspec.field(default_factory=list)
    """The entries of its ACL, as texts; only they count if the type is `ACL_TYPE`."""
    disabled_ms: int | None = None

    def __repr__(self) -> str:
        return f"TokenDescription(id={self.id}, name={self.name!r}, type={self.type!r}, revoked_ms={self.revoked_ms})"


class TokenList(Body, frozen=True):
    tokens: list[TokenDescription] = msgspec.field(default_factory=list)

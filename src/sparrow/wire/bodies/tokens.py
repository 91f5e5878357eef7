"""Requests that issue, list and revoke tokens, and their answers. All are Sparrow's own."""

from __future__ import annotations

import msgspec

from sparrow.wire.bodies.codec import Body


class IssueToken(Body, frozen=True):
    name: str
    type: str
    secret_key: str | None = None
    """The secret key that another broker assigned, so that all brokers share it."""


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
    """Only in the response to `IssueToken`."""

    def __repr__(self) -> str:
        return f"TokenShown(id={self.id}, name={self.name!r}, type={self.type!r}, revoked_ms={self.revoked_ms})"


class TokenList(Body, frozen=True):
    tokens: list[TokenDescription] = msgspec.field(default_factory=list)

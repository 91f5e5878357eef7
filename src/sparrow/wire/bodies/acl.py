"""RocketMQ 5's users and ACLs, in the requests of its administration tools and their answers."""

from __future__ import annotations

import msgspec

from sparrow.wire.bodies.codec import Body


class UserState(Body, frozen=True):
    """What a request says about a user, without the password."""

    username: str | None = None
    user_type: str | None = None
    """`Super` or `Normal`."""
    user_status: str | None = None
    """`enable` or `disable`."""


class UserInfo(UserState, frozen=True):
    """A user. Answers have no password."""

    password: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo(username={self.username!r}, user_type={self.user_type!r}, user_status={self.user_status!r})"


class PolicyEntryInfo(Body, frozen=True):
    resource: str | None = None
    actions: list[str] = msgspec.field(default_factory=list)
    source_ips: list[str] | None = None
    """Without them, it applies to every address."""
    decision: str | None = None


class PolicyInfo(Body, frozen=True):
    policy_type: str | None = None
    """`Custom` or `Default`; without it, `Custom`."""
    entries: list[PolicyEntryInfo] = msgspec.field(default_factory=list)


class AclInfo(Body, frozen=True):
    subject: str | None = None
    """`User:name`."""
    policies: list[PolicyInfo] = msgspec.field(default_factory=list)

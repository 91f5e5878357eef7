"""Entries of RocketMQ 5's ACLs, as tokens keep them. `model/access/acl` has their rules."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec


class AclAction(StrEnum):
    """What an entry allows or denies; `ALL` stands for each of the others."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


ResourceKind = Literal["Topic", "Group", "Cluster"]
AclDecision = Literal["Allow", "Deny"]
AclPolicy = Literal["Custom", "Default"]


class AclEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a token may do, or may not do, on one resource. A policy has one entry for a resource."""

    resource: str
    """`Topic:orders`, `Topic:orders-*`, `Group:*`, `Cluster:DefaultCluster`, or `*` for everything."""
    actions: tuple[AclAction, ...]
    decision: AclDecision = "Allow"
    addresses: tuple[str, ...] = ()
    """Addresses and networks of the peers that it applies to (`model/access/source_addresses`); none: to all."""
    policy: AclPolicy = "Custom"

    def __str__(self) -> str:
        source = f" from {','.join(self.addresses)}" if self.addresses else ""
        policy = " (Default)" if self.policy == "Default" else ""
        return f"{self.decision} {','.join(self.actions)} on {self.resource}{source}{policy}"

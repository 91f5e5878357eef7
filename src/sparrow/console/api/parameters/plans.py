"""Parameters of routes that plan before they act, and of names in paths."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, Path, Query

from sparrow.console.models.fields import ApiInput

DryRunQuery = Annotated[bool, Query(description="Only say what would happen; nothing changes.")]
PlanQuery = Annotated[
    str | None, Query(max_length=64, description="The hash of the plan of a dry run; 409 if the state has changed.")
]
ForceQuery = Annotated[bool, Query(description="Do it without a plan, and also if members are online.")]
NAME_PATTERN = "^[%|a-zA-Z0-9_-]+$"
TopicPath = Annotated[
    str, Path(min_length=1, max_length=127, pattern=NAME_PATTERN, description="Topic.", examples=["orders"])
]
GroupPath = Annotated[
    str, Path(min_length=1, max_length=120, pattern=NAME_PATTERN, description="Group.", examples=["billing"])
]


class Confirmation(msgspec.Struct, frozen=True):
    """How far a request for a dangerous change goes: only plan it, do it as planned, or do it whatever the state is."""

    dry_run: bool
    plan: str | None
    force: bool

    def audited(self, body: ApiInput | None = None) -> dict[str, Any]:
        """Return what the audit notes of a request: its body, the plan it names, and whether it was forced."""
        asked = {} if body is None else body.model_dump(mode="json", exclude_none=True)
        return asked | {"plan": self.plan, "force": self.force}


def _confirmation(dry_run: DryRunQuery = False, plan: PlanQuery = None, force: ForceQuery = False) -> Confirmation:
    return Confirmation(dry_run, plan, force)


ConfirmationDependency = Annotated[Confirmation, Depends(_confirmation)]


def with_dry_run(plan: Any, *, dry_run: bool) -> dict[str, Any]:
    """Return the attributes of a plan, and whether it was only planned."""
    return {name: getattr(plan, name) for name in type(plan).__struct_fields__} | {"dry_run": dry_run}

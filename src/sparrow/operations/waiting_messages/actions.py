"""Actions of an operator on chosen messages that wait: what they would do, and what became of each message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from sparrow.model.errors import Refused
from sparrow.operations.plans import hash_plan

IDS_MAX = 200
"""Messages that one action may name."""


class WaitingAction(StrEnum):
    """What an operator does to waiting messages."""

    RECALL = "recall"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class WaitingState(StrEnum):
    """What became of a message."""

    WAITING = "waiting"
    """In a plan: the action would reach it."""
    RECALLED = "recalled"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOT_FOUND = "not_found"
    """It is delivered or ended already, or was never there."""
    FAILED = "failed"


class WaitingItem(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one message."""

    id: str
    state: WaitingState
    topic: str | None = None
    message_id: str | None = None
    error: str | None = None


class WaitingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an action would do."""

    action: WaitingAction
    count: int
    """Messages that wait, and that it would reach."""
    items: tuple[WaitingItem, ...]
    hash: str


class WaitingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did."""

    action: WaitingAction
    done: int
    not_found: int
    failed: int
    items: tuple[WaitingItem, ...]

    @property
    def result(self) -> str:
        """done, partial or failed."""
        if not self.not_found and not self.failed:
            return "done"
        return "partial" if self.done else "failed"


def check_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids without repetitions; raise `Refused` if there are none or too many."""
    chosen = tuple(dict.fromkeys(ids))
    if not 1 <= len(chosen) <= IDS_MAX:
        raise Refused(f"name 1 to {IDS_MAX} messages, not {len(chosen)}")
    return chosen


def make_plan(action: WaitingAction, items: Iterable[WaitingItem]) -> WaitingPlan:
    """Return the plan of an action on messages that were looked up."""
    found = tuple(items)
    return WaitingPlan(
        action=action,
        count=sum(item.state is WaitingState.WAITING for item in found),
        items=found,
        hash=hash_plan(action, [(item.id, item.state) for item in found]),
    )


def make_report(action: WaitingAction, items: Iterable[WaitingItem]) -> WaitingReport:
    """Return the report of an action."""
    found = tuple(items)
    not_found = sum(item.state is WaitingState.NOT_FOUND for item in found)
    failed = sum(item.state is WaitingState.FAILED for item in found)
    return WaitingReport(
        action=action, done=len(found) - not_found - failed, not_found=not_found, failed=failed, items=found
    )

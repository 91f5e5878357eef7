"""What `--json` of `sparrow bus` prints: messages, results, counts and errors, with ids as text.

Imported by the commands when they print: the bus needs SQLAlchemy, an extra.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from sparrow.bus.operations.stored_event import (
    BusStats,
    FailureSummary,
    GroupBacklog,
    OperationResult,
    RowCount,
    StoredEvent,
)
from sparrow.bus.states import EventStatus
from sparrow.bus.telemetry.probe import Side


class BusMessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stored message of the bus."""

    id: str
    """As text: JavaScript and some other languages lose digits of large numbers."""
    version: str
    name: str
    """The topic."""
    group: str | None
    """null for a published message."""
    headers: dict[str, str | None]
    value: Any
    """The payload."""
    retries: int
    added: datetime
    expires_at: datetime | None
    """null while the message is open."""
    status: EventStatus
    key: str | None
    rounds: int
    """Rounds of retries after the first failure."""
    error: str | None
    """The last error."""
    parked: bool
    """Excluded from retries until an operator unparks or requeues it."""
    message_id: str
    """The id that all services know."""
    due_at: datetime | None
    """Time of the next attempt, or end of the lease of its worker; null: it is closed."""
    locked_by: str | None
    """The worker that holds it."""
    content: str | None = None
    """The raw column, only if headers and payload cannot be decoded from it."""


class BusActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did, or would do."""

    count: int
    ids: list[str]
    """The first ids."""
    dry_run: bool


class BusSideStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one side: published or received."""

    side: Side
    by_status: dict[str, int]
    """Messages in each state but Successed."""
    parked: int
    rows: RowCount
    """All messages of the side."""
    oldest_open_s: float
    """Age of the oldest open message that is not Delayed, in seconds; 0: there is none."""
    groups: tuple[GroupBacklog, ...]
    open: int
    succeeded: RowCount


class BusStatsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `sparrow bus stats` counted."""

    published: BusSideStats
    received: BusSideStats
    topics: list[GroupBacklog]
    """With --topics: open messages of each group and topic."""


class BusFailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """Failed messages with the same kind of error."""

    side: Side
    error: str
    """With `…` in place of numbers, which differ between messages."""
    count: int
    parked: int
    names: tuple[str, ...]
    """The topics."""
    groups: tuple[str, ...]
    first_added: datetime
    last_added: datetime
    last_id: str


def message_row(event: StoredEvent) -> BusMessageRow:
    """Return a message as `list`, `search` and `show` print it."""
    return msgspec.convert(event.to_builtins(), BusMessageRow)


def action_result(result: OperationResult) -> BusActionResult:
    """Return the result of an action as it is printed."""
    return msgspec.convert(result.to_builtins(), BusActionResult)


def stats_report(stats: BusStats, topics: list[GroupBacklog]) -> BusStatsReport:
    """Return the counts as `stats` prints them."""
    return msgspec.convert({**stats.to_builtins(), "topics": msgspec.to_builtins(topics)}, BusStatsReport)


def failure_row(summary: FailureSummary) -> BusFailureRow:
    """Return a kind of error as `failures` prints it."""
    return msgspec.convert({**msgspec.to_builtins(summary), "last_id": str(summary.last_id)}, BusFailureRow)

"""Stored messages as operators see them: `StoredEvent`, the filter `Where`, results and statistics."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.states import EventStatus
from sparrow.bus.telemetry.probe import Side
from sparrow.model.errors import Refused

ANY_OPEN_STATUS = "Open"
"""Stands for all four open states."""
SIDES: tuple[Side, Side] = ("published", "received")
EVENT_ID_MAX = 2**63 - 1
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A row of Published or Received, with its row in Queue."""

    id: int
    version: str
    name: str
    group: str | None
    """None for a published event."""
    content: str | None
    """The raw column; `headers` and `value` are decoded from it."""
    headers: dict[str, str | None]
    value: Any
    retries: int
    added: datetime
    expires_at: datetime | None
    """None while the message is open."""
    status: EventStatus
    """The live state: a message that a worker holds is Processing, even if the row does not say so."""
    key: str | None
    rounds: int
    error: str | None
    parked: bool
    """Excluded from retry rounds: only an operator requeues it."""
    message_id: str
    """The id that all services know; `cap-msg-id`."""
    due_at: datetime | None = None
    """Time of the next attempt, or end of the lease of its worker; None: it is closed."""
    locked_by: str | None = None

    def to_builtins(self) -> dict[str, Any]:
        """Return a dict for JSON.

        Ids are text, since browsers lose digits beyond 2^53. The raw column is included only if it cannot be decoded.
        """
        shown: dict[str, Any] = msgspec.to_builtins(self)
        shown["id"] = str(self.id)
        if self.headers or not self.content:
            del shown["content"]
        return shown

    def to_json(self) -> str:
        """Return the message as JSON text."""
        return msgspec.json.encode(self.to_builtins()).decode()


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for messages; all given conditions must hold. Letter case counts."""

    status: EventStatus | Literal["Open"] | None = None
    """A status, or its name in any letter case."""
    name: str | None = None
    """Exact name."""
    group: str | None = None
    """Exact name on the broker (`billing.v1`); only received messages have one."""
    content: str | None = None
    """Part of the headers or the payload, as JSON."""
    correlation_id: str | None = None
    tenant: str | None = None
    """Headers: searched in the content, since no column holds them."""
    message_id: str | None = None
    key: str | None = None
    added_since: datetime | None = None
    added_until: datetime | None = None
    """Times without a time zone are UTC."""
    error: str | None = None
    """Part of the last error."""
    parked: bool | None = None

    def __post_init__(self) -> None:
        if self.status is not None and not isinstance(self.status, EventStatus):
            force_setattr(self, "status", parse_status(self.status))
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, str) and _UNSTORABLE.search(value):
                raise Refused(f"{name} = {value!r} contains characters that databases do not store")

    @property
    def matches_everything(self) -> bool:
        """Whether the filter has no condition."""
        return all(getattr(self, name) is None for name in self.__struct_fields__)


class OperationResult(msgspec.Struct, frozen=True):
    """The result of an operation or of its dry run."""

    count: int
    ids: tuple[int, ...]
    """The first ids."""
    is_dry: bool = False

    def to_builtins(self) -> dict[str, Any]:
        """Return a dict for JSON, with ids as text."""
        return {"count": self.count, "ids": [str(number) for number in self.ids], "dry_run": self.is_dry}


class GroupBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """Open messages of one group, or of one topic in it."""

    side: Side
    group: str
    """Empty for events to be sent."""
    name: str | None = None
    """None: all topics."""
    open: int
    held: int
    """Held by workers."""
    due: int
    """Due and not held."""
    lag_s: float
    """How long the oldest due message has been due."""


class FailureSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Failed messages with the same kind of error."""

    side: Side
    error: str
    """With `…` in place of numbers, which differ between messages."""
    count: int
    parked: int
    names: tuple[str, ...]
    groups: tuple[str, ...]
    first_added: datetime
    last_added: datetime
    last_id: int


class RowCount(msgspec.Struct, frozen=True):
    """A number of rows, exact or estimated."""

    count: int
    is_exact: bool = True
    """False: an estimate of the database."""


class TableStats(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of one side: published or received."""

    side: Side
    by_status: dict[str, int]
    """Exact counts of all states but Successed."""
    parked: int
    rows: RowCount
    """All rows of the table."""
    oldest_open_s: float
    """Age of the oldest open message that is not Delayed; 0: there is none."""
    groups: tuple[GroupBacklog, ...]

    @property
    def open(self) -> int:
        """The number of open messages."""
        return sum(group.open for group in self.groups)

    @property
    def succeeded(self) -> RowCount:
        """Rows in no other state."""
        return RowCount(max(0, self.rows.count - sum(self.by_status.values())), self.rows.is_exact)


class BusStats(msgspec.Struct, frozen=True):
    """The statistics of both sides."""

    published: TableStats
    received: TableStats

    @property
    def sides(self) -> tuple[TableStats, TableStats]:
        """Both sides: published and received."""
        return self.published, self.received

    def to_builtins(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        for side in self.sides:
            shown[side.side]["open"] = side.open
            shown[side.side]["succeeded"] = msgspec.to_builtins(side.succeeded)
        return shown


def split_content(content: str | None) -> tuple[dict[str, str | None], Any]:
    """Return headers and payload; empty if the column cannot be decoded."""
    try:
        headers, body = decode_content(content or "")
        return headers, msgspec.json.decode(body) if body else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}, None


def parse_status(text: str) -> EventStatus | Literal["Open"]:
    """Return the status for a name in any letter case, or "Open"."""
    if text.lower() == "open":
        return "Open"
    try:
        return EventStatus.of(text)
    except KeyError:
        known = ", ".join(status.value for status in EventStatus)
        raise Refused(f"{text!r} is not a state of a message; use one of {known}, Open") from None


def parse_side(text: str) -> Side:
    for side in SIDES:
        if side == text.lower():
            return side
    raise Refused(f"{text!r} is not a table of messages; use published or received")

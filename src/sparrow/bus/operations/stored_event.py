"""Stored messages as operators see them, and how they say which ones they mean."""

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
"""Stands for all four states in which work is left."""
SIDES: tuple[Side, Side] = ("published", "received")
EVENT_ID_MAX = 2**63 - 1
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One row of Published or Received, and what Queue knows of it."""

    id: int
    version: str
    name: str
    group: str | None
    """None on what this application publishes."""
    content: str | None
    """The column as it is; `headers` and `value` are made of it."""
    headers: dict[str, str | None]
    value: Any
    retries: int
    added: datetime
    expires_at: datetime | None
    """None while it is open."""
    status: EventStatus
    """The live one: what a worker holds is Processing, whether or not that is written in the row."""
    key: str | None
    rounds: int
    error: str | None
    parked: bool
    """Failed for good: only an operator gives it another round."""
    message_id: str
    """By which all services know it; `cap-msg-id`."""
    due_at: datetime | None = None
    """When it is tried next, or when the lease of the worker that holds it ends; None: it is not open."""
    locked_by: str | None = None

    def to_builtins(self) -> dict[str, Any]:
        """For JSON: numbers of messages as text, since browsers lose digits beyond 2^53. The column itself is shown
        only where it could not be read."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        shown["id"] = str(self.id)
        if self.headers or not self.content:
            del shown["content"]
        return shown

    def to_json(self) -> str:
        return msgspec.json.encode(self.to_builtins()).decode()


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages are meant: those for which all that is said here holds. Letter case counts everywhere."""

    status: EventStatus | Literal["Open"] | None = None
    """A word for one will do, in any letter case."""
    name: str | None = None
    """Exactly."""
    group: str | None = None
    """Exactly, as on the broker (`billing.v1`); only what was received has one."""
    content: str | None = None
    """A piece of the headers or the payload, as JSON writes them."""
    correlation_id: str | None = None
    tenant: str | None = None
    """These two are headers, and are looked for in the content as well: no column has them."""
    message_id: str | None = None
    key: str | None = None
    added_since: datetime | None = None
    added_until: datetime | None = None
    """Times without a zone are UTC."""
    error: str | None = None
    """A piece of the last error."""
    parked: bool | None = None

    def __post_init__(self) -> None:
        if self.status is not None and not isinstance(self.status, EventStatus):
            force_setattr(self, "status", parse_status(self.status))
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, str) and _UNSTORABLE.search(value):
                raise Refused(f"{name} = {value!r} is in no message: databases do not store such characters")

    @property
    def matches_everything(self) -> bool:
        return all(getattr(self, name) is None for name in self.__struct_fields__)


class OperationResult(msgspec.Struct, frozen=True):
    """What an operation has done, or would do."""

    count: int
    ids: tuple[int, ...]
    """The first of them."""
    is_dry: bool = False

    def to_builtins(self) -> dict[str, Any]:
        return {"count": self.count, "ids": [str(number) for number in self.ids], "dry_run": self.is_dry}


class GroupBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """Open work of one group, or of one topic in it."""

    side: Side
    group: str
    """Empty for what is to be sent."""
    name: str | None = None
    """None: of all topics."""
    open: int
    held: int
    """By workers, just now."""
    due: int
    """Could be worked on, and waits."""
    lag_s: float
    """How long the one that waits longest has been due."""


class FailureSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Failed messages with the same kind of error."""

    side: Side
    error: str
    """With `…` for numbers, which differ from message to message."""
    count: int
    parked: int
    names: tuple[str, ...]
    groups: tuple[str, ...]
    first_added: datetime
    last_added: datetime
    last_id: int


class RowCount(msgspec.Struct, frozen=True):
    count: int
    is_exact: bool = True
    """False: the database's own estimate, or a count that was not carried on."""


class TableStats(msgspec.Struct, frozen=True, kw_only=True):
    side: Side
    by_status: dict[str, int]
    """All states but Successed, exactly."""
    parked: int
    rows: RowCount
    """In the table, finished ones too."""
    oldest_open_s: float
    """Age of the oldest open message that is not meant to wait (Delayed); 0: there is none."""
    groups: tuple[GroupBacklog, ...]

    @property
    def open(self) -> int:
        return sum(group.open for group in self.groups)

    @property
    def succeeded(self) -> RowCount:
        """What is in the table and in no other state."""
        return RowCount(max(0, self.rows.count - sum(self.by_status.values())), self.rows.is_exact)


class BusStats(msgspec.Struct, frozen=True):
    published: TableStats
    received: TableStats

    @property
    def sides(self) -> tuple[TableStats, TableStats]:
        return self.published, self.received

    def to_builtins(self) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(self)
        for side in self.sides:
            shown[side.side]["open"] = side.open
            shown[side.side]["succeeded"] = msgspec.to_builtins(side.succeeded)
        return shown


def split_content(content: str | None) -> tuple[dict[str, str | None], Any]:
    """Headers and payload; nothing of either where the column cannot be read."""
    try:
        headers, body = decode_content(content or "")
        return headers, msgspec.json.decode(body) if body else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}, None


def parse_status(text: str) -> EventStatus | Literal["Open"]:
    """In any letter case; also CAP's spelling of Successed."""
    if text.lower() == "open":
        return "Open"
    try:
        return EventStatus.of(text)
    except KeyError:
        known = ", ".join(status.value for status in EventStatus)
        raise Refused(f"{text!r} is no state of a message: say one of {known}, Open") from None


def parse_side(text: str) -> Side:
    for side in SIDES:
        if side == text.lower():
            return side
    raise Refused(f"{text!r} is no table of messages: say published or received")

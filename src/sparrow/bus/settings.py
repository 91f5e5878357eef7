"""The settings of a bus. Units are part of the names."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, fields, replace
from datetime import time
from pathlib import Path
from typing import Literal, TypedDict

from sparrow.bus.codec.payload import FieldNaming
from sparrow.bus.retry import CAP_RETRY, Retry
from sparrow.bus.states import SUCCEEDED_SPELLINGS
from sparrow.client.option_checks import refuse_unknown
from sparrow.model.errors import SettingsError

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class BusSettings:
    """The settings of a bus; `EventBus` takes the same names as keywords."""

    app: str = "app"
    """Names the default group: `cap.queue.<app>`."""
    version: str = "v1"
    """Stored with every row and part of every group name. Two versions of an application on the same tables neither
    send nor handle each other's messages."""
    default_group: str | None = None
    """The group of subscriptions without one; None: `cap.queue.<app>`."""
    group_prefix: str | None = None
    """Prefix of every group name, followed by a dot."""
    topic_prefix: str | None = None
    """Prefix of every event name that is published or subscribed to, followed by a dot."""

    schema: str = "cap"
    """The schema of the tables on PostgreSQL."""
    table_prefix: str = "cap"
    """The prefix of the table names on MySQL, MariaDB and SQLite."""
    create_tables: bool = True
    """Create and migrate the tables at the start; otherwise only check them."""
    strict_tables: bool = False
    """Create exactly three tables. Duplicates are recognised only while the message is stored, and no schema version is
    recorded."""
    succeeded_spelling: Literal["Successed", "Succeeded"] = "Successed"
    """How success is spelled in StatusName; the other spelling is CAP's own."""
    status_writes: Literal["full", "compact"] = "full"
    """`compact`: do not write Enqueued and Processing to the message tables; listings derive them from Queue."""

    retry: Retry = field(default_factory=Retry)
    """The retry policy of sends, and of handlers without their own."""
    retry_round_interval_s: float | None = 180.0
    """How often failed messages start a new round of attempts; None: never."""
    succeeded_retention_s: float = DAY_S
    """How long a message is kept after its success."""
    failed_retention_s: float = 15 * DAY_S
    """How long a failed message is kept after it was added; until then it gets retry rounds."""
    inbox_retention_s: float = 7 * DAY_S
    """How long a group remembers message ids. A duplicate that arrives later is handled again."""
    cleanup_interval_s: float = 3_600.0
    """How often expired messages are deleted."""
    cleanup_batch: int = 1_000
    """Rows deleted in one transaction."""
    cleanup_pause_s: float = 1.0
    """Pause between two full batches."""
    cleanup_between: tuple[time, time] | None = None
    """Delete expired messages only between these times of day, UTC; the range may include midnight."""
    archive: Path | None = None
    """Folder for expired messages: they are written there as Parquet before they are deleted."""

    lease_s: float = 60.0
    """Duration of a claim without renewal: a message of a crashed worker is claimed again after it."""
    crashes_max: int = 5
    """A message is Failed after this many workers were lost while they held it."""
    relay_batch: int = 200
    """Events claimed and sent together."""
    send_timeout_s: float = 10.0
    """Time for the broker to acknowledge a batch; at most half a lease."""
    circuit_breaker: bool = False
    """Do not count attempts while the broker is unreachable, and try once a second. Recommended in production."""
    concurrency: int = 4
    """Handlers of a group that run at the same time, unless its subscriptions set it."""
    consumers: int = 1
    """Consumers of each group in this process."""
    broker_prefetch: int = 500
    """Messages that the broker may deliver ahead of acknowledgements."""
    poll_min_s: float = 0.02
    """First pause when nothing is due; each further pause doubles, up to `poll_max_s`. A commit in this process ends
    the pause."""
    poll_max_s: float = 1.0
    """Longest pause: the delay after which an event of another process is noticed."""
    stop_timeout_s: float = 30.0
    """How long a stop waits for running handlers before it cancels them and releases their messages."""

    naming: FieldNaming | None = None
    """`pascal` or `camel`: rename fields on the wire as .NET spells them."""
    allow_autocommit: bool = False
    """Allow publishing on connections that commit every statement by themselves."""
    allow_own_transaction: bool = True
    """Allow publishing without a transaction: the bus then opens a short one."""
    runs_relay: bool = True
    """Send published events in this process."""
    runs_handlers: bool = True
    """Receive events and run handlers in this process."""

    def space(self, kind: str) -> str:
        """Return the schema or prefix of the tables."""
        return self.schema if kind == "postgresql" else self.table_prefix

    def __post_init__(self) -> None:
        if self.succeeded_spelling not in SUCCEEDED_SPELLINGS:
            raise SettingsError(
                "succeeded_spelling", self.succeeded_spelling, "the bus", " or ".join(SUCCEEDED_SPELLINGS)
            )
        if not re.fullmatch(r"[\w.-]{1,20}", self.version, re.ASCII):
            raise SettingsError(
                "version", self.version, "the bus", "up to 20 letters, digits, dots and dashes, such as v2,"
            )
        if self.lease_s < 4 * self.poll_min_s or self.lease_s <= 0:
            raise SettingsError("lease_s", self.lease_s, "the bus", "some seconds, 60 by default,")
        for name in ("relay_batch", "concurrency", "consumers", "broker_prefetch", "cleanup_batch", "crashes_max"):
            if getattr(self, name) < 1:
                raise SettingsError(name, getattr(self, name), "the bus", "1 or more")


def cap_settings(**changes: object) -> BusSettings:
    """Return the settings of current CAP versions.

    Three attempts at once, then one a minute, fifty in all; no retry rounds; cleanup every five minutes.
    """
    defaults: dict[str, object] = {"retry": CAP_RETRY, "retry_round_interval_s": None, "cleanup_interval_s": 300.0}
    return BusSettings(**{**defaults, **changes})  # type: ignore[arg-type]


class BusOptions(TypedDict, total=False):
    """The fields of `BusSettings` as keywords of `EventBus`."""

    app: str
    version: str
    default_group: str | None
    group_prefix: str | None
    topic_prefix: str | None
    schema: str
    table_prefix: str
    create_tables: bool
    strict_tables: bool
    succeeded_spelling: Literal["Successed", "Succeeded"]
    status_writes: Literal["full", "compact"]
    retry: Retry
    retry_round_interval_s: float | None
    succeeded_retention_s: float
    failed_retention_s: float
    inbox_retention_s: float
    cleanup_interval_s: float
    cleanup_batch: int
    cleanup_pause_s: float
    cleanup_between: tuple[time, time] | None
    archive: Path | None
    lease_s: float
    crashes_max: int
    relay_batch: int
    send_timeout_s: float
    circuit_breaker: bool
    concurrency: int
    consumers: int
    broker_prefetch: int
    poll_min_s: float
    poll_max_s: float
    stop_timeout_s: float
    naming: FieldNaming | None
    allow_autocommit: bool
    allow_own_transaction: bool
    runs_relay: bool
    runs_handlers: bool


_RENAMED = {
    "succeeded_kept_s": "succeeded_retention_s",
    "failed_kept_s": "failed_retention_s",
    "inbox_kept_s": "inbox_retention_s",
    "clean_interval_s": "cleanup_interval_s",
    "clean_batch": "cleanup_batch",
    "clean_pause_s": "cleanup_pause_s",
    "clean_between": "cleanup_between",
    "own_transactions": "allow_own_transaction",
    "reenqueue_interval_s": "retry_round_interval_s",
    "succeeded_word": "succeeded_spelling",
    "breaker": "circuit_breaker",
    "relays": "runs_relay",
    "executes": "runs_handlers",
}
"""Names of version 0.1; they are removed in the next version."""


def apply_options(settings: BusSettings, options: BusOptions) -> BusSettings:
    """Return the settings with the given fields replaced; fields may have the names of version 0.1."""
    given: dict[str, object] = {}
    for name, value in options.items():
        if name in _RENAMED:
            warnings.warn(f"the bus setting {name} is now {_RENAMED[name]}", DeprecationWarning, stacklevel=4)
        given[_RENAMED.get(name, name)] = value
    refuse_unknown("EventBus", given, [field.name for field in fields(BusSettings)])
    return replace(settings, **given)  # type: ignore[arg-type]

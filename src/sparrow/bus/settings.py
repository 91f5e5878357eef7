"""What can be set about a bus. Every field has the default of the requirement; units are in the names."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace
from datetime import time
from pathlib import Path
from typing import Literal, TypedDict

from sparrow.bus.codec.payload import FieldNaming
from sparrow.bus.retry import CAP_RETRY, Retry
from sparrow.bus.states import SUCCEEDED_SPELLINGS
from sparrow.model.errors import SettingsError

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class BusSettings:
    app: str = "app"
    """Names the default group: `cap.queue.<app>`."""
    version: str = "v1"
    """Stored with every row and part of every group's name: two versions of an application on the same tables neither
    send nor handle each other's messages."""
    default_group: str | None = None
    """The group of subscriptions that name none; None: `cap.queue.<app>`."""
    group_prefix: str | None = None
    """Goes before every group, with a dot."""
    topic_prefix: str | None = None
    """Goes before every name that is published or subscribed to, with a dot."""

    schema: str = "cap"
    """Where the tables are on PostgreSQL."""
    table_prefix: str = "cap"
    """What stands before their names on MySQL, MariaDB and SQLite."""
    create_tables: bool = True
    """Whether a start makes the tables that are missing; else it says which ones are."""
    strict_tables: bool = False
    """Exactly three tables: repeats are remembered only while the message is."""
    succeeded_spelling: Literal["Successed", "Succeeded"] = "Successed"
    """How success is spelled in StatusName; the other one is CAP's own."""
    status_writes: Literal["full", "compact"] = "full"
    """compact: Enqueued and Processing are not written to the wide tables; listings work them out from Queue."""

    retry: Retry = field(default_factory=Retry)
    """For sends, and for handlers that have none of their own."""
    retry_round_interval_s: float | None = 180.0
    """How often what has failed gets a new round; None: never."""
    succeeded_retention_s: float = DAY_S
    """How long after its success a message expires."""
    failed_retention_s: float = 15 * DAY_S
    """How long after it was added a failed message expires; until then it gets new rounds."""
    inbox_retention_s: float = 7 * DAY_S
    """How long a group remembers what it has seen: a repeat that comes later is handled again."""
    cleanup_interval_s: float = 3_600.0
    """How often expired messages are deleted."""
    cleanup_batch: int = 1_000
    """Rows that are deleted in one transaction."""
    cleanup_pause_s: float = 1.0
    """Between two full lots."""
    cleanup_between: tuple[time, time] | None = None
    """Only in these hours of the day, UTC; may pass midnight."""
    archive: Path | None = None
    """A folder: what is cleaned up is written there first, as Parquet."""

    lease_s: float = 60.0
    """How long a claim lasts that nobody renews: so long what a dead worker had rests."""
    crashes_max: int = 5
    """A message whose workers were lost so often is Failed: it may be what kills them."""
    relay_batch: int = 200
    """Events that are claimed and sent together."""
    send_timeout_s: float = 10.0
    """For a batch to be acknowledged by the broker; at most half a lease in any case."""
    circuit_breaker: bool = False
    """While the broker cannot be reached, attempts do not count; one is made every second. Better on in production."""
    concurrency: int = 4
    """Handlers of a group that run at once, unless its subscriptions say."""
    consumers: int = 1
    """Memberships in each group, in this process."""
    broker_prefetch: int = 500
    """Messages that the broker may hand out ahead."""
    poll_min_s: float = 0.02
    """The first pause when nothing is due; each one is twice as long, up to `poll_max_s`. A commit in this process
    ends the pause."""
    poll_max_s: float = 1.0
    """So late an event of another process may be noticed."""
    stop_timeout_s: float = 30.0
    """How long a stop waits for running handlers before they are cancelled and their messages handed back."""

    naming: FieldNaming | None = None
    """pascal: fields travel as .NET spells them."""
    allow_autocommit: bool = False
    """Whether to publish on connections that commit every statement by itself."""
    allow_own_transaction: bool = True
    """Whether an event may be published without naming a transaction: the bus then makes a short one."""
    runs_relay: bool = True
    """Whether this process sends what is published."""
    runs_handlers: bool = True
    """Whether this process receives, and runs handlers."""

    def space(self, kind: str) -> str:
        """Where the tables are: a schema, or a prefix."""
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
    """What CAP does today in place of what the requirement says: three attempts at once, one a minute, fifty in all,
    no rounds, cleaning every five minutes."""
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
    return replace(settings, **given)  # type: ignore[arg-type]

"""The settings of all programs: one frozen section per component, each field with a unit, bounds and a description.

A component receives its own section through its constructor. A field that was renamed is still read under its old
name for one version, with a `FutureWarning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from sparrow.extras import require

require("pydantic_settings", extra="server", for_="sparrow.settings")

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator  # noqa: E402
from pydantic_settings import (  # noqa: E402
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

FlushPolicy = Literal["async", "sync"]
Watermark = Literal["written", "durable", "replicated"]
"""How far the log has got; `replicated` is set by the store's owner and cannot be chosen in the settings yet."""
VisibleAfter = Literal["written", "durable"]


def _hide(value: object) -> object:
    return SecretStr(value) if isinstance(value, str) else value


# Hidden before validation: a validation error quotes the value.
SecretKey = Annotated[SecretStr, Field(min_length=8), BeforeValidator(_hide)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    OLD_NAMES: ClassVar[Mapping[str, str]] = {}
    """Field names of version 0.1 and their replacements."""

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not (old := cls.OLD_NAMES.keys() & given.keys()):
            return given
        renamed = dict(given)
        for name in sorted(old):
            _warn_renamed(name, cls.OLD_NAMES[name])
            # The old name wins: the new one may only hold the default that partial updates fill in.
            renamed[cls.OLD_NAMES[name]] = renamed.pop(name)
        return renamed


def _warn_renamed(old: str, new: str) -> None:
    warnings.warn(f"the setting {old} is now called {new}; the old name is accepted until 0.3", FutureWarning, 2)


class NetSettings(_Section):
    """Connections to a server."""

    OLD_NAMES = {"idle_close_ms": "idle_timeout_ms"}

    frame_bytes_max: int = Field(default=16 * MIB, ge=KIB, le=16 * MIB, description="Largest frame that is accepted.")
    idle_timeout_ms: int = Field(default=120_000, ge=1, description="Time after which an idle connection is closed.")
    connections_max: int = Field(default=65_536, ge=1, description="Concurrent connections.")
    stop_grace_ms: int = Field(
        default=5_000, ge=0, description="Time that requests in progress get to finish when the server stops."
    )


class NameServerSettings(_Section):
    """The name server."""

    OLD_NAMES = {"broker_silence_ms": "broker_timeout_ms"}

    host: str = Field(default="127.0.0.1", description="Address to listen on; `0.0.0.0` listens on all interfaces.")
    port: int = Field(default=9876, ge=0, le=65_535, description="Port to listen on; 0 chooses a free one.")
    broker_timeout_ms: int = Field(
        default=120_000, ge=1, description="Time without a heartbeat after which a broker is removed from the routes."
    )
    scan_interval_ms: int = Field(default=10_000, ge=1, description="Interval of the check for such brokers.")
    net: NetSettings = NetSettings()


class BrokerSettings(_Section):
    """The broker."""

    OLD_NAMES = {
        "held_pulls_max": "long_polls_max",
        "hold_ms_max": "long_poll_ms_max",
        "client_silence_ms": "client_timeout_ms",
        "lock_ms": "queue_lock_ms",
        "starvation_ms": "lane_starvation_ms",
    }

    name: str = Field(default="sparrow", min_length=1, description="Name of the broker in routes.")
    cluster: str = Field(default="DefaultCluster", min_length=1, description="Cluster that the broker belongs to.")
    store: str | None = Field(
        default=None,
        description="Database that keeps the messages: `mysql://…`, `postgresql://…` or `sqlite:///…`; "
        "without it, a log store in the data folder.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; `0.0.0.0` listens on all interfaces.")
    port: int = Field(default=10911, ge=0, le=65_535, description="Port to listen on; 0 chooses a free one.")
    advertised_host: str | None = Field(
        default=None, description="Address that clients connect to, if it is not the one to listen on."
    )
    name_servers: str = Field(default="", description="Name servers to register with: `host:port`, separated by `;`.")
    register_interval_ms: int = Field(default=30_000, ge=1, description="Interval of registrations.")
    name_server_timeout_ms: int = Field(default=6_000, ge=1, description="Timeout of a request to a name server.")

    auto_create_topics: bool = Field(default=True, description="Create an unknown topic on the first send.")
    auto_create_groups: bool = Field(default=True, description="Create an unknown consumer group on its first request.")
    topic_queues: int = Field(default=8, ge=1, le=65_536, description="Most queues of a topic that a send creates.")

    pull_messages_default: int = Field(
        default=32,
        ge=1,
        description="Most messages in one response to a pull of RocketMQ's clients, as in RocketMQ's brokers.",
    )
    pull_messages_max: int = Field(
        default=131_072, ge=1, description="Most messages in one response to a pull of Sparrow's clients and Spark."
    )
    pull_bytes_max: int = Field(
        default=8 * MIB,
        ge=1,
        le=15 * MIB,
        description="Most bytes in one response to a pull that asks for more than 256 KiB.",
    )
    long_polls_max: int = Field(default=200_000, ge=1, description="Concurrent long-polled pulls and pops.")
    long_poll_ms_max: int = Field(default=60_000, ge=0, description="Longest long poll, whatever the client asks for.")

    stage_bytes_max: int = Field(default=8 * GIB, ge=1, description="Most bytes in stages that are not committed yet.")
    stage_ttl_hours: float = Field(
        default=24, gt=0, description="Time after which a stage without a request is dropped."
    )

    client_timeout_ms: int = Field(
        default=120_000, ge=1, description="Time without a heartbeat after which a client is removed."
    )
    scan_interval_ms: int = Field(default=10_000, ge=1, description="Interval of the check for such clients.")
    delay_horizon_ms: int = Field(
        default=3 * 86_400_000, ge=1, description="Longest delay of a message with a delivery time."
    )
    transaction_timeout_ms: int = Field(
        default=6_000, ge=0, description="Age at which a half message is first checked back with its producer."
    )
    transaction_check_interval_ms: int = Field(default=30_000, ge=1, description="Interval of further check-backs.")
    transaction_checks_max: int = Field(
        default=15, ge=0, description="Check-backs after which a half message is given up."
    )
    transaction_scan_ms: int = Field(default=1_000, ge=1, description="Interval of the scan for half messages.")
    queue_lock_ms: int = Field(
        default=60_000, ge=1, description="Lease of a queue lock; consumers renew it while they consume in order."
    )
    auth: bool = Field(default=False, description="Accept only requests that are signed with a token.")
    admin_tokens: dict[str, SecretKey] = Field(
        default={}, description="Access keys that may make every request if `auth` is on, with their secret keys."
    )
    lane_starvation_ms: int = Field(
        default=30_000,
        ge=0,
        description="Waiting time after which a lane of lower priority gets a share of each pop; 0: never.",
    )
    net: NetSettings = NetSettings()


class LogSettings(_Section):
    """The log store."""

    OLD_NAMES = {
        "offsets_interval_ms": "offset_flush_interval_ms",
        "dead_letter_hours": "dead_letter_retention_hours",
        "ledger_keep_days": "ledger_retention_days",
        "retention_waits_for": "retention_group",
    }

    # -- fixed when a store is created: the store keeps them, and its values win over the settings -------------------
    segment_bytes: int = Field(default=GIB, ge=4 * KIB, le=GIB, description="Size of a commit-log file.")
    queue_file_entries: int = Field(default=300_000, ge=1, description="Entries in a consume-queue file.")
    index_slots: int = Field(default=5_000_000, ge=1, le=1 << 28, description="Hash slots in a key-index file.")
    index_entries: int = Field(default=20_000_000, ge=2, le=1 << 28, description="Entries in a key-index file.")

    message_bytes_max: int = Field(default=4 * MIB, ge=1, le=16 * MIB, description="Largest message body.")

    flush: FlushPolicy = Field(default="async", description="`sync`: acknowledge a send once it is on disk.")
    flush_interval_ms: int = Field(default=500, ge=1, description="Interval of flushes with `async`.")
    flush_timeout_ms: int = Field(default=5_000, ge=1, description="Longest wait for a flush with `sync`.")
    visible_after: VisibleAfter = Field(
        default="written", description="Consumers see a message once it is `written`, or once it is `durable`."
    )

    preallocate: bool = Field(
        default=False,
        description="Allocate commit-log files completely when they are created, instead of in steps as they fill.",
    )
    warm_bytes: int = Field(
        default=64 * MIB, ge=0, description="Bytes after the end of the log whose pages are pre-faulted."
    )
    lock_memory: bool = Field(default=False, description="Lock the pages near the end of the log in memory (mlock).")
    hot_bytes: int = Field(
        default=GIB,
        ge=0,
        description="Bytes before the end of the log that are read on the event loop, without a thread.",
    )

    checkpoint_interval_ms: int = Field(default=10_000, ge=1, description="Interval of checkpoints.")
    checkpoint_bytes: int = Field(default=256 * MIB, ge=1, description="New log bytes that cause an early checkpoint.")
    offset_flush_interval_ms: int = Field(
        default=1_000, ge=1, description="Interval at which committed offsets are written to the log."
    )

    retention_hours: float = Field(default=72, ge=0, description="Age at which messages are deleted.")
    dead_letter_retention_hours: float = Field(
        default=72, ge=0, description="Age at which dead letters become unreadable, if `retention_hours` is longer."
    )
    ledger_retention_days: float = Field(
        default=90, ge=0, description="Time without a commit after which a scope leaves the ledger of staged writes."
    )
    retention_group: str = Field(
        default="",
        description="Consumer group, such as that of an archive, whose unread messages are not deleted.",
    )
    retention_hour_of_day: int = Field(
        default=4, ge=0, le=23, description="Local hour in which old segments are deleted."
    )
    disk_clean_ratio: float = Field(
        default=0.75, gt=0, le=1, description="Disk usage above which old segments are deleted at any hour."
    )
    disk_force_ratio: float = Field(
        default=0.85, gt=0, le=1, description="Disk usage above which segments are deleted before their age."
    )
    disk_refuse_ratio: float = Field(default=0.90, gt=0, le=1, description="Disk usage above which sends are refused.")


class SqlSettings(_Section):
    """The SQL store."""

    OLD_NAMES = {"wait_ms": "database_wait_ms", "waits_for_groups": "retains_unread"}

    message_bytes_max: int = Field(default=4 * MIB, ge=1, le=16 * MIB - 1, description="Largest message body.")
    connections_max: int = Field(default=8, ge=2, le=1_000, description="Connections to the database.")
    database_wait_ms: int = Field(
        default=5_000, ge=0, description="Longest time that a send waits for an unreachable database."
    )
    lease_ms: int = Field(
        default=10_000, ge=500, description="Lease of the leading broker; after it, another broker takes over."
    )
    partition_rows: int = Field(default=1_000_000, ge=100, description="Messages in one partition of a table.")
    retention_hours: float = Field(default=168, ge=0, description="Age at which messages are deleted.")
    retains_unread: bool = Field(
        default=True, description="Keep messages that a group has not read, unless it is inactive for 30 days."
    )


class Settings(BaseSettings):
    """All sections: defaults < `sparrow.toml` < `SPARROW_*` (as in `SPARROW_BROKER__PORT`) < arguments."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",  # other programs may use variables with the same prefix
        env_prefix="SPARROW_",
        env_nested_delimiter="__",
        toml_file="sparrow.toml",
        nested_model_default_partial_update=True,
    )

    name_server: NameServerSettings = NameServerSettings()
    broker: BrokerSettings = BrokerSettings()
    log: LogSettings = LogSettings()
    sql: SqlSettings = SqlSettings()
    naming: dict[str, Any] = Field(default={}, description="Old name of the section `name_server`.", repr=False)

    @model_validator(mode="before")
    @classmethod
    def _accept_old_section(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("naming"):
            return given
        _warn_renamed("naming", "name_server")
        renamed = dict(given)
        renamed["name_server"] = _merge(renamed.get("name_server"), renamed.pop("naming"))
        return renamed

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, environment and `sparrow.toml`, the strongest source first."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def _merge(section: Any, changes: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = dict(section) if isinstance(section, dict) else {}
    for name, value in changes.items():
        merged[name] = _merge(merged.get(name), value) if isinstance(value, dict) else value
    return merged

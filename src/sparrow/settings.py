"""What can be set: each with a sentence, a unit in its name, and bounds. A room gets its own section by constructor."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

FlushPolicy = Literal["async", "sync"]
Watermark = Literal["written", "durable", "replicated"]


def _hidden(value: object) -> object:
    return SecretStr(value) if isinstance(value, str) else value


# Hidden before it is checked: what is wrong with a setting is said with its value.
SecretKey = Annotated[SecretStr, Field(min_length=8), BeforeValidator(_hidden)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NetSettings(_Section):
    """Connections to a server."""

    frame_bytes_max: int = Field(default=16 * MIB, ge=KIB, le=16 * MIB, description="Largest frame a peer may send.")
    idle_close_ms: int = Field(default=120_000, ge=1, description="A connection silent for so long is closed.")
    connections_max: int = Field(default=65_536, ge=1, description="Connections at a time.")
    stop_grace_ms: int = Field(default=5_000, ge=0, description="How long requests in hand may take when we stop.")


class NameServerSettings(_Section):
    """The name server."""

    host: str = Field(default="127.0.0.1", description="Where it listens; `0.0.0.0` is everywhere.")
    port: int = Field(default=9876, ge=0, le=65_535, description="Its port; 0 takes a free one.")
    broker_silence_ms: int = Field(default=120_000, ge=1, description="A broker silent for so long is dropped.")
    scan_interval_ms: int = Field(default=10_000, ge=1, description="How often silent brokers are looked for.")
    net: NetSettings = NetSettings()


class BrokerSettings(_Section):
    """The broker."""

    name: str = Field(default="sparrow", min_length=1, description="The broker's name in routes.")
    cluster: str = Field(default="DefaultCluster", min_length=1, description="The cluster it belongs to.")
    store: str | None = Field(
        default=None,
        description="Keep messages in a database: `mysql://…`, `postgresql://…` or `sqlite:///…`; else in a log store.",
    )
    host: str = Field(default="127.0.0.1", description="Where it listens; `0.0.0.0` is everywhere.")
    port: int = Field(default=10911, ge=0, le=65_535, description="Its port; 0 takes a free one.")
    advertised_host: str | None = Field(
        default=None, description="The address clients are told to connect to; by default the one it listens on."
    )
    name_servers: str = Field(default="", description="Where to register: `host:port`, several parted by `;`.")
    register_interval_ms: int = Field(default=30_000, ge=1, description="How often it registers.")
    name_server_timeout_ms: int = Field(default=6_000, ge=1, description="How long a name server may take to answer.")

    auto_create_topics: bool = Field(default=True, description="A send to an unknown topic creates it.")
    auto_create_groups: bool = Field(default=True, description="An unknown consumer group is created.")
    topic_queues: int = Field(default=8, ge=1, le=65_536, description="Queues of a topic created by a send, at most.")

    pull_messages_max: int = Field(default=131_072, ge=1, description="Messages in one answer, at most.")
    pull_bytes_max: int = Field(
        default=8 * MIB, ge=1, le=15 * MIB, description="Bytes in one answer for those who ask for more than 256 KiB."
    )
    held_pulls_max: int = Field(default=200_000, ge=1, description="Pulls that wait for messages at a time.")
    hold_ms_max: int = Field(default=60_000, ge=0, description="How long a pull may wait, whatever it asks for.")

    stage_bytes_max: int = Field(
        default=8 * GIB, ge=1, description="Bytes that wait in stages to be committed, at most."
    )
    stage_ttl_hours: float = Field(
        default=24, gt=0, description="A stage that is neither committed nor touched for so long is dropped."
    )

    client_silence_ms: int = Field(default=120_000, ge=1, description="A client silent for so long is dropped.")
    scan_interval_ms: int = Field(default=10_000, ge=1, description="How often silent clients are looked for.")
    delay_horizon_ms: int = Field(
        default=3 * 86_400_000, ge=1, description="The farthest delivery time a message may ask for."
    )
    transaction_timeout_ms: int = Field(
        default=6_000, ge=0, description="A transaction unfinished for so long is asked after."
    )
    transaction_check_interval_ms: int = Field(default=30_000, ge=1, description="How long until it is asked again.")
    transaction_checks_max: int = Field(default=15, ge=0, description="After so many questions it is given up.")
    transaction_scan_ms: int = Field(default=1_000, ge=1, description="How often unfinished ones are looked at.")
    lock_ms: int = Field(default=60_000, ge=1, description="How long a queue lock holds unless renewed.")
    auth: bool = Field(default=False, description="Requests must be signed with a token that may make them.")
    admin_tokens: dict[str, SecretKey] = Field(
        default={}, description="Names that may ask for everything when `auth` is on, each with its secret key."
    )
    starvation_ms: int = Field(
        default=30_000,
        ge=0,
        description="A lane of lower priority gets its share once it has waited so long; 0: never.",
    )
    net: NetSettings = NetSettings()


class LogSettings(_Section):
    """The log store."""

    # -- fixed for a store's life: kept in it, and what is kept wins over what is set --------------------------------
    segment_bytes: int = Field(default=GIB, ge=4 * KIB, le=GIB, description="Size of a commit-log file.")
    queue_file_entries: int = Field(default=300_000, ge=1, description="Entries in a consume-queue file.")
    index_slots: int = Field(default=5_000_000, ge=1, le=1 << 28, description="Hash slots in a key-index file.")
    index_entries: int = Field(default=20_000_000, ge=2, le=1 << 28, description="Entries in a key-index file.")

    message_bytes_max: int = Field(default=4 * MIB, ge=1, le=16 * MIB, description="Largest body.")

    flush: FlushPolicy = Field(default="async", description="`sync`: a send is acknowledged once it is on disk.")
    flush_interval_ms: int = Field(default=500, ge=1, description="How long an asynchronous flush may lag.")
    flush_timeout_ms: int = Field(default=5_000, ge=1, description="How long a synchronous flush may take.")
    visible_after: Watermark = Field(default="written", description="How safe a message must be before readers see it.")

    warm_bytes: int = Field(default=64 * MIB, ge=0, description="How far ahead of the tail pages are made ready.")
    lock_memory: bool = Field(default=False, description="Keep the pages near the tail from being swapped out (mlock).")
    hot_bytes: int = Field(default=GIB, ge=0, description="How far behind the tail reads are served on the event loop.")

    checkpoint_interval_ms: int = Field(default=10_000, ge=1, description="How often views are made durable.")
    checkpoint_bytes: int = Field(
        default=256 * MIB, ge=1, description="After how much new log they are, at the latest."
    )
    offsets_interval_ms: int = Field(default=1_000, ge=1, description="How often changed group offsets go to the log.")

    retention_hours: float = Field(default=72, ge=0, description="How long messages are kept.")
    dead_letter_hours: float = Field(
        default=72, ge=0, description="How long dead letters can be read; `retention_hours` deletes them all the same."
    )
    ledger_keep_days: float = Field(
        default=90, ge=0, description="How long the ledger remembers a scope that commits nothing."
    )
    retention_waits_for: str = Field(
        default="",
        description="A consumer group, such as that of an archive: what it has not read of its topics is kept.",
    )
    retention_hour_of_day: int = Field(
        default=4, ge=0, le=23, description="The local hour in which old segments are deleted."
    )
    disk_clean_ratio: float = Field(
        default=0.75, gt=0, le=1, description="Fuller than this, old segments go at any hour."
    )
    disk_force_ratio: float = Field(
        default=0.85, gt=0, le=1, description="Fuller than this, segments go before their time."
    )
    disk_refuse_ratio: float = Field(default=0.90, gt=0, le=1, description="Fuller than this, writes are refused.")


class SqlSettings(_Section):
    """The SQL store."""

    message_bytes_max: int = Field(default=4 * MIB, ge=1, le=16 * MIB - 1, description="Largest body.")
    connections_max: int = Field(default=8, ge=2, le=1_000, description="Connections to the database at a time.")
    wait_ms: int = Field(default=5_000, ge=0, description="How long a send waits for a database that is away.")
    lease_ms: int = Field(
        default=10_000, ge=500, description="After how long a broker that has gone silent is replaced by another."
    )
    partition_rows: int = Field(default=1_000_000, ge=100, description="Messages in one partition of a table.")
    retention_hours: float = Field(default=168, ge=0, description="How long messages are kept.")
    waits_for_groups: bool = Field(
        default=True, description="Keep what a group has not read yet, however old (groups silent for 30 days apart)."
    )


class Settings(BaseSettings):
    """All sections: defaults < `sparrow.toml` < `SPARROW_*` (as in `SPARROW_BROKER__PORT`) < what the caller says."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",  # other programs may have variables that start like ours
        env_prefix="SPARROW_",
        env_nested_delimiter="__",
        toml_file="sparrow.toml",
        nested_model_default_partial_update=True,
    )

    naming: NameServerSettings = NameServerSettings()
    broker: BrokerSettings = BrokerSettings()
    log: LogSettings = LogSettings()
    sql: SqlSettings = SqlSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

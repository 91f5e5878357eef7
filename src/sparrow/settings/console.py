"""Settings of the console."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparrow.settings.section import ListenerTls, SecretKey, Section

ConsoleRole = Literal["viewer", "operator", "admin"]
"""What a token of the console may do: see, also change, also delete and manage tokens."""


class ConsoleToken(Section):
    """A token of the console."""

    role: ConsoleRole = Field(default="viewer", description="What the token may do.")
    secret_key: SecretKey = Field(description="What its owner logs in with, or sends as a bearer token.")


class ConsoleMask(Section):
    """What the console hides of messages from roles below admin. Patterns are as in a shell: `card*`, `*secret*`."""

    topics: list[str] = Field(
        default=["*"], description="Patterns of topics, and of names of events of the bus, for which the rule holds."
    )
    body: bool = Field(default=False, description="Hide the whole body.")
    fields: list[str] = Field(
        default=[], description="Patterns of members of JSON bodies whose values are hidden, at any depth."
    )
    properties: list[str] = Field(
        default=[], description="Patterns of properties whose values are hidden; KEYS and TAGS are some."
    )


class ConsoleSettings(ListenerTls):
    """The console: REST API and web pages."""

    enabled: bool = Field(default=True, description="Serve it together with `sparrow up`.")
    host: str = Field(default="127.0.0.1", description="Address to listen on; other than loopback needs `auth`.")
    port: int = Field(default=8765, ge=0, le=65_535, description="Port to listen on; 0 chooses a free one.")
    clusters: dict[str, str] = Field(
        default={},
        description="Clusters that it serves: a name and its name servers, `host:port` separated by `;`. The first "
        "one is the default.",
    )
    auth: bool = Field(default=False, description="Accept only requests with a token of `tokens`.")
    tokens: dict[str, ConsoleToken] = Field(default={}, description="Tokens by the name of their owner.")
    allow_without_auth: bool = Field(
        default=False, description="Listen on other addresses than loopback although `auth` is off."
    )
    hosts: list[str] = Field(
        default=[], description="Host names that browsers may use, besides the address and localhost."
    )
    session_hours: float = Field(default=12, gt=0, description="Time after which a log-in expires.")
    sessions_max: int = Field(default=10_000, ge=1, description="Log-ins at the same time; the oldest one ends first.")
    sample_interval_ms: int = Field(default=10_000, ge=100, description="Interval of samples of rates and lag.")
    sample_count: int = Field(default=360, ge=2, le=100_000, description="Samples that are kept for charts.")
    streams_max: int = Field(default=100, ge=1, description="Event streams at the same time.")
    bus_database: str | None = Field(
        default=None,
        description="Database with the tables of an event bus: `mysql://…`, `postgresql://…`, `sqlite:///…`.",
    )
    pipelines_folder: str | None = Field(
        default=None,
        description="Folder of pipeline files (`.toml`) that it shows, starts and stops; `sparrow up` uses `pipelines` "
        "in its data directory. The state of pipelines is in its subfolder `status`.",
    )
    export: bool = Field(default=True, description="Let roles below admin download bodies and lists of messages.")
    masks: list[ConsoleMask] = Field(
        default=[], description="What roles below admin do not see of messages: a list of rules `[[console.masks]]`."
    )
    audit_topic: str = Field(
        default="sparrow_audit", description="Topic that gets a line for every change; empty: only the log gets it."
    )

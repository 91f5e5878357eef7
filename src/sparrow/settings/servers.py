"""Settings of servers: connections, the name server, and the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, model_validator

from sparrow.settings.section import GIB, KIB, MIB, ListenerTls, SecretKey, Section


class NetSettings(ListenerTls):
    """Connections to a server."""

    OLD_NAMES: ClassVar[Mapping[str, str]] = {"idle_close_ms": "idle_timeout_ms"}

    frame_bytes_max: int = Field(default=16 * MIB, ge=KIB, le=16 * MIB, description="Largest frame that is accepted.")
    header_bytes_max: int = Field(
        default=128 * KIB,
        ge=KIB,
        le=16 * MIB,
        description="Largest header of a request that is accepted; a larger one closes the connection.",
    )
    incomplete_bytes_max: int = Field(
        default=256 * MIB,
        ge=16 * MIB,
        description="Bytes of incomplete frames of all connections; above, the largest connection of the address with "
        "the most is closed.",
    )
    request_bytes_max: int = Field(
        default=512 * MIB,
        ge=64 * MIB,
        description="Bytes of requests in progress of all connections; an address that would hold more of them than "
        "are free is answered with busy.",
    )
    connection_request_bytes_max: int = Field(
        default=32 * MIB,
        ge=0,
        description="Bytes of requests in progress of a connection above which it is not read from.",
    )
    unsent_bytes_max: int = Field(
        default=512 * MIB,
        ge=MIB,
        description="Bytes of responses that peers have not read; above, the largest connection of the address with "
        "the most is closed.",
    )
    connection_unsent_bytes_max: int = Field(
        default=4 * MIB,
        ge=64 * KIB,
        description="Bytes of responses that the peer of a connection has not read above which it is not read from.",
    )
    token_bytes_max: int = Field(
        default=256 * MIB,
        ge=64 * MIB,
        description="Bytes of requests in progress and of unsent responses of all connections with one access key, if "
        "requests are signed; above, requests are answered with busy.",
    )
    frame_timeout_ms: int = Field(
        default=60_000, ge=1, description="Time after which a connection with an incomplete frame is closed."
    )
    idle_timeout_ms: int = Field(default=120_000, ge=1, description="Time after which an idle connection is closed.")
    connections_max: int = Field(default=65_536, ge=1, description="Concurrent connections.")
    loop_hold_ms: int = Field(
        default=50,
        ge=1,
        description="Time above which a request that holds the event loop is counted, and logged with its peer.",
    )
    stop_grace_ms: int = Field(
        default=5_000, ge=0, description="Time that requests in progress get to finish when the server stops."
    )
    tls_required: bool = Field(
        default=True, description="Refuse connections without TLS; `false` accepts both on the same port."
    )
    tls_authorities: str | None = Field(
        default=None,
        description="File with the authorities of name servers and other brokers; connections to them then use TLS.",
    )


class NameServerSettings(Section):
    """The name server."""

    OLD_NAMES: ClassVar[Mapping[str, str]] = {"broker_silence_ms": "broker_timeout_ms"}

    host: str = Field(default="127.0.0.1", description="Address to listen on; `0.0.0.0` listens on all interfaces.")
    port: int = Field(default=9876, ge=0, le=65_535, description="Port to listen on; 0 chooses a free one.")
    broker_timeout_ms: int = Field(
        default=120_000, ge=1, description="Time without a heartbeat after which a broker is removed from the routes."
    )
    scan_interval_ms: int = Field(default=10_000, ge=1, description="Interval of the check for such brokers.")
    auth: bool = Field(
        default=False,
        description="Accept registrations and other changes only if they are signed with an admin token; routes can be "
        "read without.",
    )
    auth_requires_challenge: bool = Field(
        default=False,
        description="Accept only signatures that are valid once and on one connection; RocketMQ's parts cannot make "
        "them.",
    )
    admin_tokens: dict[str, SecretKey] = Field(
        default={}, description="Access keys of brokers and administrators, with their secret keys, if `auth` is on."
    )
    net: NetSettings = NetSettings()

    @model_validator(mode="after")
    def _refuse_auth_without_tokens(self) -> NameServerSettings:
        if self.auth and not self.admin_tokens:
            raise ValueError("auth needs admin_tokens: without one, no broker could register")
        return self


class BrokerSettings(Section):
    """The broker."""

    OLD_NAMES: ClassVar[Mapping[str, str]] = {
        "held_pulls_max": "long_polls_max",
        "hold_ms_max": "long_poll_ms_max",
        "client_silence_ms": "client_timeout_ms",
        "lock_ms": "queue_lock_ms",
        "starvation_ms": "lane_starvation_ms",
    }

    name: str = Field(
        default="sparrow",
        pattern=r"^[%|a-zA-Z0-9_.@-]+$",
        max_length=127,
        description="Name of the broker in routes; `room@name` says in which machine room it is.",
    )
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
    topics_max: int = Field(
        default=50_000,
        ge=1,
        description="Most topics; more are refused. Retry and dead-letter topics may take as many places again.",
    )
    topic_queues_max: int = Field(default=65_536, ge=1, le=65_536, description="Most queues of a topic.")
    groups_max: int = Field(default=50_000, ge=1, description="Most consumer groups; more are refused.")

    batch_messages_max: int = Field(
        default=10_000,
        ge=1,
        description="Most messages in one batch send; larger batches are refused.",
    )
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
    client_groups_max: int = Field(
        default=2_000, ge=1, description="Most producer and consumer groups of one client; more are refused."
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
    auth_requires_challenge: bool = Field(
        default=False,
        description="Accept only signatures that are valid once and on one connection; official clients of RocketMQ "
        "cannot make them.",
    )
    admin_tokens: dict[str, SecretKey] = Field(
        default={}, description="Access keys that may make every request if `auth` is on, with their secret keys."
    )
    lane_starvation_ms: int = Field(
        default=30_000,
        ge=0,
        description="Waiting time after which a lane of lower priority gets a share of each pop; 0: never.",
    )
    net: NetSettings = NetSettings()

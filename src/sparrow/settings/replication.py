"""Settings of replicas, and of a broker that follows a RocketMQ master."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from sparrow.settings.section import HiddenText, Section

ReplicationPolicy = Literal["quorum", "sync", "async"]
BrokerRole = Literal["replica", "async-master", "sync-master", "slave"]


class ReplicationSettings(Section):
    """Replica sets, and masters with slaves, of the log store."""

    role: BrokerRole = Field(
        default="replica",
        description="`replica`: of a set whose leader etcd elects, if `etcd` is set. `async-master`, `sync-master` and "
        "`slave` are RocketMQ's fixed roles, without etcd and without election.",
    )
    broker_id: int = Field(
        default=0, ge=0, le=64, description="Id of a broker with a fixed role: 0 for a master, from 1 on for a slave."
    )
    master: str = Field(
        default="", description="Address of a slave's master, `host:port`; without it, the name server tells."
    )
    policy: ReplicationPolicy = Field(
        default="quorum",
        description="When a replica set acknowledges a send: `quorum`, once every in-sync replica has it; `sync`, once "
        "one follower has it; `async`, once the leader has it.",
    )
    acknowledge_timeout_ms: int = Field(
        default=2_500,
        ge=1,
        description="Longest wait for replicas; then the sender gets FLUSH_SLAVE_TIMEOUT. Producers give up after 3 s.",
    )
    slave_read_enable: bool = Field(
        default=True, description="Advise consumers to pull from a follower while the leader is busy or they lag far."
    )
    memory_read_ratio: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="Part of the machine's memory: a consumer further behind the end of the log is advised to pull "
        "from a follower (RocketMQ's accessMessageInMemoryMaxRatio).",
    )
    leader_busy_delay_ms: float = Field(
        default=50,
        ge=0,
        description="Mean delay of the leader's event loop above which consumers are advised to pull from followers; "
        "0: never.",
    )

    etcd: str = Field(
        default="",
        description="Endpoints of etcd, separated by `;`, such as `http://etcd-1:2379`. With it, the broker is a "
        "replica of the set that has its name.",
    )
    etcd_ca: str = Field(
        default="", description="File with the certificates of the authority that signed etcd's, for https endpoints."
    )
    etcd_cert: str = Field(default="", description="File with the certificate that this process shows to etcd.")
    etcd_key: str = Field(default="", description="File with the private key of `etcd_cert`.")
    etcd_user: str = Field(default="", description="Account in etcd, if its authentication is on.")
    etcd_password: SecretStr | None = Field(
        default=None,
        description="Password of `etcd_user`; set it as SPARROW_REPLICATION__ETCD_PASSWORD, or use a file.",
    )
    etcd_password_file: str = Field(default="", description="File with the password of `etcd_user`.")
    replica_id: int = Field(
        default=0, ge=0, le=64, description="Number of this replica in its set, from 1 on; it never changes."
    )
    lease_s: int = Field(
        default=2, ge=1, le=60, description="Lease of the leader; after it, another replica takes over."
    )
    lag_ms: int = Field(
        default=1_000, ge=100, description="Time after which a replica that has not caught up leaves the in-sync set."
    )


class FollowSettings(Section):
    """Following a live RocketMQ master, until this broker is promoted in its place."""

    rocketmq: str = Field(
        default="", description="Address `host:port` of the master to follow; with it, the broker serves no clients."
    )
    rocketmq_ha: str = Field(
        default="", description="Address of the master's HA port; by default the port that the master tells."
    )
    access_key: str = Field(default="", description="Account of the master's administrator, if it checks accounts.")
    secret_key: HiddenText = Field(default=SecretStr(""), description="Secret key of that account.")

"""What brokers and clients ask a name server."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long


class GetRoute(Header, frozen=True):
    topic: str
    standard_json_only: Flag = msgspec.field(default=False, name="acceptStandardJsonOnly")


class RegisterBroker(Header, frozen=True):
    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster: str = msgspec.field(name="clusterName")
    ha_address: str = msgspec.field(name="haServerAddr")
    broker_id: Long
    """0 is the master."""
    heartbeat_timeout_ms: Long | None = msgspec.field(default=None, name="heartbeatTimeoutMillis")
    acting_master: Flag | None = msgspec.field(default=None, name="enableActingMaster")
    is_compressed: Flag = msgspec.field(default=False, name="compressed")
    body_crc: Int = msgspec.field(default=0, name="bodyCrc32")
    """0: not given. Else `body_crc` of the body as sent."""
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class BrokerRegistered(Header, frozen=True):
    ha_address: str | None = msgspec.field(default=None, name="haServerAddr")
    master_address: str | None = msgspec.field(default=None, name="masterAddr")
    """For slaves: where their master is."""


class UnregisterBroker(Header, frozen=True):
    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster: str = msgspec.field(name="clusterName")
    broker_id: Long


class QueryDataVersion(Header, frozen=True):
    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster: str = msgspec.field(name="clusterName")
    broker_id: Long


class DataVersionCompared(Header, frozen=True):
    changed: Flag


class BrokerHeartbeat(Header, frozen=True):
    cluster: str = msgspec.field(name="clusterName")
    broker_address: str = msgspec.field(name="brokerAddr")
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_ms: Long | None = msgspec.field(default=None, name="heartbeatTimeoutMills")
    election_priority: Int | None = None


class TopicsOfCluster(Header, frozen=True):
    cluster: str


class PutKv(Header, frozen=True):
    namespace: str
    key: str
    value: str


class AskKv(Header, frozen=True):
    namespace: str
    key: str


class KvFound(Header, frozen=True):
    value: str | None = None


class ListKv(Header, frozen=True):
    namespace: str


class BrokerNamed(Header, frozen=True):
    broker_name: str


class WritesForbidden(Header, frozen=True):
    topics: Int = msgspec.field(name="wipeTopicCount")


class WritesAllowed(Header, frozen=True):
    topics: Int = msgspec.field(name="addTopicCount")


class AskBrokerGroup(Header, frozen=True):
    cluster: str = msgspec.field(name="clusterName")
    broker_name: str


REQUESTS: dict[Code, type[Header]] = {
    Code.GET_ROUTEINFO_BY_TOPIC: GetRoute,
    Code.REGISTER_BROKER: RegisterBroker,
    Code.UNREGISTER_BROKER: UnregisterBroker,
    Code.QUERY_DATA_VERSION: QueryDataVersion,
    Code.BROKER_HEARTBEAT: BrokerHeartbeat,
    Code.GET_TOPICS_BY_CLUSTER: TopicsOfCluster,
    Code.PUT_KV_CONFIG: PutKv,
    Code.GET_KV_CONFIG: AskKv,
    Code.DELETE_KV_CONFIG: AskKv,
    Code.GET_KVLIST_BY_NAMESPACE: ListKv,
    Code.WIPE_WRITE_PERM_OF_BROKER: BrokerNamed,
    Code.ADD_WRITE_PERM_OF_BROKER: BrokerNamed,
    Code.GET_BROKER_MEMBER_GROUP: AskBrokerGroup,
}
RESPONSES: dict[Code, type[Header]] = {
    Code.REGISTER_BROKER: BrokerRegistered,
    Code.QUERY_DATA_VERSION: DataVersionCompared,
    Code.GET_KV_CONFIG: KvFound,
    Code.WIPE_WRITE_PERM_OF_BROKER: WritesForbidden,
    Code.ADD_WRITE_PERM_OF_BROKER: WritesAllowed,
}

"""Headers of requests to a name server."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class GetRoute(Header, frozen=True):
    topic: str
    standard_json_only: JavaBool = msgspec.field(default=False, name="acceptStandardJsonOnly")


class RegisterBroker(Header, frozen=True):
    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster: str = msgspec.field(name="clusterName")
    ha_address: str = msgspec.field(name="haServerAddr")
    broker_id: JavaLong
    """0 is the master."""
    heartbeat_timeout_ms: JavaLong | None = msgspec.field(default=None, name="heartbeatTimeoutMillis")
    acting_master: JavaBool | None = msgspec.field(default=None, name="enableActingMaster")
    is_compressed: JavaBool = msgspec.field(default=False, name="compressed")
    body_crc: JavaInt = msgspec.field(default=0, name="bodyCrc32")
    """The `body_crc` of the body as sent; 0: not given."""
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class RegisterBrokerResponse(Header, frozen=True):
    ha_address: str | None = msgspec.field(default=None, name="haServerAddr")
    master_address: str | None = msgspec.field(default=None, name="masterAddr")
    """The address of the master, for slaves."""


class UnregisterBroker(Header, frozen=True):
    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster: str = msgspec.field(name="clusterName")
    broker_id: JavaLong


class QueryDataVersion(Header, frozen=True):
    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster: str = msgspec.field(name="clusterName")
    broker_id: JavaLong


class QueryDataVersionResponse(Header, frozen=True):
    changed: JavaBool


class BrokerHeartbeat(Header, frozen=True):
    cluster: str = msgspec.field(name="clusterName")
    broker_address: str = msgspec.field(name="brokerAddr")
    broker_name: str
    broker_id: JavaLong | None = None
    epoch: JavaInt | None = None
    max_offset: JavaLong | None = None
    confirm_offset: JavaLong | None = None
    heartbeat_timeout_ms: JavaLong | None = msgspec.field(default=None, name="heartbeatTimeoutMills")
    election_priority: JavaInt | None = None


class GetClusterTopics(Header, frozen=True):
    cluster: str


class PutKv(Header, frozen=True):
    namespace: str
    key: str
    value: str


class KvEntryRequest(Header, frozen=True):
    namespace: str
    key: str


class GetKvResponse(Header, frozen=True):
    value: str | None = None


class ListKv(Header, frozen=True):
    namespace: str


class ChangeWritePermission(Header, frozen=True):
    broker_name: str


class WipeWritePermissionResponse(Header, frozen=True):
    topics: JavaInt = msgspec.field(name="wipeTopicCount")


class AddWritePermissionResponse(Header, frozen=True):
    topics: JavaInt = msgspec.field(name="addTopicCount")


class GetBrokerMembers(Header, frozen=True):
    cluster: str = msgspec.field(name="clusterName")
    broker_name: str


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRoute,
    RequestCode.REGISTER_BROKER: RegisterBroker,
    RequestCode.UNREGISTER_BROKER: UnregisterBroker,
    RequestCode.QUERY_DATA_VERSION: QueryDataVersion,
    RequestCode.BROKER_HEARTBEAT: BrokerHeartbeat,
    RequestCode.GET_TOPICS_BY_CLUSTER: GetClusterTopics,
    RequestCode.PUT_KV_CONFIG: PutKv,
    RequestCode.GET_KV_CONFIG: KvEntryRequest,
    RequestCode.DELETE_KV_CONFIG: KvEntryRequest,
    RequestCode.GET_KVLIST_BY_NAMESPACE: ListKv,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ChangeWritePermission,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ChangeWritePermission,
    RequestCode.GET_BROKER_MEMBER_GROUP: GetBrokerMembers,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.REGISTER_BROKER: RegisterBrokerResponse,
    RequestCode.QUERY_DATA_VERSION: QueryDataVersionResponse,
    RequestCode.GET_KV_CONFIG: GetKvResponse,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermissionResponse,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: AddWritePermissionResponse,
}

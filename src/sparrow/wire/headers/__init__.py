"""Typed headers of requests and responses. RocketMQ's camelCase field names are aliases here and nowhere else."""

from __future__ import annotations

from sparrow.wire.headers import (
    acl,
    admin,
    groups,
    nameserver,
    offsets,
    pop,
    pull,
    query,
    replication,
    resend,
    send,
    staging,
    topics,
    transactions,
)
from sparrow.wire.headers.acl import AclRequest, DeleteAcl, ListAcls, ListUsers, UserRequest
from sparrow.wire.headers.admin import (
    CloneGroupOffsets,
    GetBrokerConfigResponse,
    GetBrokerConsumeStats,
    GetBrokerStats,
    GetConsumerConnections,
    GetConsumeStats,
    GetConsumeTimeSpans,
    GetCorrectedOffsets,
    GetGroupSubscription,
    GetGroupTopics,
    GetProducerConnections,
)
from sparrow.wire.headers.codec import Header, read, write
from sparrow.wire.headers.groups import (
    ConsumeMessageDirectly,
    DeleteGroup,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    GetGroupConfig,
    Heartbeat,
    HeartbeatResponse,
    ListConsumers,
    ListGroups,
    ListGroupsResponse,
    NotifyConsumersChanged,
    ResetOffset,
    UnregisterClient,
    UpdateGroupForbidden,
)
from sparrow.wire.headers.nameserver import (
    AddWritePermissionResponse,
    BrokerHeartbeat,
    ChangeWritePermission,
    GetBrokerMembers,
    GetClusterTopics,
    GetKvResponse,
    GetRoute,
    KvEntryRequest,
    ListKv,
    PutKv,
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    UnregisterBroker,
    WipeWritePermissionResponse,
)
from sparrow.wire.headers.offsets import (
    CommitOffset,
    OffsetResponse,
    QueryOffset,
    QueueRequest,
    SearchOffset,
    StoreTimeResponse,
)
from sparrow.wire.headers.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    GetPollingCount,
    GetPollingCountResponse,
    NotificationRequest,
    NotificationResponse,
    PeekMessage,
    PopMessage,
    PopMessageResponse,
)
from sparrow.wire.headers.pull import (
    PullMessage,
    PullMessageResponse,
)
from sparrow.wire.headers.query import (
    QueryConsumeQueue,
    QueryMessage,
    QueryMessageResponse,
    ViewMessage,
)
from sparrow.wire.headers.replication import (
    AcknowledgeFlush,
    AnnounceSlave,
    AnnounceSlaveResponse,
    ChecksumLog,
    ChecksumViews,
    FetchAnswerKind,
    FetchLog,
    FetchLogResponse,
    LeaveInSyncSet,
    PromoteFollower,
    QueryReplica,
    ReplicaView,
    TransferLeadership,
)
from sparrow.wire.headers.resend import (
    ResendMessages,
    ResendMessagesResponse,
)
from sparrow.wire.headers.send import (
    PushReply,
    RecallMessage,
    RecallMessageResponse,
    RecallRefusal,
    SendMessage,
    SendMessageBack,
    SendMessageResponse,
    SendMessageV2,
)
from sparrow.wire.headers.staging import (
    AppendOnce,
    CommitStages,
    CommitStagesResponse,
    QueryLedger,
    QueryLedgerResponse,
    SealStage,
    SealStageResponse,
    StageRecords,
)
from sparrow.wire.headers.topics import (
    DeleteTopic,
    ListTopics,
    ListTopicsResponse,
    TopicRequest,
    UpdateTopic,
)
from sparrow.wire.headers.transactions import (
    CheckTransaction,
    EndTransaction,
    EndTransactionResponse,
    ResumeTransactionCheck,
)


class EmptyHeader(Header, frozen=True):
    """A header without fields: of a request or a response that consists of its code."""


_CAPABILITIES = (
    acl,
    admin,
    groups,
    nameserver,
    offsets,
    pop,
    pull,
    query,
    replication,
    resend,
    send,
    staging,
    topics,
    transactions,
)

REQUEST_HEADERS: dict[int, type[Header]] = {
    code: kind for part in _CAPABILITIES for code, kind in part.REQUEST_HEADERS.items()
}
RESPONSE_HEADERS: dict[int, type[Header]] = {
    code: kind for part in _CAPABILITIES for code, kind in part.RESPONSE_HEADERS.items()
}


def request_header_type(code: int) -> type[Header]:
    """Return the header class of a request code; `EmptyHeader` if it has no fields."""
    return REQUEST_HEADERS.get(code, EmptyHeader)


def response_header_type(code: int) -> type[Header]:
    """Return the header class of the successful response to a request code; `EmptyHeader` if it has no fields."""
    return RESPONSE_HEADERS.get(code, EmptyHeader)


__all__ = [
    "REQUEST_HEADERS",
    "RESPONSE_HEADERS",
    "AckMessage",
    "AcknowledgeFlush",
    "AclRequest",
    "AddWritePermissionResponse",
    "AnnounceSlave",
    "AnnounceSlaveResponse",
    "AppendOnce",
    "BatchAckMessage",
    "BrokerHeartbeat",
    "ChangeInvisibleTime",
    "ChangeInvisibleTimeResponse",
    "ChangeWritePermission",
    "CheckTransaction",
    "ChecksumLog",
    "ChecksumViews",
    "CloneGroupOffsets",
    "CommitOffset",
    "CommitStages",
    "CommitStagesResponse",
    "ConsumeMessageDirectly",
    "DeleteAcl",
    "DeleteGroup",
    "DeleteTopic",
    "EmptyHeader",
    "EndTransaction",
    "EndTransactionResponse",
    "FetchAnswerKind",
    "FetchLog",
    "FetchLogResponse",
    "GetBrokerConfigResponse",
    "GetBrokerConsumeStats",
    "GetBrokerMembers",
    "GetBrokerStats",
    "GetClusterTopics",
    "GetConsumeStats",
    "GetConsumeTimeSpans",
    "GetConsumerConnections",
    "GetConsumerRunningInfo",
    "GetConsumerStatus",
    "GetCorrectedOffsets",
    "GetGroupConfig",
    "GetGroupSubscription",
    "GetGroupTopics",
    "GetKvResponse",
    "GetPollingCount",
    "GetPollingCountResponse",
    "GetProducerConnections",
    "GetRoute",
    "Header",
    "Heartbeat",
    "HeartbeatResponse",
    "KvEntryRequest",
    "LeaveInSyncSet",
    "ListAcls",
    "ListConsumers",
    "ListGroups",
    "ListGroupsResponse",
    "ListKv",
    "ListTopics",
    "ListTopicsResponse",
    "ListUsers",
    "NotificationRequest",
    "NotificationResponse",
    "NotifyConsumersChanged",
    "OffsetResponse",
    "PeekMessage",
    "PopMessage",
    "PopMessageResponse",
    "PromoteFollower",
    "PullMessage",
    "PullMessageResponse",
    "PushReply",
    "PutKv",
    "QueryConsumeQueue",
    "QueryDataVersion",
    "QueryDataVersionResponse",
    "QueryLedger",
    "QueryLedgerResponse",
    "QueryMessage",
    "QueryMessageResponse",
    "QueryOffset",
    "QueryReplica",
    "QueueRequest",
    "RecallMessage",
    "RecallMessageResponse",
    "RecallRefusal",
    "RegisterBroker",
    "RegisterBrokerResponse",
    "ReplicaView",
    "ResendMessages",
    "ResendMessagesResponse",
    "ResetOffset",
    "ResumeTransactionCheck",
    "SealStage",
    "SealStageResponse",
    "SearchOffset",
    "SendMessage",
    "SendMessageBack",
    "SendMessageResponse",
    "SendMessageV2",
    "StageRecords",
    "StoreTimeResponse",
    "TopicRequest",
    "TransferLeadership",
    "UnregisterBroker",
    "UnregisterClient",
    "UpdateGroupForbidden",
    "UpdateTopic",
    "UserRequest",
    "ViewMessage",
    "WipeWritePermissionResponse",
    "read",
    "request_header_type",
    "response_header_type",
    "write",
]

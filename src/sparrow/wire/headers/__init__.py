"""Typed headers of requests and responses. RocketMQ's names live here as aliases and nowhere else."""

from __future__ import annotations

from sparrow.wire.headers import (
    admin,
    groups,
    nameserver,
    offsets,
    pop,
    pull,
    query,
    resend,
    send,
    staging,
    topics,
    transactions,
)
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
from sparrow.wire.headers.resend import (
    ResendMessages,
    ResendMessagesResponse,
)
from sparrow.wire.headers.send import (
    PushReply,
    RecallMessage,
    RecallMessageResponse,
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
    ResumeTransactionCheck,
)


class EmptyHeader(Header, frozen=True):
    """Nothing to say: of a request without fields, or of an answer that is only its code."""


_CAPABILITIES = (admin, groups, nameserver, offsets, pop, pull, query, resend, send, staging, topics, transactions)

REQUESTS: dict[int, type[Header]] = {code: kind for part in _CAPABILITIES for code, kind in part.REQUESTS.items()}
RESPONSES: dict[int, type[Header]] = {code: kind for part in _CAPABILITIES for code, kind in part.RESPONSES.items()}


def request_header_type(code: int) -> type[Header]:
    """How the ext fields of such a request are typed; `EmptyHeader` when it has none."""
    return REQUESTS.get(code, EmptyHeader)


def response_header_type(code: int) -> type[Header]:
    """How the ext fields of a successful answer to such a request are typed; `EmptyHeader` when it has none."""
    return RESPONSES.get(code, EmptyHeader)


__all__ = [
    "REQUESTS",
    "RESPONSES",
    "AckMessage",
    "AppendOnce",
    "GetBrokerMembers",
    "GetGroupConfig",
    "KvEntryRequest",
    "QueueRequest",
    "TopicRequest",
    "BatchAckMessage",
    "GetBrokerConfigResponse",
    "GetBrokerConsumeStats",
    "BrokerHeartbeat",
    "ChangeWritePermission",
    "RegisterBrokerResponse",
    "GetBrokerStats",
    "ChangeInvisibleTime",
    "CheckTransaction",
    "CloneGroupOffsets",
    "CommitOffset",
    "CommitStages",
    "CommitStagesResponse",
    "ConsumeMessageDirectly",
    "GetConsumeStats",
    "GetConsumeTimeSpans",
    "GetConsumerConnections",
    "GetConsumerRunningInfo",
    "GetConsumerStatus",
    "NotifyConsumersChanged",
    "GetCorrectedOffsets",
    "QueryDataVersionResponse",
    "DeleteGroup",
    "DeleteTopic",
    "EmptyHeader",
    "EndTransaction",
    "UpdateGroupForbidden",
    "GetRoute",
    "ListGroupsResponse",
    "Header",
    "Heartbeat",
    "HeartbeatResponse",
    "ChangeInvisibleTimeResponse",
    "GetKvResponse",
    "QueryLedgerResponse",
    "ListConsumers",
    "ListGroups",
    "ListKv",
    "ListTopics",
    "QueryMessageResponse",
    "ResendMessagesResponse",
    "NotificationRequest",
    "NotificationResponse",
    "OffsetResponse",
    "PeekMessage",
    "GetPollingCount",
    "GetPollingCountResponse",
    "PopMessage",
    "PopMessageResponse",
    "GetProducerConnections",
    "PullMessage",
    "PullMessageResponse",
    "PushReply",
    "PutKv",
    "QueryConsumeQueue",
    "QueryDataVersion",
    "QueryLedger",
    "QueryMessage",
    "QueryOffset",
    "RecallMessage",
    "RecallMessageResponse",
    "RegisterBroker",
    "ResendMessages",
    "ResetOffset",
    "ResumeTransactionCheck",
    "SealStage",
    "SearchOffset",
    "SendMessageBack",
    "SendMessage",
    "SendMessageV2",
    "SendMessageResponse",
    "StageRecords",
    "SealStageResponse",
    "StoreTimeResponse",
    "GetGroupSubscription",
    "ListTopicsResponse",
    "GetClusterTopics",
    "GetGroupTopics",
    "UnregisterBroker",
    "UnregisterClient",
    "UpdateTopic",
    "ViewMessage",
    "AddWritePermissionResponse",
    "WipeWritePermissionResponse",
    "read",
    "request_header_type",
    "response_header_type",
    "write",
]

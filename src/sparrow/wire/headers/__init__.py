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
    BrokerConfig,
    BrokerConsumeStats,
    BrokerStats,
    CloneOffsets,
    ConsumerConnections,
    ConsumeStats,
    ConsumeTimeSpan,
    CorrectOffsets,
    ProducerConnections,
    SubscriptionOfGroup,
    TopicsOfGroup,
)
from sparrow.wire.headers.codec import Header, read, write
from sparrow.wire.headers.groups import (
    AskGroup,
    ConsumeDirectly,
    ConsumerRunning,
    ConsumersChanged,
    ConsumerStatus,
    DeleteGroup,
    ForbidGroup,
    GroupsListed,
    Heartbeat,
    HeartbeatSeen,
    ListConsumers,
    ListGroups,
    ResetOffset,
    UnregisterClient,
)
from sparrow.wire.headers.nameserver import (
    AskBrokerGroup,
    AskKv,
    BrokerHeartbeat,
    BrokerNamed,
    BrokerRegistered,
    DataVersionCompared,
    GetRoute,
    KvFound,
    ListKv,
    PutKv,
    QueryDataVersion,
    RegisterBroker,
    TopicsOfCluster,
    UnregisterBroker,
    WritesAllowed,
    WritesForbidden,
)
from sparrow.wire.headers.offsets import (
    AskQueue,
    CommitOffset,
    OffsetFound,
    QueryOffset,
    SearchOffset,
    StoreTimeFound,
)
from sparrow.wire.headers.pop import (
    AckMessage,
    BatchAck,
    ChangeInvisible,
    InvisibleChanged,
    Notification,
    Notified,
    PeekMessage,
    PollingAsked,
    PollingCounted,
    PopMessage,
    Popped,
)
from sparrow.wire.headers.pull import (
    Pulled,
    PullMessage,
)
from sparrow.wire.headers.query import (
    MessagesFound,
    QueryConsumeQueue,
    QueryMessage,
    ViewMessage,
)
from sparrow.wire.headers.resend import (
    MessagesResent,
    ResendMessages,
)
from sparrow.wire.headers.send import (
    PushReply,
    Recall,
    Recalled,
    SendBack,
    SendMessage,
    SendMessageV2,
    Sent,
)
from sparrow.wire.headers.staging import (
    AppendOnce,
    CommitStages,
    Committed,
    LedgerFound,
    QueryLedger,
    SealStage,
    StageRecords,
    StageSealed,
)
from sparrow.wire.headers.topics import (
    AskTopic,
    DeleteTopic,
    ListTopics,
    TopicsListed,
    UpdateTopic,
)
from sparrow.wire.headers.transactions import (
    CheckTransaction,
    EndTransaction,
    ResumeCheck,
)


class Done(Header, frozen=True):
    """Nothing to say: of a request without fields, or of an answer that is only its code."""


_CAPABILITIES = (admin, groups, nameserver, offsets, pop, pull, query, resend, send, staging, topics, transactions)

REQUESTS: dict[int, type[Header]] = {code: kind for part in _CAPABILITIES for code, kind in part.REQUESTS.items()}
RESPONSES: dict[int, type[Header]] = {code: kind for part in _CAPABILITIES for code, kind in part.RESPONSES.items()}


def request_type(code: int) -> type[Header]:
    """How the ext fields of such a request are typed; `Done` when it has none."""
    return REQUESTS.get(code, Done)


def response_type(code: int) -> type[Header]:
    """How the ext fields of a successful answer to such a request are typed; `Done` when it has none."""
    return RESPONSES.get(code, Done)


__all__ = [
    "REQUESTS",
    "RESPONSES",
    "AckMessage",
    "AppendOnce",
    "AskBrokerGroup",
    "AskGroup",
    "AskKv",
    "AskQueue",
    "AskTopic",
    "BatchAck",
    "BrokerConfig",
    "BrokerConsumeStats",
    "BrokerHeartbeat",
    "BrokerNamed",
    "BrokerRegistered",
    "BrokerStats",
    "ChangeInvisible",
    "CheckTransaction",
    "CloneOffsets",
    "CommitOffset",
    "CommitStages",
    "Committed",
    "ConsumeDirectly",
    "ConsumeStats",
    "ConsumeTimeSpan",
    "ConsumerConnections",
    "ConsumerRunning",
    "ConsumerStatus",
    "ConsumersChanged",
    "CorrectOffsets",
    "DataVersionCompared",
    "DeleteGroup",
    "DeleteTopic",
    "Done",
    "EndTransaction",
    "ForbidGroup",
    "GetRoute",
    "GroupsListed",
    "Header",
    "Heartbeat",
    "HeartbeatSeen",
    "InvisibleChanged",
    "KvFound",
    "LedgerFound",
    "ListConsumers",
    "ListGroups",
    "ListKv",
    "ListTopics",
    "MessagesFound",
    "MessagesResent",
    "Notification",
    "Notified",
    "OffsetFound",
    "PeekMessage",
    "PollingAsked",
    "PollingCounted",
    "PopMessage",
    "Popped",
    "ProducerConnections",
    "PullMessage",
    "Pulled",
    "PushReply",
    "PutKv",
    "QueryConsumeQueue",
    "QueryDataVersion",
    "QueryLedger",
    "QueryMessage",
    "QueryOffset",
    "Recall",
    "Recalled",
    "RegisterBroker",
    "ResendMessages",
    "ResetOffset",
    "ResumeCheck",
    "SealStage",
    "SearchOffset",
    "SendBack",
    "SendMessage",
    "SendMessageV2",
    "Sent",
    "StageRecords",
    "StageSealed",
    "StoreTimeFound",
    "SubscriptionOfGroup",
    "TopicsListed",
    "TopicsOfCluster",
    "TopicsOfGroup",
    "UnregisterBroker",
    "UnregisterClient",
    "UpdateTopic",
    "ViewMessage",
    "WritesAllowed",
    "WritesForbidden",
    "read",
    "request_type",
    "response_type",
    "write",
]

"""Bodies of clients: heartbeats, member lists, queue locks, connections."""

# ruff: noqa: RUF012  (msgspec gives every struct an empty list or dict of its own)
from __future__ import annotations

import msgspec

from sparrow.model.queue import QueueRef
from sparrow.wire.bodies.codec import Body

_CONSUME_RESULTS = ("CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL")
"""RocketMQ's `CMResult`, in the order of its numbers."""


class SubscriptionData(Body, frozen=True):
    topic: str
    sub_string: str = "*"
    expression_type: str = "TAG"
    sub_version: int = 0
    """In ms; Go sends ns."""
    tags_set: list[str] = []
    code_set: list[int] = []
    """Not reliable: Go hashes UTF-8 bytes where Java hashes UTF-16 units."""
    class_filter_mode: bool = False


class ConsumerData(Body, frozen=True):
    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(Body, frozen=True):
    group_name: str


class HeartbeatData(Body, frozen=True):
    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class GroupConflict(Body, frozen=True):
    """Two members of a group that differ where all must be alike. Reports are for people."""

    group: str
    client_id: str
    report: str
    other_client_id: str
    other_report: str


class GroupConflicts(Body, frozen=True):
    """The body of the response to a heartbeat whose client differs from other members. RocketMQ has no such body."""

    conflicts: list[GroupConflict] = []


class ConsumerList(Body, frozen=True):
    consumer_id_list: list[str] = []


class ClientConfigCheck(Body, frozen=True):
    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class LockQueues(Body, frozen=True):
    """Queues to lock (41) or to unlock (42)."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueRef] = []
    only_this_broker: bool = False


class LockedQueues(Body, frozen=True):
    locked: list[QueueRef] = msgspec.field(default_factory=list, name="lockOKMQSet")


class ClientConnection(Body, frozen=True):
    client_id: str
    client_addr: str
    language: str
    version: int


class ConsumerConnections(Body, frozen=True):
    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class ProducerConnections(Body, frozen=True):
    connection_set: list[ClientConnection] = []


class ProducerEntry(Body, frozen=True):
    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int
    last_update_timestamp: int


class ProducerTable(Body, frozen=True):
    data: dict[str, list[ProducerEntry]] = {}


class GroupSubscription(Body, frozen=True):
    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


class ConsumeDirectlyResult(Body, frozen=True):
    """The result of a message that a tool made a client consume. Go clients send a number, which gets its name here."""

    consume_result: str | int
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.consume_result, int) and 0 <= self.consume_result < len(_CONSUME_RESULTS):
            msgspec.structs.force_setattr(self, "consume_result", _CONSUME_RESULTS[self.consume_result])

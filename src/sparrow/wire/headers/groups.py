"""Members of groups, their configuration, and remote control of consumers."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long


class Heartbeat(Header, frozen=True):
    """Says everything in its body."""


class HeartbeatSeen(Header, frozen=True):
    """Both only from a broker that understands heartbeats without subscriptions."""

    supports_v2: Flag | None = msgspec.field(default=None, name="IS_SUPPORT_HEART_BEAT_V2")
    subscription_changed: Flag | None = msgspec.field(default=None, name="IS_SUB_CHANGE")


class UnregisterClient(Header, frozen=True):
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ListConsumers(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")


class ConsumersChanged(Header, frozen=True):
    """To a client: the members of this group changed, share the queues again."""

    group: str = msgspec.field(name="consumerGroup")


class ListGroups(Header, frozen=True):
    """5.3 pages through the groups; older clients say nothing."""

    from_index: Int | None = msgspec.field(default=None, name="groupSeq")
    data_version: str | None = None
    groups_max: Int | None = msgspec.field(default=None, name="maxGroupNum")


class GroupsListed(Header, frozen=True):
    total: Int | None = msgspec.field(default=None, name="totalGroupNum")


class AskGroup(Header, frozen=True):
    group: str


class DeleteGroup(Header, frozen=True):
    group: str = msgspec.field(name="groupName")
    clean_offsets: Flag | None = msgspec.field(default=None, name="cleanOffset")
    """5.x's name."""
    remove_offsets: Flag | None = msgspec.field(default=None, name="removeOffset")
    """4.9's name for the same."""


class ForbidGroup(Header, frozen=True):
    group: str
    topic: str
    readable: Flag | None = None


class ResetOffset(Header, frozen=True):
    """To a broker (222), and from it to every member (220, which says only the first four)."""

    topic: str
    group: str
    time_ms: Long = msgspec.field(name="timestamp")
    """-1 stands for the newest message."""
    is_forced: Flag = msgspec.field(name="isForce")
    queue_id: Int | None = None
    offset: Long | None = None


class ConsumerStatus(Header, frozen=True):
    topic: str
    group: str
    client_id: str | None = msgspec.field(default=None, name="clientAddr")


class ConsumerRunning(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    client_id: str
    with_stacks: Flag = msgspec.field(default=False, name="jstackEnable")


class ConsumeDirectly(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    client_id: str | None = None
    message_id: str | None = msgspec.field(default=None, name="msgId")
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


REQUESTS: dict[Code, type[Header]] = {
    Code.HEART_BEAT: Heartbeat,
    Code.UNREGISTER_CLIENT: UnregisterClient,
    Code.GET_CONSUMER_LIST_BY_GROUP: ListConsumers,
    Code.NOTIFY_CONSUMER_IDS_CHANGED: ConsumersChanged,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ListGroups,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: AskGroup,
    Code.DELETE_SUBSCRIPTIONGROUP: DeleteGroup,
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: ForbidGroup,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffset,
    Code.RESET_CONSUMER_CLIENT_OFFSET: ResetOffset,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ConsumerStatus,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatus,
    Code.GET_CONSUMER_RUNNING_INFO: ConsumerRunning,
    Code.CONSUME_MESSAGE_DIRECTLY: ConsumeDirectly,
}
RESPONSES: dict[Code, type[Header]] = {
    Code.HEART_BEAT: HeartbeatSeen,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GroupsListed,
}

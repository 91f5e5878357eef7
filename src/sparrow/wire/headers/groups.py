"""Members of groups, their configuration, and remote control of consumers."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class Heartbeat(Header, frozen=True):
    """Says everything in its body."""


class HeartbeatResponse(Header, frozen=True):
    """Both only from a broker that understands heartbeats without subscriptions."""

    supports_v2: JavaBool | None = msgspec.field(default=None, name="IS_SUPPORT_HEART_BEAT_V2")
    subscription_changed: JavaBool | None = msgspec.field(default=None, name="IS_SUB_CHANGE")


class UnregisterClient(Header, frozen=True):
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ListConsumers(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")


class NotifyConsumersChanged(Header, frozen=True):
    """To a client: the members of this group changed, share the queues again."""

    group: str = msgspec.field(name="consumerGroup")


class ListGroups(Header, frozen=True):
    """5.3 pages through the groups; older clients say nothing."""

    from_index: JavaInt | None = msgspec.field(default=None, name="groupSeq")
    data_version: str | None = None
    groups_max: JavaInt | None = msgspec.field(default=None, name="maxGroupNum")


class ListGroupsResponse(Header, frozen=True):
    total: JavaInt | None = msgspec.field(default=None, name="totalGroupNum")


class GetGroupConfig(Header, frozen=True):
    group: str


class DeleteGroup(Header, frozen=True):
    group: str = msgspec.field(name="groupName")
    clean_offsets: JavaBool | None = msgspec.field(default=None, name="cleanOffset")
    """5.x's name."""
    remove_offsets: JavaBool | None = msgspec.field(default=None, name="removeOffset")
    """4.9's name for the same."""


class UpdateGroupForbidden(Header, frozen=True):
    group: str
    topic: str
    readable: JavaBool | None = None


class ResetOffset(Header, frozen=True):
    """To a broker (222), and from it to every member (220, which says only the first four)."""

    topic: str
    group: str
    time_ms: JavaLong = msgspec.field(name="timestamp")
    """-1 stands for the newest message."""
    is_forced: JavaBool = msgspec.field(name="isForce")
    queue_id: JavaInt | None = None
    offset: JavaLong | None = None


class GetConsumerStatus(Header, frozen=True):
    topic: str
    group: str
    client_id: str | None = msgspec.field(default=None, name="clientAddr")


class GetConsumerRunningInfo(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    client_id: str
    with_stacks: JavaBool = msgspec.field(default=False, name="jstackEnable")


class ConsumeMessageDirectly(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")
    client_id: str | None = None
    message_id: str | None = msgspec.field(default=None, name="msgId")
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: JavaInt | None = None
    group_sys_flag: JavaInt | None = None


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.HEART_BEAT: Heartbeat,
    RequestCode.UNREGISTER_CLIENT: UnregisterClient,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ListConsumers,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: NotifyConsumersChanged,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ListGroups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GetGroupConfig,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteGroup,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: UpdateGroupForbidden,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffset,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: GetConsumerStatus,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: GetConsumerStatus,
    RequestCode.GET_CONSUMER_RUNNING_INFO: GetConsumerRunningInfo,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectly,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.HEART_BEAT: HeartbeatResponse,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ListGroupsResponse,
}

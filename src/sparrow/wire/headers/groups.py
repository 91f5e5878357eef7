"""Headers of clients, consumer groups, and remote control of consumers."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong


class Heartbeat(Header, frozen=True):
    """Has no fields: the body contains the heartbeat."""


class HeartbeatResponse(Header, frozen=True):
    """Both fields are only sent by brokers that support heartbeats without subscriptions."""

    supports_v2: JavaBool | None = msgspec.field(default=None, name="IS_SUPPORT_HEART_BEAT_V2")
    subscription_changed: JavaBool | None = msgspec.field(default=None, name="IS_SUB_CHANGE")


class UnregisterClient(Header, frozen=True):
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ListConsumers(Header, frozen=True):
    group: str = msgspec.field(name="consumerGroup")


class NotifyConsumersChanged(Header, frozen=True):
    """Sent to a client when the members of its group changed: it must rebalance."""

    group: str = msgspec.field(name="consumerGroup")


class ListGroups(Header, frozen=True):
    """5.3 requests groups in pages; older clients send no fields."""

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
    """The name in 5.x."""
    remove_offsets: JavaBool | None = msgspec.field(default=None, name="removeOffset")
    """The name in 4.9."""


class UpdateGroupForbidden(Header, frozen=True):
    group: str
    topic: str
    readable: JavaBool | None = None


class ResetOffset(Header, frozen=True):
    """Sent to a broker (222), and by it to every member (220, with only the first four fields)."""

    topic: str
    group: str
    time_ms: JavaLong = msgspec.field(name="timestamp")
    """-1 means the newest message."""
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

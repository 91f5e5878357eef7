"""What each request needs: one of some actions, on the topics and by the groups that it names.

1. A request that is not in the table needs to administer everything.
2. Names are read from the fields that the handler reads. Where only the handler knows a topic, it asks `Broker.may`.
3. `EVERY_NAME` stands for all topics or groups: a request that names none, but concerns them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from sparrow.model.access.permissions import TokenAction
from sparrow.model.access.token import EVERY_NAME
from sparrow.model.errors import ProtocolError
from sparrow.wire import bodies, queue_batches
from sparrow.wire.bodies import (
    ClientConfigCheck,
    GroupConfig,
    GroupConfigList,
    HeartbeatData,
    ListDelayed,
    ListHalfMessages,
    LockQueues,
    TopicConfigList,
)
from sparrow.wire.bodies.pop import BatchAck, QueryAssignment, SetRequestMode
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand


class NamedUse(NamedTuple):
    """A topic, a group, or a topic by a group, that a request uses."""

    topic: str | None = None
    group: str | None = None


Fields = Mapping[str, str]
NameReader = Callable[[RemotingCommand, Fields], Iterable[NamedUse]]


class Requirement(NamedTuple):
    """What a request needs. Of `actions`, the token needs one; it applies to every name of the request."""

    actions: tuple[TokenAction, ...]
    topic: str | None = None
    """The ext field that names the topic."""
    group: str | None = None
    """The ext field that names the group."""
    names: NameReader | None = None
    """Reads the names, if they are in the body, or in several fields."""
    sends: bool = False
    """Whether messages are sent to the topic: producers may not send to the topics of groups, consumers only there."""


# -- names that are not in one field ----------------------------------------------------------------------------------


def _heartbeat(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    for consumer in bodies.read_request(HeartbeatData, command.body).consumer_data_set:
        yield NamedUse(group=consumer.group_name)
        for subscription in consumer.subscription_data_set:
            yield NamedUse(subscription.topic, consumer.group_name)


def _locks(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    request = bodies.read_request(LockQueues, command.body)
    yield NamedUse(group=request.consumer_group)
    for topic in {queue.topic for queue in request.mq_set}:
        yield NamedUse(topic, request.consumer_group)


def _acks(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    for ack in bodies.read_request(BatchAck, command.body).acks:
        yield NamedUse(ack.topic, ack.group)


def _assignment(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    request = bodies.read_request(QueryAssignment, command.body)
    yield NamedUse(request.topic, request.consumer_group)


def _client_config(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    request = bodies.read_request(ClientConfigCheck, command.body)
    yield NamedUse(request.subscription_data.topic, request.group)


def _leaving_group(_: RemotingCommand, fields: Fields) -> Iterator[NamedUse]:
    if fields.get("consumerGroup"):
        yield NamedUse(group=fields["consumerGroup"])


def _records(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    try:
        topics = sorted(queue_batches.topics_in(command.body))
    except ProtocolError:
        return  # the handler reports what is wrong with the records
    for topic in topics:
        yield NamedUse(topic)


def _listed_topics(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    for topic in bodies.read_request(list[str], command.body):
        yield NamedUse(topic)


def _topic_configs(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    for config in bodies.read_request(TopicConfigList, command.body).topic_config_list:
        yield NamedUse(config.topic_name)


def _group_config(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    yield NamedUse(group=bodies.read_request(GroupConfig, command.body).group_name)


def _group_configs(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    for config in bodies.read_request(GroupConfigList, command.body).group_config_list:
        yield NamedUse(group=config.group_name)


def _request_mode(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    request = bodies.read_request(SetRequestMode, command.body)
    yield NamedUse(request.topic, request.consumer_group)


def _delayed(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    yield NamedUse(bodies.read_request(ListDelayed, command.body).topic or EVERY_NAME)


def _half_messages(command: RemotingCommand, _: Fields) -> Iterator[NamedUse]:
    yield NamedUse(bodies.read_request(ListHalfMessages, command.body).topic or EVERY_NAME)


def _cloned_groups(_: RemotingCommand, fields: Fields) -> Iterator[NamedUse]:
    topic = fields.get("topic") or EVERY_NAME
    yield NamedUse(topic, fields.get("srcGroup", ""))
    yield NamedUse(topic, fields.get("destGroup", ""))


def _resent(_: RemotingCommand, fields: Fields) -> Iterator[NamedUse]:
    yield NamedUse(fields.get("topic", ""), fields.get("consumerGroup") or EVERY_NAME)


def _everything(_: RemotingCommand, __: Fields) -> Iterator[NamedUse]:
    yield NamedUse(EVERY_NAME, EVERY_NAME)


# -- the table --------------------------------------------------------------------------------------------------------

_PUBLISH, _SUBSCRIBE, _ADMINISTER = (TokenAction.PUBLISH,), (TokenAction.SUBSCRIBE,), (TokenAction.ADMINISTER,)
_USE = (TokenAction.SUBSCRIBE, TokenAction.PUBLISH)
_CONSUME = Requirement(_SUBSCRIBE, "topic", "consumerGroup")
_BOUNDS = Requirement(_USE, "topic")
_STAGE = Requirement(_PUBLISH)
"""Stages and ledgers have names that only their owner knows; the topics of their records are checked on arrival."""
_ADMINISTER_TOPIC = Requirement(_ADMINISTER, "topic")
_ADMINISTER_BOTH = Requirement(_ADMINISTER, "topic", "group")
EVERYTHING = Requirement(_ADMINISTER, names=_everything)

REQUIREMENTS: dict[int, Requirement] = {
    # Sends. The action depends on the topic.
    RequestCode.SEND_MESSAGE: Requirement(_USE, "topic", sends=True),
    RequestCode.SEND_MESSAGE_V2: Requirement(_USE, "b", sends=True),
    RequestCode.SEND_BATCH_MESSAGE: Requirement(_USE, "b", sends=True),
    RequestCode.SEND_REPLY_MESSAGE: Requirement(_PUBLISH, "topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: Requirement(_PUBLISH, "b"),
    RequestCode.RECALL_MESSAGE: Requirement(_PUBLISH, "topic"),
    RequestCode.END_TRANSACTION: _STAGE,  # the handler checks the topic of the half message
    RequestCode.STAGE_RECORDS: Requirement(_PUBLISH, names=_records),
    RequestCode.APPEND_ONCE: Requirement(_PUBLISH, names=_records),
    RequestCode.SEAL_STAGE: _STAGE,
    RequestCode.COMMIT_STAGES: _STAGE,
    RequestCode.DROP_STAGES: _STAGE,
    RequestCode.QUERY_LEDGER: _STAGE,
    # Consumers
    RequestCode.PULL_MESSAGE: _CONSUME,
    RequestCode.LITE_PULL_MESSAGE: _CONSUME,
    RequestCode.POP_MESSAGE: _CONSUME,
    RequestCode.ACK_MESSAGE: _CONSUME,
    RequestCode.BATCH_ACK_MESSAGE: Requirement(_SUBSCRIBE, names=_acks),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _CONSUME,
    RequestCode.NOTIFICATION: _CONSUME,
    RequestCode.PEEK_MESSAGE: _CONSUME,
    RequestCode.POLLING_INFO: _CONSUME,
    RequestCode.QUERY_ASSIGNMENT: Requirement(_SUBSCRIBE, names=_assignment),
    RequestCode.CONSUMER_SEND_MSG_BACK: Requirement(_SUBSCRIBE, group="group"),  # the handler checks the topic
    RequestCode.QUERY_CONSUMER_OFFSET: _CONSUME,
    RequestCode.UPDATE_CONSUMER_OFFSET: _CONSUME,
    RequestCode.LOCK_BATCH_MQ: Requirement(_SUBSCRIBE, names=_locks),
    RequestCode.UNLOCK_BATCH_MQ: Requirement(_SUBSCRIBE, names=_locks),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Requirement(_SUBSCRIBE, group="consumerGroup"),
    RequestCode.CHECK_CLIENT_CONFIG: Requirement(_SUBSCRIBE, names=_client_config),
    RequestCode.QUERY_MESSAGE: Requirement(_SUBSCRIBE, "topic"),
    # Both
    RequestCode.HEART_BEAT: Requirement(_USE, names=_heartbeat),
    RequestCode.UNREGISTER_CLIENT: Requirement(_USE, names=_leaving_group),
    RequestCode.GET_MAX_OFFSET: _BOUNDS,
    RequestCode.GET_MIN_OFFSET: _BOUNDS,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _BOUNDS,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _BOUNDS,
    RequestCode.QUERY_QUEUE_BOUNDS: Requirement(_USE, names=_listed_topics),
    # Administration of a topic or a group
    RequestCode.UPDATE_AND_CREATE_TOPIC: _ADMINISTER_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Requirement(_ADMINISTER, names=_topic_configs),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _ADMINISTER_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER: _ADMINISTER_TOPIC,
    RequestCode.GET_TOPIC_CONFIG: _ADMINISTER_TOPIC,
    RequestCode.GET_TOPIC_STATS_INFO: _ADMINISTER_TOPIC,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _ADMINISTER_TOPIC,
    RequestCode.QUERY_CONSUME_QUEUE: _ADMINISTER_TOPIC,
    RequestCode.LIST_DELAYED_MESSAGES: Requirement(_ADMINISTER, names=_delayed),
    RequestCode.LIST_HALF_MESSAGES: Requirement(_ADMINISTER, names=_half_messages),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Requirement(_ADMINISTER, names=_group_config),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Requirement(_ADMINISTER, names=_group_configs),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Requirement(_ADMINISTER, group="group"),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Requirement(_ADMINISTER, group="groupName"),
    RequestCode.GET_CONSUME_STATS: Requirement(_ADMINISTER, group="consumerGroup"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Requirement(_ADMINISTER, group="consumerGroup"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Requirement(_ADMINISTER, group="consumerGroup"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Requirement(_ADMINISTER, group="group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Requirement(_ADMINISTER, group="group"),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _ADMINISTER_BOTH,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _ADMINISTER_BOTH,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _ADMINISTER_BOTH,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _ADMINISTER_BOTH,
    RequestCode.CLONE_GROUP_OFFSET: Requirement(_ADMINISTER, names=_cloned_groups),
    RequestCode.RESEND_MESSAGES: Requirement(_ADMINISTER, names=_resent),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Requirement(_ADMINISTER, names=_request_mode),
    # The whole broker. A physical offset (33, 309) names a message of any topic.
    RequestCode.VIEW_MESSAGE_BY_ID: EVERYTHING,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: EVERYTHING,
    RequestCode.QUERY_CORRECTION_OFFSET: EVERYTHING,
    RequestCode.GET_ALL_TOPIC_CONFIG: EVERYTHING,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: EVERYTHING,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: EVERYTHING,
    RequestCode.GET_ALL_CONSUMER_OFFSET: EVERYTHING,
    RequestCode.GET_BROKER_CONSUME_STATS: EVERYTHING,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: EVERYTHING,
    RequestCode.GET_ALL_PRODUCER_INFO: EVERYTHING,
    RequestCode.GET_BROKER_RUNTIME_INFO: EVERYTHING,
    RequestCode.VIEW_BROKER_STATS_DATA: EVERYTHING,
    RequestCode.GET_BROKER_CONFIG: EVERYTHING,
    RequestCode.UPDATE_BROKER_CONFIG: EVERYTHING,
    RequestCode.DELETE_EXPIRED_COMMITLOG: EVERYTHING,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: EVERYTHING,
    RequestCode.CLEAN_UNUSED_TOPIC: EVERYTHING,
    RequestCode.ISSUE_TOKEN: EVERYTHING,
    RequestCode.CHANGE_TOKEN: EVERYTHING,
    RequestCode.LIST_TOKENS: EVERYTHING,
    RequestCode.REVOKE_TOKEN: EVERYTHING,
    RequestCode.AUTH_CREATE_USER: EVERYTHING,
    RequestCode.AUTH_UPDATE_USER: EVERYTHING,
    RequestCode.AUTH_DELETE_USER: EVERYTHING,
    RequestCode.AUTH_GET_USER: EVERYTHING,
    RequestCode.AUTH_LIST_USER: EVERYTHING,
    RequestCode.AUTH_CREATE_ACL: EVERYTHING,
    RequestCode.AUTH_UPDATE_ACL: EVERYTHING,
    RequestCode.AUTH_DELETE_ACL: EVERYTHING,
    RequestCode.AUTH_GET_ACL: EVERYTHING,
    RequestCode.AUTH_LIST_ACL: EVERYTHING,
}

READ_CODES = frozenset(
    {
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.LIST_DELAYED_MESSAGES,
        RequestCode.LIST_HALF_MESSAGES,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.LIST_TOKENS,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    }
)
"""The requests of administrators that change nothing."""

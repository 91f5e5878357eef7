"""Check-back: the broker asks a producer for the state of a transaction that it has not ended."""

from __future__ import annotations

from sparrow.broker.clients.registry import ClientRegistry, OnlineClient
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import (
    PROPERTY_CHECK_TIMES,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
)
from sparrow.net.channel import Channel
from sparrow.wire import record
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import CheckTransaction
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import parse_whole_number


class TransactionCheckBack:
    """Sends checks to the members of a producer group in turn."""

    def __init__(self, clients: ClientRegistry, broker_name: str) -> None:
        self._clients, self._broker_name = clients, broker_name
        self._next_member = 0

    def check(self, message: StoredMessage, *, half_offset: int, checks: int) -> None:
        """Send a check if a member is online. The producer answers by ending the transaction."""
        member = self._producer(message.properties.get(PROPERTY_PRODUCER_GROUP, ""))
        if member is None:
            return  # retried at the next check
        offset_id = format_offset_id(message.store_host, message.physical_offset)
        unique = message.unique_key
        # The client gets the message with its destination, not with the half topic.
        message.topic = message.properties.get(PROPERTY_REAL_TOPIC, message.topic)
        message.queue_id = parse_whole_number(message.properties.get(PROPERTY_REAL_QUEUE_ID)) or 0
        message.properties[PROPERTY_CHECK_TIMES] = str(checks)
        header = CheckTransaction(
            half_queue_offset=half_offset,
            half_physical_offset=message.physical_offset,
            topic=message.topic,
            message_id=unique,
            transaction_id=unique,
            offset_message_id=offset_id,
            broker_name=self._broker_name,
        )
        channel: Channel = member.channel
        channel.send_one_way(RequestCode.CHECK_TRANSACTION_STATE, header, record.encode_message(message))

    def _producer(self, group: str) -> OnlineClient | None:
        members = [each for each in self._clients.producers(group) if _is_reachable(each.channel)]
        if not members:
            return None
        self._next_member += 1
        return members[self._next_member % len(members)]


def _is_reachable(channel: Channel) -> bool:
    return channel.is_open and not channel.is_crowded

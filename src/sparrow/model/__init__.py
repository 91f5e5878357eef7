"""Values: messages, topics, queues, errors. No I/O, and no other room is known here."""

from sparrow.model.message import Draft, Host, Message, StoredMessage
from sparrow.model.queue import PhysicalOffset, Queue, QueueBounds, QueueOffset
from sparrow.model.send_result import SendResult, SendStatus
from sparrow.model.topic import Group, Topic
from sparrow.model.transaction import TransactionState

__all__ = [
    "Draft",
    "Group",
    "Host",
    "Message",
    "PhysicalOffset",
    "Queue",
    "QueueBounds",
    "QueueOffset",
    "SendResult",
    "SendStatus",
    "StoredMessage",
    "Topic",
    "TransactionState",
]

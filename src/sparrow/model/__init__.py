"""Values: messages, topics, queues, tokens, errors and the names of the protocol. No I/O; imports no other package."""

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

"""Values: messages, topics, queues, errors. No I/O, and no other room is known here."""

from sparrow.model.message import Draft, Host, Message, StoredMessage
from sparrow.model.queue import Bounds, PhysicalOffset, Queue, QueueOffset
from sparrow.model.send_result import Outcome, SendResult, SendStatus
from sparrow.model.topic import Group, Topic

__all__ = [
    "Bounds",
    "Draft",
    "Group",
    "Host",
    "Message",
    "Outcome",
    "PhysicalOffset",
    "Queue",
    "QueueOffset",
    "SendResult",
    "SendStatus",
    "StoredMessage",
    "Topic",
]

"""The result of a send: where the message is stored, and how safely."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from sparrow.model.queue import QueueRef


class SendStatus(Enum):
    """How safely a message is stored. Only `OK` fulfils the broker's flush and replication policy."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message is stored."""

    status: SendStatus
    message_id: str
    """The unique id that the sender assigned and that consumers see."""
    offset_id: str
    """The id that encodes the broker address and the physical offset; tools find the message by it."""
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    recall_handle: str | None = None
    """Recalls a delayed message until it is due. Brokers before RocketMQ 5.3 return none."""
    region: str | None = None
    is_traced: bool = True
    """False: the broker asks for no trace of the message."""

    @property
    def is_ok(self) -> bool:
        """Whether the status is `OK`."""
        return self.status is SendStatus.OK


class SentRange(msgspec.Struct, frozen=True):
    """Messages of a bulk send that are stored next to each other in one queue."""

    status: SendStatus
    queue: QueueRef
    queue_offset: int
    """The offset of the first; each of the others has the next one."""
    indexes: Sequence[int]
    """Which messages these are: their positions in what was sent, in order."""


class BulkSendResult(msgspec.Struct, frozen=True):
    """Where the messages of a bulk send are stored."""

    topic: str
    ranges: tuple[SentRange, ...]
    """Sorted by the first message of each."""

    @property
    def count(self) -> int:
        """How many messages are stored: all that were sent."""
        return sum(len(each.indexes) for each in self.ranges)

    @property
    def is_ok(self) -> bool:
        """Whether the status of every range is `OK`."""
        return all(each.status is SendStatus.OK for each in self.ranges)

    def locate(self, index: int) -> tuple[QueueRef, int]:
        """Return the queue and the queue offset of a message, by its position in what was sent."""
        for each in self.ranges:
            if index in each.indexes:
                return each.queue, each.queue_offset + each.indexes.index(index)
        raise IndexError(f"message {index} is not one of the {self.count} that were sent")

"""What became of a message that was sent."""

from __future__ import annotations

from enum import Enum

import msgspec


class SendStatus(Enum):
    """Stored in every case; only the first kept all of the broker's promise."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class TransactionState(Enum):
    """What became of the work a transactional message waits for."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"
    """Not known yet: the broker asks again. (Java's spelling, in traces.)"""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message lies."""

    status: SendStatus
    message_id: str
    """The id the sender gave it, which consumers see."""
    offset_id: str
    """The id that says where it lies: tools find it by this one."""
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    recall_handle: str | None = None
    """Of a message for later: by this it can be taken back. Brokers before RocketMQ 5.3 give none."""
    region: str | None = None
    is_traced: bool = True
    """False: the broker wants no traces of it."""

    @property
    def is_ok(self) -> bool:
        return self.status is SendStatus.OK

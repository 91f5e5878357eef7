"""The result of a send: where the message is stored, and how safely."""

from __future__ import annotations

from enum import Enum

import msgspec


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

"""What the session and the brokers' requests need of the consumers and producers that use the session."""

from __future__ import annotations

from typing import Protocol

from sparrow.model.message import StoredMessage
from sparrow.model.queue import QueueRef
from sparrow.net.channel import Channel
from sparrow.wire.bodies import ConsumerData
from sparrow.wire.headers import CheckTransaction


class SessionConsumer(Protocol):
    """What the session and the brokers' requests need of a consumer."""

    started_ms: int

    is_orderly: bool

    def heartbeat_data(self) -> ConsumerData:
        """Return what heartbeats report about the consumer."""
        ...

    def on_members_changed(self) -> None: ...
    async def reset_offsets(self, offsets: dict[QueueRef, int]) -> None: ...
    def positions(self, topic: str | None = None) -> dict[QueueRef, int]: ...
    def queue_states(self) -> dict[QueueRef, tuple[int, int]]:
        """Return for each queue the committable offset and the number of unconsumed messages."""
        ...

    async def handle_directly(self, message: StoredMessage) -> None: ...


class TransactionCheckResponder(Protocol):
    """What a broker's check-back needs of a producer."""

    async def answer(self, asked: CheckTransaction, message: StoredMessage, channel: Channel) -> None: ...

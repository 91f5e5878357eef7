"""The official gRPC client of Java, as a process that executes commands (java/grpc/src/GrpcClient.java)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from tests.interop.java import SETTLE_S, JavaClient

LEASE_MS = 10_000
"""The shortest invisible time that the proxy accepts for a receive."""

TransactionEnd = Literal["commit", "rollback", "nothing"]


class MessageView(msgspec.Struct, frozen=True, rename="camel"):
    """A message as the client received it."""

    message_id: str
    topic: str
    body: str
    tag: str | None
    keys: list[str]
    group: str | None
    priority: int | None
    properties: dict[str, str]
    attempt: int
    born_ms: int
    received_ms: int
    nth: int = 0


class Receipt(msgspec.Struct, frozen=True, rename="camel"):
    message_id: str
    recall_handle: str | None


class GrpcProducer(msgspec.Struct, frozen=True):
    java: JavaClient
    id: str
    topic: str

    def send(self, *messages: str | dict[str, Any]) -> list[Receipt]:
        """Send messages, each a body or a dict with body and tag, key, group, priority, delayMs or properties."""
        dicts = [{"body": each} if isinstance(each, str) else each for each in messages]
        sent = self.java.order("send", id=self.id, messages=[{"topic": self.topic} | each for each in dicts])
        return msgspec.convert(sent, list[Receipt])

    def send_in_transaction(self, body: str, end: TransactionEnd, **properties: str) -> Receipt:
        """Send a half message. The property `check` answers check-backs: COMMIT, ROLLBACK or UNKNOWN."""
        message = {"topic": self.topic, "body": body, "properties": properties}
        return msgspec.convert(self.java.order("send_in_transaction", id=self.id, message=message, end=end), Receipt)

    def recall(self, handle: str) -> str:
        message_id: str = self.java.order("recall", id=self.id, topic=self.topic, handle=handle)
        return message_id


class GrpcPushConsumer(msgspec.Struct, frozen=True):
    java: JavaClient
    id: str

    def receive(self, count: int, *, within_s: float = SETTLE_S) -> list[MessageView]:
        """Return the messages since the last call; wait until there are `count`, and fail if they do not arrive."""
        fields = {"atLeast": count, "timeoutMs": int(within_s * 1000)}
        found = msgspec.convert(self.java.order("received", id=self.id, **fields), list[MessageView])
        assert len(found) >= count, f"{len(found)} of {count} messages in {within_s} s: {[one.body for one in found]}"
        return found


class GrpcSimpleConsumer(msgspec.Struct, frozen=True):
    java: JavaClient
    id: str

    def receive(self, *, invisible_ms: int = LEASE_MS, count_max: int = 32) -> list[MessageView]:
        found = self.java.order("receive", id=self.id, invisibleMs=invisible_ms, max=count_max)
        return msgspec.convert(found, list[MessageView])

    def ack(self, message: MessageView) -> None:
        self.java.order("ack", id=self.id, messageId=message.message_id)

    def change_invisible(self, message: MessageView, invisible_ms: int) -> None:
        self.java.order("change_invisible", id=self.id, messageId=message.message_id, invisibleMs=invisible_ms)


class GrpcClients(msgspec.Struct, frozen=True):
    """Starts clients in one JVM."""

    java: JavaClient

    @contextmanager
    def _running(self, command: str, **fields: object) -> Iterator[str]:
        id = self.java.name("client")
        self.java.order(command, id=id, **fields)
        try:
            yield id
        finally:
            self.java.order("stop", id=id)

    @contextmanager
    def producer(self, topic: str, *, transactional: bool = False) -> Iterator[GrpcProducer]:
        with self._running("start_producer", topic=topic, transactional=transactional) as id:
            yield GrpcProducer(self.java, id, topic)

    def push_consumer(self, group: str, topic: str, **options: object) -> GrpcPushConsumer:
        """Start a consumer that runs until the JVM ends: to stop it takes as long as a long poll.

        Options: expression or sql; failures: the number of deliveries of each message that fail.
        """
        id = self.java.name("consumer")
        self.java.order("start_push_consumer", id=id, group=group, topic=topic, **options)
        return GrpcPushConsumer(self.java, id)

    @contextmanager
    def simple_consumer(self, group: str, topic: str, **options: object) -> Iterator[GrpcSimpleConsumer]:
        """Options: expression or sql; awaitMs: the time of a long poll."""
        with self._running("start_simple_consumer", group=group, topic=topic, **options) as id:
            yield GrpcSimpleConsumer(self.java, id)

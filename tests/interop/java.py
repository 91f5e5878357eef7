"""The official Java client as a process that executes commands; java/src/Client.java lists them.

`ClientProcess`, `Producer` and `Consumer` also serve the Go client (go.py), which executes the same commands.
"""

import itertools
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import msgspec
from tests.interop.official import Kit

ANSWER_TIMEOUT_S = 120
# When a notification is lost, a client rebalances every 20 s and sends heartbeats every 30 s. If a broker refuses a
# pull because it does not know the latest subscription, the next pull waits for that heartbeat.
SETTLE_S = 60

Mode = Literal["sync", "async", "oneway", "batch"]
State = Literal["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]


class ReceivedMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message as the client received it."""

    topic: str
    queue_id: int
    queue_offset: int
    msg_id: str | None
    offset_msg_id: str
    body: str
    tags: str | None
    keys: str | None
    store_timestamp: int
    reconsume_times: int
    properties: dict[str, str]
    nth: int = 0
    """Its position among all messages that consumers of this process received."""


class SendResult(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    msg_id: str
    offset_msg_id: str
    queue_id: int
    queue_offset: int
    broker: str


class HalfMessage(msgspec.Struct, frozen=True, rename="camel"):
    """The client's result for a half message; it does not contain the place of the half message."""

    status: str
    msg_id: str
    queue_id: int


class Bounds(msgspec.Struct, frozen=True, rename="camel"):
    """A queue's first offset, its end offset, and the offset of a given time."""

    queue_id: int
    min: int
    max: int
    earliest_store_time: int
    at_time: int | None = None


class ClientError(AssertionError):
    """An error of the official client."""


class ClientProcess:
    """A process with an official client. It executes commands sequentially."""

    language: ClassVar[str]

    def __init__(self, process: subprocess.Popen[str], version: str) -> None:
        self.version = version
        self._process = process
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        self.answer_timeout_s: float = ANSWER_TIMEOUT_S
        """How long a command may take."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def order(self, command: str, **fields: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **fields}) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=self.answer_timeout_s)
        except queue.Empty:
            self._process.kill()  # a late answer would be read as the next one
            raise AssertionError(
                f"the {self.language} client did not answer {command} in {self.answer_timeout_s} s"
            ) from None
        assert line, f"the {self.language} client ended at {command}"
        answer = json.loads(line)
        if "error" in answer:
            raise ClientError(f"{command}: {answer['error']}")
        return answer["ok"]

    def name(self, prefix: str) -> str:
        """Return a name that is unique in this process."""
        return f"{prefix}_{next(self._ids)}"

    @contextmanager
    def producer(self, group: str = "interop_producers", **options: object) -> Iterator["Producer"]:
        """Options: transactional, or trace; Go's also selector."""
        producer = Producer(self, self.name("producer"))
        self.order("start_producer", id=producer.id, group=group, **options)
        try:
            yield producer
        finally:
            if self._process.poll() is None:
                self.order("stop_producer", id=producer.id)

    def kill(self) -> None:
        """Kill the process; its clients do not unregister."""
        self._process.kill()
        self._process.wait()

    def push_consumer(self, group: str, topic: str, **options: object) -> "Consumer":
        """Options: expression or sql, model, orderly, from, refusals, refusalLevel, retriesMax, replies, trace.

        Also popInvisibleMs, for a group whose broker selects pop, and room, to read the queues of that machine room;
        Java's only.
        """
        room = options.pop("room", None)
        id = self.name("consumer" if room is None else f"{room}@consumer")
        return self.consumer("start_push_consumer", group, topic, options | ({"nearby": True} if room else {}), id)

    def consumer(
        self, command: str, group: str, topic: str, options: dict[str, object], id: str | None = None
    ) -> "Consumer":
        consumer = Consumer(self, id or self.name("consumer"))
        self.order(command, id=consumer.id, group=group, topic=topic, **options)
        return consumer


class JavaClient(ClientProcess):
    """One JVM."""

    language = "Java"

    def lite_pull_consumer(self, group: str, topic: str, **options: object) -> "Consumer":
        """Options: expression, from; or queueId and offset."""
        return self.consumer("start_lite_pull", group, topic, options)


class Producer:
    def __init__(self, client: ClientProcess, id: str) -> None:
        self.id = id
        self.client = client

    def _order(self, command: str, **fields: object) -> Any:
        return self.client.order(command, id=self.id, **fields)

    def send(self, topic: str, messages: Sequence[dict[str, Any] | str], *, mode: Mode = "sync") -> list[SendResult]:
        """Send messages, each a body, or a dict with body and optional tags, keys, properties and hash.

        Delays: delayLevel, and since 5.0 delayTimeMs and deliverTimeMs.
        """
        dicts = [{"body": message} if isinstance(message, str) else message for message in messages]
        sent = msgspec.convert(self._order("send", topic=topic, mode=mode, messages=dicts), list[SendResult])
        assert all(one.status == "SEND_OK" for one in sent)
        return sent

    def send_in_transaction(self, topic: str, message: dict[str, Any], state: State) -> HalfMessage:
        """Send a half message and end its transaction with `state`; the property `answers` holds the answers to
        check-backs."""
        sent = self._order("send_in_transaction", topic=topic, message=message, state=state)
        return msgspec.convert(sent, HalfMessage)

    def check_backs(self, count: int = 0, *, within_s: float = 0) -> list[ReceivedMessage]:
        """Return the transactions of check-backs since the last call."""
        fields = {"atLeast": count, "timeoutMs": int(within_s * 1000)}
        return msgspec.convert(self._order("asked", **fields), list[ReceivedMessage])

    def request(self, topic: str, body: str, *, timeout_ms: int = 20_000, mode: Mode = "sync") -> str:
        """Send a request and return the text of the reply. Go's client also has the mode "async"."""
        reply: str = self._order("request", topic=topic, message={"body": body}, timeoutMs=timeout_ms, mode=mode)
        return reply

    def create_topic(self, topic: str, *, like: str, queues: int = 4, flags: int = 0) -> None:
        self._order("create_topic", topic=topic, key=like, queues=queues, flags=flags)

    def query_by_key(self, topic: str, key: str) -> list[ReceivedMessage]:
        return msgspec.convert(self._order("query_by_key", topic=topic, key=key), list[ReceivedMessage])

    def view_by_id(self, topic: str, msg_id: str) -> ReceivedMessage:
        return msgspec.convert(self._order("view_by_id", topic=topic, msgId=msg_id), ReceivedMessage)

    def offsets(self, topic: str, *, timestamp: int | None = None) -> list[Bounds]:
        found = msgspec.convert(self._order("offsets", topic=topic, timestamp=timestamp), list[Bounds])
        return sorted(found, key=lambda bounds: bounds.queue_id)


class Consumer:
    """Stop it with `stop`, or use it as a context manager."""

    def __init__(self, client: ClientProcess, id: str) -> None:
        self.id = id
        self.seen: list[ReceivedMessage] = []
        self._client = client

    def _order(self, command: str, **fields: object) -> Any:
        return self._client.order(command, id=self.id, **fields)

    def receive(self, count: int = 0, *, within_s: float = SETTLE_S) -> list[ReceivedMessage]:
        """Return the messages since the last call; wait until there are `count`, and fail if they do not arrive."""
        fresh = self.drain(count, within_s=within_s)
        assert len(fresh) >= count, f"{len(fresh)} of {count} messages in {within_s} s: {[seen.body for seen in fresh]}"
        return fresh

    def drain(self, count: int = 0, *, within_s: float = 0) -> list[ReceivedMessage]:
        """Like `receive`, but fewer messages are no error."""
        fields = {"atLeast": count, "timeoutMs": int(within_s * 1000)}
        fresh = msgspec.convert(self._order("received", **fields), list[ReceivedMessage])
        self.seen += fresh
        return fresh

    def queues(self, count: int | None = None, *, within_s: float = SETTLE_S) -> set[int]:
        """Return the assigned queues; wait until there are `count`."""
        wanted = {} if count is None else {"count": count, "timeoutMs": int(within_s * 1000)}
        found = set(self._order("queues_of", **wanted))
        assert count is None or len(found) == count, f"the consumer has {found} instead of {count} queues"
        return found

    def stop(self) -> None:
        """Stop the consumer; `seen` then includes its last messages."""
        self.seen += msgspec.convert(self._order("stop_consumer"), list[ReceivedMessage])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


@contextmanager
def java_client(kit: Kit, address: str, folder: Path, *, main: str = "Client") -> Iterator[JavaClient]:
    """Start the JVM; its logs and the offset files of broadcast consumers stay in `folder`.

    The remoting client needs the address of a name server; the gRPC client (`main="GrpcClient"`) that of a proxy.
    """
    command = kit.command(main, address, user_home=folder, heap_mb=256)
    with client_process(command, folder) as process:
        yield JavaClient(process, kit.version)


@contextmanager
def client_process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a client; it exits at the end of its input."""
    with open(folder / "client.err", "wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | (environment or {}),
            text=True,
            encoding="utf-8",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the client was killed
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
